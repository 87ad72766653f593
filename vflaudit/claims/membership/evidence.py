"""Evidence about membership: rates against what differential privacy allows, and what the server's messages tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from attacks.secure_forward import SecureLayerForward
from vflaudit.accounting.tradeoff import most_found
from vflaudit.claims.base import Find, Measured, Rule, Ruling
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import Array
from vflaudit.core.games import Guess, Membership
from vflaudit.core.view import View
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.perform import execute

RATE, FPR = "tpr_at_1%_fpr", 0.01


@dataclass(frozen=True)
class Somewhere(Rule):
    """A threat: it is real if it is surely so in one row, and refuted only if it is surely not in any."""

    def ruling(self, rows: Sequence[Measured]) -> Ruling:
        if any(self.holds(row) for row in rows):
            return "upheld"
        return "refuted" if rows and all(self.breaks(row) for row in rows) else "inconclusive"


def leaks_somewhere(threshold: float) -> Rule:
    """On at least one table the advantage exceeds the threshold."""
    return Somewhere(threshold, "above")


@dataclass(frozen=True)
class Allowed:
    """The true positive rate at 1% false alarms, less the most that (epsilon, delta)-differential privacy allows."""

    what: str
    experiment: Experiment
    epsilon: float
    delta: float

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (self.experiment,)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [find(self.experiment, seed) for seed in seeds]
        most = float(most_found(self.epsilon, self.delta, FPR))
        values = tuple(float(result.metrics[RATE]) - most for result in found)
        keys = tuple(result.key for result in found)
        measure = f"TPR at 1% FPR less the {most:.3g} that epsilon allows"
        return Measured(self.what, found[0].adversary, measure, values, keys=keys)


def recognised(view: View, seed: int) -> Array:
    """Score candidates by how near they are to a row that vFedSec's server solved from its messages.

    `SecureLayerForward` gives rows of every party, the columns of a cluster as often as it has parties. The server does
    not know whose rows they are: it need not.
    """
    assert view.challenge is not None
    guess = SecureLayerForward().run(view, seed=seed)
    parties = {view.spec.columns[party]: party for party in guess.features}.values()
    seen = np.hstack([guess.features[party].values for party in parties])
    asked = np.hstack([view.challenge.features[party] for party in parties])
    return -np.asarray(cKDTree(seen).query(asked)[0])


def from_messages(experiment: Experiment, seed: int) -> float:
    """AUC over 0.5 of vFedSec's server that looks for candidates among the rows in its messages."""
    target = experiment.model_copy(update={"seed": seed})
    run, game, server = execute(target, target.load_data()), Membership(), Adversary({"server"})
    scores = recognised(run.view(server, challenge=game.challenge(run)), seed)
    return game.score(run, Guess(attack="row-matching", adversary=server, membership=scores)).advantage
