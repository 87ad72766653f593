"""Many results, few rows: one row for all seeds of an experiment, with what the numbers say in plain words.

Nothing here reads or writes files, and no finding is written down: each follows from an interval.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vflaudit.core.statistics import t_interval
from vflaudit.lab.result import Result
from vflaudit.report import words

ALMOST_EVERYTHING = 0.95  # lower end of the score
HEAVY = {"r2": 0.5, "hit_rate": 0.5, "auc": 0.25}  # lower end of the advantage: half of what the metric allows
LITTLE = 0.1  # lower end of the advantage below which a leak is called small
CONTROL_WIN = 0.1  # a positive control must win by more than this
DEFAULT_GATE = 0.1  # largest acceptable advantage where nobody chose one

# Fields of an experiment that are part of the name of the data, where they tell two experiments apart.
DESIGN = (
    "data", "parties", "partition", "split", "label", "task", "overlap", "alpha", "aux", "rows", "record"
)  # fmt: skip

LEVELS = {
    "everything": "recovers almost everything",
    "heavy": "leaks heavily",
    "leak": "leaks",
    "little": "leaks at least a little",
    "unsettled": "no leak found by this attack, but too uncertain to exclude one",
    "none": "no leak found by this attack",
}
LEAKS = ("everything", "heavy", "leak", "little")


@dataclass(frozen=True)
class Row:
    """All seeds of one experiment."""

    name: str
    target: str
    dataset: str
    adversary: str
    attack: str
    party: str | None
    game: str
    metric: str
    control: str | None
    score: float
    score_interval: tuple[float, float]
    baseline: float
    advantage: float
    interval: tuple[float, float]
    seeds: int
    scored: float
    verified: tuple[int, int]
    columns: dict[str, float]
    utility: dict[str, float]
    experiment: dict[str, Any]
    parameters: dict[str, Any]
    keys: tuple[str, ...] = field(repr=False)
    costs: dict[str, float] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """How much leaks, from the lower ends of the intervals."""
        low, high = self.interval
        if not low > 0:
            return "unsettled" if low <= 0 and high > LITTLE else "none"
        if self.metric == "epsilon_lower":
            return "leak" if low > LITTLE else "little"
        if self.score_interval[0] >= ALMOST_EVERYTHING:
            return "everything"
        return "heavy" if low >= HEAVY[self.metric] else "leak" if low >= LITTLE else "little"

    @property
    def finding(self) -> str:
        """The same in words."""
        return LEVELS[self.level]

    @property
    def leaks(self) -> bool:
        """True if the whole interval of the advantage is above zero."""
        return self.level in LEAKS

    @property
    def strength(self) -> float:
        """The lower end of the advantage on one scale for all metrics, for sorting only.

        An AUC counts twice (as 2 AUC - 1); epsilon as the largest TPR - FPR that it allows, tanh(epsilon / 2).
        """
        low = self.interval[0]
        return 2 * low if self.metric == "auc" else math.tanh(low / 2) if self.metric == "epsilon_lower" else low

    @property
    def problem(self) -> str | None:
        """For a control: what is wrong with it, or None."""
        low = self.interval[0]
        numbers = f"advantage {words.signed(self.advantage)} {words.interval(self.interval)}"
        if self.control == "positive" and not low > CONTROL_WIN:
            return f"{self.attack} should win on {self.target} ({self.dataset}) but did not: {numbers}"
        if self.control == "negative" and low > 0:
            return f"{self.attack} should learn nothing from {self.target} ({self.dataset}) but did: {numbers}"
        return None

    def describe(self) -> str:
        """One line."""
        about = f", {self.party}" if self.party else ""
        return f"{self.attack} on {self.target} ({self.dataset}{about}): {self.adversary}"


def mean(values: Iterable[float]) -> float:
    """The plain mean, summed exactly."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def identity(result: Result) -> str:
    """What all seeds of an experiment have in common."""
    experiment = {name: value for name, value in result.experiment.items() if name != "seed"}
    rest = [result.protocol, result.dataset.name, result.attack, result.game, result.party, result.metric]
    return json.dumps([experiment, rest, result.adversary, result.control], sort_keys=True, default=str)


def varying(results: Sequence[Result]) -> dict[str, set[str]]:
    """For each dataset, the design fields that differ between its experiments."""
    seen: dict[str, dict[str, set[str]]] = {}
    for result in results:
        fields = seen.setdefault(result.dataset.name, {name: set() for name in DESIGN})
        for name in DESIGN:
            fields[name].add(json.dumps(result.experiment.get(name), default=str))
    return {data: {name for name in DESIGN if len(fields[name]) > 1} for data, fields in seen.items()}


def target_label(result: Result) -> str:
    """Protocol, what was set on it, and its defenses."""
    with_set = result.protocol + settings(result, "protocol")
    defenses = result.experiment.get("defenses") or ()
    return " + ".join([with_set, *map(str, defenses)])


def settings(result: Result, side: str) -> str:
    """' (activation_at=server)': what was set by hand on the protocol or the attack."""
    known = result.parameters.get(side) or {}
    other = result.parameters.get("attack" if side == "protocol" else "protocol") or {}
    shown = []
    for name, value in (result.experiment.get("set") or {}).items():
        owner, dot, short = name.partition(".")
        mine = owner == side if dot else name in known or (side == "protocol" and name not in other)
        if mine:
            shown.append(f"{short if dot else name}={value}")
    return f" ({', '.join(shown)})" if shown else ""


def dataset_label(result: Result, differs: dict[str, set[str]]) -> str:
    """The name of the data, and what tells it from the same data elsewhere in the report."""
    fields = [name for name in DESIGN if name in differs.get(result.dataset.name, ())]
    shown = [f"{name}={result.experiment.get(name)}" for name in fields if result.experiment.get(name) is not None]
    return result.dataset.name + (f" ({', '.join(shown)})" if shown else "")


def summarise(results: Sequence[Result]) -> list[Row]:
    """One row per experiment, its seeds taken together, in the order asked for."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(identity(result), []).append(result)
    differs = varying(results)
    return [_row(f"row-{place}", group, differs) for place, group in enumerate(groups.values(), start=1)]


def _row(name: str, group: list[Result], differs: dict[str, set[str]]) -> Row:
    first = group[0]
    advantage, baseline = mean(r.advantage for r in group), mean(r.baseline for r in group)
    if len(group) == 1:  # one seed says nothing about seeds: the interval over its rows
        ends = (first.interval[0], first.interval[1])
        score_ends = (baseline + ends[0], baseline + ends[1])
    else:
        ends = t_interval([r.advantage for r in group])
        score_ends = t_interval([r.score for r in group])
    checks = [r.verified for r in group if r.verified is not None]
    return Row(
        name=name,
        target=target_label(first),
        dataset=dataset_label(first, differs),
        adversary=first.adversary,
        attack=first.attack + settings(first, "attack"),
        party=first.party,
        game=first.game,
        metric=first.metric,
        control=first.control,
        score=mean(r.score for r in group),
        score_interval=score_ends,
        baseline=baseline,
        advantage=advantage,
        interval=ends,
        seeds=len(group),
        scored=mean(r.rows for r in group),
        verified=(sum(checks), len(checks)),
        columns=columns(group),
        utility=averages(r.utility for r in group),
        experiment={key: value for key, value in first.experiment.items() if key != "seed"},
        parameters=first.parameters,
        keys=tuple(r.key for r in group),
        costs=averages({key: r.costs.get(key) for key in ("rounds", "messages", "bytes")} for r in group),
    )


def averages(tables: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The mean of every entry, over the tables that have it."""
    found: dict[str, list[float]] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, []).append(float(value))
    return {key: mean(values) for key, values in found.items()}


def columns(group: Sequence[Result]) -> dict[str, float]:
    """R2 of each column, over the seeds in which the party held it."""
    tables = (r.metrics.get("r2_by_column") for r in group)
    return averages(table for table in tables if isinstance(table, dict))


def strongest_first(rows: Iterable[Row]) -> list[Row]:
    """Sorted by what leaks for certain; equals stay in the order asked for."""
    return sorted(rows, key=lambda row: -row.strength)


# --- series -------------------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"^([a-z][a-z0-9-]*)=(\d+)((?:,.*)?)$")
_KNOWN = {
    "known-samples": "people whose rows the adversary knows",
    "distribution": "other rows of the same population that the adversary knows",
    "labels": "labels that the adversary knows",
}


@dataclass(frozen=True)
class Series:
    """Rows that differ only in how much the adversary knows of one thing."""

    option: str
    points: tuple[tuple[int, Row], ...]

    @property
    def axis(self) -> str:
        """What is counted."""
        return _KNOWN.get(self.option, self.option)

    @property
    def first(self) -> Row:
        """The row with the least knowledge."""
        return self.points[0][1]


def find_series(rows: Sequence[Row]) -> list[Series]:
    """Every set of two or more rows that differ only in one number of `knows`."""
    found: dict[str, dict[int, Row]] = {}
    options: dict[str, str] = {}
    for row in rows:
        knows = list(row.experiment.get("knows") or ())
        for place, item in enumerate(knows):
            match = _NUMBERED.match(str(item))
            if not match or int(match[2]) < 1:
                continue
            template = [*knows[:place], f"{match[1]}=*{match[3]}", *knows[place + 1 :]]
            same = [row.experiment | {"knows": template}, row.party, row.game, row.metric, row.control, row.target]
            key = json.dumps([place, row.dataset, *same], sort_keys=True, default=str)
            found.setdefault(key, {})[int(match[2])] = row
            options[key] = match[1]
    return [Series(options[key], tuple(sorted(points.items()))) for key, points in found.items() if len(points) > 1]


# --- gate ---------------------------------------------------------------------------------------------------


def failure(row: Row, gate: float | None) -> str | None:
    """Why this row fails the gate, or None: a control that misbehaves, or a leak that is surely above the gate."""
    if row.control:
        return f"control failed: {row.problem}" if row.problem else None
    limit = DEFAULT_GATE if gate is None else gate
    if row.interval[0] > limit:
        numbers = f"advantage {words.signed(row.advantage)} {words.interval(row.interval)}"
        return f"{row.describe()}: {numbers} is above the gate of {limit:g}"
    return None


def gate_failures(rows: Iterable[Row], gate: float | None = None) -> list[str]:
    """One sentence for everything that fails the gate; empty if nothing does."""
    return [text for text in (failure(row, gate) for row in rows) if text is not None]
