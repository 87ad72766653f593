"""Evidence and rules that FedOnce's claims need beside the common ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vflaudit.claims.base import Find, Measured, Rule
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import Result


@dataclass(frozen=True)
class Audited(Rule):
    """Lower bounds on epsilon over the claimed epsilon. They can refute a claim; no audit can uphold one."""

    def holds(self, row: Measured) -> bool:
        return False


def not_refuted() -> Rule:
    """No bound exceeds the claimed epsilon."""
    return Audited(1.0, "at most")


def accuracy(result: Result) -> float:
    """On held-out rows."""
    return result.utility["accuracy"]


@dataclass(frozen=True)
class OverHosts:
    """A comparison of two targets, averaged over who is the host (Fig. 5, Table 8), seed by seed."""

    what: str
    pairs: tuple[tuple[Experiment, Experiment], ...]
    measure: str
    of: Callable[[Result], float] = accuracy
    within_paper: bool = True

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return tuple(experiment for pair in self.pairs for experiment in pair)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [[(find(first, seed), find(second, seed)) for first, second in self.pairs] for seed in seeds]
        values = tuple(float(np.mean([self.of(a) - self.of(b) for a, b in pairs])) for pairs in found)
        keys = tuple(result.key for pairs in found for pair in pairs for result in pair)
        return Measured(self.what, "nobody", self.measure, values, self.within_paper, keys)


def saving(one_shot: Result, rounds: Result) -> float:
    """Share of the bytes that SplitNN sends until it is as accurate as one-shot training, and one-shot does not.

    Accuracy is looked at after every epoch (`curve`). If SplitNN never gets there, all its bytes count, which is less
    than it would need. Negative if SplitNN gets there with less.
    """
    epochs = sorted(int(name.split("_")[1]) for name in rounds.utility if name.endswith("_bytes") and "epoch_" in name)
    reached = [e for e in epochs if rounds.utility[f"epoch_{e}_accuracy"] >= one_shot.utility["accuracy"]]
    needed = rounds.utility[f"epoch_{reached[0] if reached else epochs[-1]}_bytes"]
    return 1 - one_shot.utility["training_bytes"] / max(needed, 1.0)


@dataclass(frozen=True)
class Saved:
    """The saving in bytes at equal accuracy (Fig. 6), the best of several datasets for "at most"."""

    what: str
    pairs: tuple[tuple[Experiment, Experiment], ...]

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return tuple(experiment for pair in self.pairs for experiment in pair)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [[(find(first, seed), find(second, seed)) for first, second in self.pairs] for seed in seeds]
        values = tuple(max(saving(a, b) for a, b in pairs) for pairs in found)
        keys = tuple(result.key for pairs in found for pair in pairs for result in pair)
        return Measured(self.what, "nobody", "share of bytes saved", values, keys=keys)
