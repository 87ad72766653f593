"""A published promise as a prediction about scores, and the rule that compares the two.

The rule and its threshold stand in the claim before anything runs; the verdict is a function of what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vflaudit.core.statistics import t_interval
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import Result

Ruling = Literal["upheld", "refuted", "conditional", "inconclusive"]


@dataclass(frozen=True)
class Trial:
    """One experiment of a claim. `within_paper` is False for an adversary stronger than the paper's own."""

    what: str
    experiment: Experiment
    within_paper: bool = True


@dataclass(frozen=True)
class Measured:
    """A number per seed, its mean and its t-interval over seeds."""

    what: str
    adversary: str
    measure: str
    values: tuple[float, ...]
    threshold: float
    within_paper: bool
    keys: tuple[str, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """95% over seeds."""
        return t_interval(self.values)

    def to_json(self) -> dict[str, Any]:
        """A row of evidence."""
        return {
            "what": self.what,
            "adversary": self.adversary,
            "measure": self.measure,
            "mean": float(np.mean(self.values)),
            "interval": list(self.interval),
            "threshold": self.threshold,
            "seeds": len(self.values),
            "within_paper": self.within_paper,
            "keys": list(self.keys),
        }


Judge = Callable[[Sequence[Trial], Sequence[Sequence[Result]]], tuple[Ruling, list[Measured]]]


@dataclass(frozen=True)
class Claim:
    """What a paper says, how we read it, and what would refute it."""

    paper: str
    id: str
    section: str
    statement: str
    reading: Literal["literal", "implied"]
    refuted_if: str
    measured_on: str
    trials: tuple[Trial, ...]
    judge: Judge
    least_seeds: int = 1  # small effects on small test sets need more seeds than the run's default

    @property
    def name(self) -> str:
        """paper/id."""
        return f"{self.paper}/{self.id}"


def _advantages(threshold: float, trials: Sequence[Trial], results: Sequence[Sequence[Result]]) -> list[Measured]:
    return [
        Measured(
            what=trial.what,
            adversary=found[0].adversary,
            measure=f"advantage ({found[0].metric})",
            values=tuple(result.advantage for result in found),
            threshold=threshold,
            within_paper=trial.within_paper,
            keys=tuple(result.key for result in found),
        )
        for trial, found in zip(trials, results, strict=True)
    ]


def hidden(threshold: float) -> Judge:
    """The claim says that something stays hidden: no adversary's advantage exceeds the threshold."""

    def judge(trials: Sequence[Trial], results: Sequence[Sequence[Result]]) -> tuple[Ruling, list[Measured]]:
        rows = _advantages(threshold, trials, results)
        broken = [row for row in rows if row.interval[0] > threshold]
        if any(row.within_paper for row in broken):
            return "refuted", rows
        if broken:
            return "conditional", rows
        return ("upheld" if all(row.interval[1] <= threshold for row in rows) else "inconclusive"), rows

    return judge


def leaks(threshold: float) -> Judge:
    """The claim says that something leaks: the advantage exceeds the threshold in every trial."""

    def judge(trials: Sequence[Trial], results: Sequence[Sequence[Result]]) -> tuple[Ruling, list[Measured]]:
        rows = _advantages(threshold, trials, results)
        if all(row.interval[0] > threshold for row in rows):
            return "upheld", rows
        return ("refuted" if any(row.interval[1] <= threshold for row in rows) else "inconclusive"), rows

    return judge


def _difference(
    measure: str, threshold: float, trials: Sequence[Trial], results: Sequence[Sequence[Result]]
) -> Measured:
    """First minus second, seed by seed on the same data."""
    first, second = results
    values = tuple(a.utility[measure] - b.utility[measure] for a, b in zip(first, second, strict=True))
    keys = tuple(result.key for result in (*first, *second))
    what = f"{trials[0].what} minus {trials[1].what}"
    return Measured(what, "nobody", f"difference in {measure}", values, threshold, True, keys)


def as_useful(measure: str, margin: float) -> Judge:
    """The claim says that two targets are equally useful: their difference lies within the margin."""

    def judge(trials: Sequence[Trial], results: Sequence[Sequence[Result]]) -> tuple[Ruling, list[Measured]]:
        row = _difference(measure, margin, trials, results)
        low, high = row.interval
        if -margin <= low and high <= margin:
            return "upheld", [row]
        return ("refuted" if low > margin or high < -margin else "inconclusive"), [row]

    return judge


def more_useful(measure: str, threshold: float = 0.0) -> Judge:
    """The claim says that the first target is better than the second by more than the threshold."""

    def judge(trials: Sequence[Trial], results: Sequence[Sequence[Result]]) -> tuple[Ruling, list[Measured]]:
        row = _difference(measure, threshold, trials, results)
        low, high = row.interval
        if low > threshold:
            return "upheld", [row]
        return ("refuted" if high <= threshold else "inconclusive"), [row]

    return judge
