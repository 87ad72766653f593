"""Evidence about membership: rates against what differential privacy allows, and threats that are real somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vflaudit.accounting.tradeoff import most_found
from vflaudit.claims.base import Find, Measured, Rule, Ruling
from vflaudit.lab.experiment import Experiment

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
