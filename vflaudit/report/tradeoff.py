"""Privacy against utility: what each variant of a protocol is worth, and what the strongest attack still learns.

Only like is compared with like. A point is the strongest attack on one target, among the adversaries (who is corrupted,
what they know, whom they attack) that all targets of the figure have faced; a target that met others only is left out
and named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vflaudit.core.statistics import t_interval
from vflaudit.lab.result import Result
from vflaudit.report.audit import UTILITY, Audit
from vflaudit.report.summary import Row, mean, strongest_first

ERRORS = ("rmse", "mae")  # smaller is better: shown with their sign turned
Interval = tuple[float, float]
Adversary = tuple[str, str | None]  # the sentence, and the party it attacks


@dataclass(frozen=True)
class Point:
    """One target: its utility (greater is better), and the row of the strongest attack on it."""

    number: int
    row: Row
    surest: Row  # what the finding rests on: another attack may gain less on average but surely, or be less settled
    defended: bool
    utility: float
    utility_interval: Interval | None  # none with one seed
    frontier: bool

    @property
    def name(self) -> str:
        """What tells this target from the others of its protocol."""
        changed = self.row.target.removeprefix(str(self.row.experiment.get("protocol", ""))).removeprefix(" + ").strip()
        return changed or "no defense"


@dataclass(frozen=True)
class Plane:
    """All targets of one protocol, dataset and game that faced the same adversaries."""

    protocol: str
    dataset: str
    game: str
    metric: str
    measure: str
    adversaries: tuple[Adversary, ...]
    points: tuple[Point, ...]
    left_out: tuple[str, ...]

    @property
    def title(self) -> str:
        """Whose plane."""
        return f"{self.protocol} on {self.dataset}, {self.game}"

    @property
    def worth(self) -> str:
        """What utility is measured in."""
        return f"minus {self.measure.upper()}" if self.measure in ERRORS else self.measure.replace("r2", "R²")

    @property
    def frontier(self) -> list[Point]:
        """Points that no other beats in both ways, from the least useful to the most."""
        return sorted((point for point in self.points if point.frontier), key=lambda point: point.utility)


def find_planes(audit: Audit) -> list[Plane]:
    """A plane for every protocol, dataset and game with two or more targets that can be compared."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Row]]] = {}
    for row in audit.rows:
        if not row.control:
            key = (str(row.experiment.get("protocol")), row.dataset, row.game, row.metric)
            groups.setdefault(key, {}).setdefault(row.target, []).append(row)
    results = {result.key: result for result in audit.results}
    found = (_plane(key, targets, results) for key, targets in groups.items())
    return [plane for plane in found if plane is not None]


def _plane(key: tuple[str, str, str, str], targets: dict[str, list[Row]], results: dict[str, Result]) -> Plane | None:
    faced = {target: list(dict.fromkeys(_adversary(row) for row in rows)) for target, rows in targets.items()}
    everybody = list(dict.fromkeys(one for met in faced.values() for one in met))
    most = max(everybody, key=lambda one: sum(one in met for met in faced.values()))  # the first of equals
    shown = [target for target, met in faced.items() if most in met]
    common = [one for one in everybody if all(one in faced[target] for target in shown)]
    values = {target: [results[key].utility for row in targets[target] for key in row.keys] for target in shown}
    measure = next((m for m in UTILITY if all(_finite(run.get(m)) for runs in values.values() for run in runs)), None)
    if len(shown) < 2 or measure is None:
        return None
    compared = {t: [row for row in targets[t] if _adversary(row) in common] for t in shown}
    rows = {t: max(compared[t], key=lambda row: row.advantage) for t in shown}
    surest = {t: _surest(rows[t], compared[t]) for t in shown}
    useful = {t: _utility([results[key] for row in targets[t] for key in row.keys], measure) for t in shown}
    places = {target: (useful[target][0], rows[target].advantage) for target in shown}
    best = {target for target in shown if not any(_beats(other, places[target]) for other in places.values())}
    order = sorted(shown, key=lambda t: (bool(rows[t].experiment.get("defenses")), rows[t].advantage, -useful[t][0]))
    points = [
        Point(number, rows[t], surest[t], bool(rows[t].experiment.get("defenses")), *useful[t], t in best)
        for number, t in enumerate(order, start=1)
    ]
    left_out = tuple(target for target in targets if target not in shown)
    return Plane(*key, measure, tuple(common), tuple(points), left_out)


def _surest(largest: Row, rows: Sequence[Row]) -> Row:
    """A row that surely leaks, else one that cannot exclude it; the largest if it is as good as any."""
    ordered = [largest, *strongest_first(rows)]
    leaking = [row for row in ordered if row.leaks]
    return next(iter(leaking or [row for row in ordered if row.level == "unsettled"]), largest)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _adversary(row: Row) -> Adversary:
    return row.adversary, row.party


def _utility(runs: Sequence[Result], measure: str) -> tuple[float, Interval | None]:
    """Mean and interval over seeds; attacks on the same run count once."""
    sign = -1.0 if measure in ERRORS else 1.0
    by_seed = {result.seed: sign * float(result.utility[measure]) for result in runs}
    values = list(by_seed.values())
    return mean(values), t_interval(values) if len(values) > 1 else None


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """At least as useful and as private, and better in one of them."""
    return one[0] >= other[0] and one[1] <= other[1] and one != other
