"""A published promise as a prediction about numbers, and the rule that compares the two.

The rule and its threshold stand in the claim before anything runs; the verdict is a function of what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from vflaudit.core.statistics import t_interval
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import Result

Ruling = Literal["upheld", "refuted", "conditional", "inconclusive"]
Find = Callable[[Experiment, int], Result]


@dataclass(frozen=True)
class Measured:
    """A number per seed, its mean and its t-interval over seeds."""

    what: str
    adversary: str
    measure: str
    values: tuple[float, ...]
    within_paper: bool = True
    keys: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float]:
        """95% over seeds."""
        return t_interval(self.values)


class Evidence(Protocol):
    """Something that yields a number per seed, from experiments or from a computation of its own."""

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """What must be run for it, apart from the seed."""

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        """The numbers, given the results."""


@dataclass(frozen=True)
class Attacked:
    """The advantage of an attack. `within_paper` is False for an adversary stronger than the paper's own."""

    what: str
    experiment: Experiment
    within_paper: bool = True

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (self.experiment,)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [find(self.experiment, seed) for seed in seeds]
        return Measured(
            what=self.what,
            adversary=found[0].adversary,
            measure=f"advantage ({found[0].metric})",
            values=tuple(result.advantage for result in found),
            within_paper=self.within_paper,
            keys=tuple(result.key for result in found),
        )


@dataclass(frozen=True)
class Compared:
    """A number of one target against that of another, seed by seed on the same data: a difference, or a ratio."""

    what: str
    first: Experiment
    second: Experiment
    of: Callable[[Result], float]
    measure: str
    ratio: bool = False

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (self.first, self.second)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        pairs = [(find(self.first, seed), find(self.second, seed)) for seed in seeds]
        numbers = [(self.of(a), self.of(b)) for a, b in pairs]
        values = tuple(a / b if self.ratio else a - b for a, b in numbers)
        keys = tuple(result.key for pair in pairs for result in pair)
        return Measured(self.what, "nobody", self.measure, values, keys=keys)


@dataclass(frozen=True)
class Computed:
    """A number of its own: algebra, counts, costs, or an attack that is not an experiment. `function` gets the seed.

    `within_paper` is False where it rests on an assumption that the paper does not make.
    """

    what: str
    function: Callable[[int], float]
    measure: str
    adversary: str = "nobody"
    within_paper: bool = True
    experiments: tuple[Experiment, ...] = ()

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        values = tuple(float(self.function(seed)) for seed in seeds)
        return Measured(self.what, self.adversary, self.measure, values, self.within_paper)


@dataclass(frozen=True)
class Rule:
    """What the numbers must be for the claim to hold."""

    threshold: float
    says: Literal["at most", "above", "within"]

    def ruling(self, rows: Sequence[Measured]) -> Ruling:
        """Upheld if surely so in every row, refuted if surely not in one; rows beyond the paper make it conditional."""
        broken = [row for row in rows if self.breaks(row)]
        if any(row.within_paper for row in broken):
            return "refuted"
        if broken:
            return "conditional"
        return "upheld" if rows and all(self.holds(row) for row in rows) else "inconclusive"

    def holds(self, row: Measured) -> bool:
        """The whole interval is where the claim says."""
        low, high = row.interval
        if self.says == "at most":
            return high <= self.threshold
        if self.says == "above":
            return low > self.threshold
        return -self.threshold <= low and high <= self.threshold

    def breaks(self, row: Measured) -> bool:
        """The whole interval is where the claim says it is not."""
        low, high = row.interval
        if self.says == "at most":
            return low > self.threshold
        if self.says == "above":
            return high <= self.threshold
        return low > self.threshold or high < -self.threshold


def hidden(threshold: float) -> Rule:
    """Something stays hidden: no advantage exceeds the threshold."""
    return Rule(threshold, "at most")


def leaks(threshold: float) -> Rule:
    """Something leaks, as the paper admits: every advantage exceeds the threshold."""
    return Rule(threshold, "above")


def above(threshold: float) -> Rule:
    """Every number exceeds the threshold."""
    return Rule(threshold, "above")


def at_most(threshold: float) -> Rule:
    """No number exceeds the threshold."""
    return Rule(threshold, "at most")


def within(margin: float) -> Rule:
    """Every number lies within the margin around zero."""
    return Rule(margin, "within")


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
    evidence: tuple[Evidence, ...]
    rule: Rule
    least_seeds: int = 1  # small effects on small test sets need more seeds than the run's default

    @property
    def name(self) -> str:
        """paper/id."""
        return f"{self.paper}/{self.id}"


def row_json(row: Measured, rule: Rule) -> dict[str, Any]:
    """A row of evidence for claims.json."""
    return {
        "what": row.what,
        "adversary": row.adversary,
        "measure": row.measure,
        "mean": float(np.mean(row.values)),
        "interval": list(row.interval),
        "threshold": rule.threshold,
        "seeds": len(row.values),
        "within_paper": row.within_paper,
        "keys": list(row.keys),
    }
