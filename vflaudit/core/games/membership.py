"""Membership: tell rows that the model was trained on from rows of the same population that nobody held."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import Adversary, DistributionSample
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.view import Challenge
from vflaudit.errors import InputError

RATES = {"tpr_at_1%_fpr": 0.01, "tpr_at_0.1%_fpr": 0.001}
POINTS = 60  # of the ROC curve that a result keeps
EXPOSED, EXPOSURE = 10, 0.05  # so many members at most, and only those whom so few others outscore


class Membership(Game):
    """Tell training rows from fresh rows of the population; scored by AUC and by TPR at 1% and 0.1% FPR."""

    name: ClassVar[str] = "membership"
    metric: ClassVar[str] = "auc"
    candidates: int | None = None

    def _draw(self, run: Run) -> tuple[Array, Array, Array]:
        """(member rows, pool rows, shuffle): half members, half from the pool; the same whenever it is asked.

        Pool rows are taken from the end of the order whose beginning a `DistributionSample` shows, so that as few as
        possible are known beforehand.
        """
        pool = run.data.aux
        members = run.data.aligned("train")
        half = min(len(members), len(pool) if pool is not None else 0)
        if self.candidates is not None:
            half = min(half, self.candidates // 2)
        if half < 2:
            raise InputError("membership needs rows that no party holds: load the data with aux > 0")
        rng = stream(run.seed, "game", self.name)
        assert pool is not None
        return (
            rng.choice(members, half, replace=False),
            DistributionSample(len(pool)).rows(run)[-half:],
            rng.permutation(2 * half),
        )

    def challenge(self, run: Run) -> Challenge:
        """Candidates in random order, with their features at every party and their labels."""
        members, strangers, order = self._draw(run)
        pool = run.data.aux
        assert pool is not None
        features = {
            party: np.concatenate([run.data.cluster_values(party)[members], pool.blocks[party].values[strangers]])[
                order
            ]
            for party in run.data.blocks
        }
        labels = np.concatenate([run.data.labels[members], pool.labels[strangers]])[order]
        return Challenge(features, labels)

    def secret(self, run: Run) -> Array:
        """True for the candidates that were trained on."""
        members, _, order = self._draw(run)
        return (np.arange(2 * len(members)) < len(members))[order]

    def _undecided(self, run: Run, adversary: Adversary) -> Array:
        """False for the candidates of whom the adversary knew beforehand: its known people, its own sample."""
        members, strangers, order = self._draw(run)
        others = [item.rows(run) for item in adversary.knows if isinstance(item, DistributionSample)]
        known = [np.isin(members, adversary.known_rows(run)), np.isin(strangers, others)]
        return ~np.concatenate(known)[order]

    def _recognised(self, run: Run, adversary: Adversary) -> Array:
        """Candidates whose row a corrupted party finds in its own table: no attack is needed to call them members."""
        features = self.challenge(run).features
        found = np.zeros(len(self.secret(run)), dtype=bool)
        for party in adversary.corrupts & set(run.data.blocks):
            held = {row.tobytes() for row in run.data.blocks[party].values[run.data.aligned("train")]}
            found |= np.array([row.tobytes() in held for row in features[party]])
        return found

    def score(self, run: Run, guess: Guess) -> Score:
        """`guess.membership`: one score per candidate, higher means member.

        Chance is an AUC of 0.5. A corrupted party with columns does better from its own table alone: that is the
        baseline then. Candidates that the adversary knew beforehand are not scored.
        """
        truth = self.secret(run)
        scores = guess.membership
        if scores is None or np.shape(scores) != truth.shape:
            raise InputError(
                f"attack {guess.attack!r} must give one membership score for each of {len(truth)} candidates"
            )
        undecided = self._undecided(run, guess.adversary)
        truth, scores = truth[undecided], np.asarray(scores)[undecided]
        if min(truth.sum(), (~truth).sum()) < 2:
            raise InputError(
                "the adversary knows of almost every candidate beforehand: membership is no secret from it"
            )
        value, influence = stats.auc_influence(truth, scores)
        members, others = int(truth.sum()), int((~truth).sum())
        low, high = stats.auc_interval(value, influence, members, others)
        baseline, gained = 0.5, (low - 0.5, high - 0.5)
        recognised = self._recognised(run, guess.adversary)[undecided]
        if recognised.any():
            baseline, effect = stats.auc_influence(truth, recognised.astype(float))
            gained = stats.difference_interval(value - baseline, influence - effect, smaller_class=min(members, others))
        rng = stream(run.seed, "score", self.name)
        accuracy, interval = stats.balanced_accuracy_split(truth, scores, rng)
        metrics: dict[str, Any] = {"auc": value, "auc_interval": [low, high], "members": members, "non_members": others}
        metrics |= {"balanced_accuracy": accuracy, "balanced_accuracy_interval": list(interval)}
        for name, rate in RATES.items():
            metrics |= _rate(name, rate, truth, scores, rng)
        metrics |= {"roc": roc_points(truth, scores), "most_exposed": exposed(truth, scores, np.flatnonzero(undecided))}
        return self._score(
            guess, party=None, score=value, baseline=baseline, interval=gained, rows=len(truth), metrics=metrics
        )


def _rate(name: str, rate: float, truth: Array, scores: Array, rng: np.random.Generator) -> dict[str, Any]:
    """The true positive rate at a false positive rate, with its interval, or why the data cannot tell."""
    found = stats.tpr_at_fpr(truth, scores, rate, rng)
    if found is None:
        reason = f"{int((~truth).sum()):,} non-members cannot resolve a rate of {rate:.1%}: {10 / rate:,.0f} are needed"
        return {name: None, f"{name}_interval": None, f"{name}_reason": reason}
    return {name: found.tpr, f"{name}_interval": list(found.target_interval)}


def roc_points(truth: Array, scores: Array) -> dict[str, list[float]]:
    """At most `POINTS` points of the ROC curve, at false positive rates that are even on a log scale."""
    fpr, tpr = stats.roc(truth, scores)
    others = int((~truth).sum())
    at = np.unique(np.geomspace(1, others, POINTS).round()) / others
    before = np.searchsorted(fpr, at, "right") - 1
    after = np.minimum(before + 1, len(fpr) - 1)
    step = np.where(after > before, fpr[after] - fpr[before], 1.0)
    height = tpr[before] + (at - fpr[before]) / step * (tpr[after] - tpr[before])
    return {"fpr": at.round(6).tolist(), "tpr": height.round(6).tolist()}


def exposed(truth: Array, scores: Array, places: Array) -> list[dict[str, float]]:
    """The members that hardly any non-member outscores: their places among the candidates, and how few do.

    `fpr` is (1 + non-members that score as high) / (1 + non-members): who is that sure to be called a member.
    """
    others, members = np.sort(scores[~truth]), np.flatnonzero(truth)
    as_high = len(others) - np.searchsorted(others, scores[members], "left")
    chance = (1 + as_high) / (1 + len(others))
    order = np.lexsort((-scores[members], chance))[:EXPOSED]
    return [
        {"candidate": int(places[members[one]]), "fpr": float(chance[one])} for one in order if chance[one] <= EXPOSURE
    ]
