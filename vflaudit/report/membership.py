"""Membership in a report: rates at few false alarms, the ROC curves on log axes, and who is most exposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vflaudit.accounting.tradeoff import most_found
from vflaudit.core.games.membership import EXPOSURE, RATES
from vflaudit.core.statistics import t_interval
from vflaudit.lab.result import Result
from vflaudit.report.audit import Audit
from vflaudit.report.style import NARROW, SMALL, WIDTH, Plot, Theme, bare, new_figure, plot, wrapped
from vflaudit.report.summary import Row, mean
from vflaudit.report.words import count, interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 8  # targets in one figure
MOST_LINES = 6  # attacks in one panel
MOST_EXPOSED = 3  # people told of for each seed
LOWEST = 1e-3  # where the axes begin at the latest
DELTA = 1e-5  # of a stated budget that says none


@dataclass(frozen=True)
class Rate:
    """A rate over the seeds of a row, or why there is none."""

    value: float | None
    ends: tuple[float, float] | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return self.reason or "–"
        return f"{number(self.value)} {interval(self.ends, sign=False)}"


@dataclass(frozen=True)
class Attacked:
    """A row about membership, with what only such rows have."""

    row: Row
    accuracy: Rate
    rates: dict[str, Rate]
    non_members: float
    shadows: int | None
    exposed: dict[int, list[Mapping[str, Any]]]  # by seed
    curve: tuple[list[float], list[float]]

    @property
    def people(self) -> str:
        """Who is most exposed, by seed: places among the candidates, nobody's data."""
        told = [
            f"seed {seed}: " + ", ".join(f"#{one['candidate']} ({one['fpr']:.1%})" for one in found[:MOST_EXPOSED])
            for seed, found in self.exposed.items()
            if found
        ]
        return "; ".join(told) or f"nobody is above all but {EXPOSURE:.0%} of the others"


def find_membership(audit: Audit) -> list[Attacked]:
    """Every row about membership, in the order of the report: findings, then controls."""
    by_key = {result.key: result for result in audit.results}
    rows = [row for row in (*audit.findings, *audit.controls) if row.game == "membership"]
    return [_attacked(row, [by_key[key] for key in row.keys if key in by_key]) for row in rows]


def _attacked(row: Row, group: Sequence[Result]) -> Attacked:
    tables = [result.metrics for result in group]
    shadows = {result.notes.get("shadows") for result in group}
    return Attacked(
        row=row,
        accuracy=_rate("balanced_accuracy", tables),
        rates={name: _rate(name, tables) for name in RATES},
        non_members=mean(_number(table.get("non_members")) for table in tables),
        shadows=next(iter(shadows)) if len(shadows) == 1 else None,
        exposed={result.seed: list(result.metrics.get("most_exposed") or ()) for result in group},
        curve=_curve([table["roc"] for table in tables if table.get("roc")]),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _rate(name: str, tables: Sequence[Mapping[str, Any]]) -> Rate:
    """The mean over seeds with Student's t; the exact interval where there is one seed."""
    values = [float(table[name]) for table in tables if table.get(name) is not None]
    if len(values) < len(tables) or not values:
        reasons = [str(table[f"{name}_reason"]) for table in tables if table.get(f"{name}_reason")]
        return Rate(None, reason=reasons[0] if reasons else "")
    if len(values) == 1:
        ends = tables[0].get(f"{name}_interval") or (0.0, 1.0)
        return Rate(values[0], (float(ends[0]), float(ends[1])))
    low, high = t_interval(values)
    return Rate(mean(values), (max(low, 0.0), min(high, 1.0)))


def _curve(curves: Sequence[Mapping[str, Sequence[float]]]) -> tuple[list[float], list[float]]:
    """The mean ROC curve over seeds, from the lowest rate that every seed has."""
    import numpy as np

    if not curves:
        return [], []
    start = max(curve["fpr"][0] for curve in curves)
    grid = np.unique(np.concatenate([curve["fpr"] for curve in curves]))
    grid = grid[grid >= start]
    heights = np.mean([np.interp(grid, curve["fpr"], curve["tpr"]) for curve in curves], axis=0)
    return grid.tolist(), heights.tolist()


# --- figure -------------------------------------------------------------------------------------------------


def curves(attacked: Sequence[Attacked]) -> list[Plot]:
    """One figure per dataset: a panel for every target, a line for every attack, both axes logarithmic."""
    datasets: dict[str, dict[str, list[Attacked]]] = {}
    for one in attacked:
        if one.curve[0] and not one.row.control:
            datasets.setdefault(one.row.dataset, {}).setdefault(one.row.target, []).append(one)
    found = []
    for dataset, targets in datasets.items():
        shown = dict(list(targets.items())[:MOST_PANELS])
        caption = (
            "True against false positive rate, both on log axes, as means over seeds; dotted is guessing. Left of the "
            "grey edge fewer than ten non-members decide, so the data cannot resolve the curve there."
        )
        if any(stated_bound(group[0].row) for group in shown.values()):
            caption += " Dash-dotted is the most that the epsilon allows that was set, if it is spent as stated."
        if len(shown) < len(targets):
            caption += f" {len(shown)} of {len(targets)} targets are drawn; the table has all."
        told = [f"{one.row.attack} on {name}: AUC {number(one.row.score)}" for name, a in shown.items() for one in a]
        alt = f"ROC curves of membership attacks on {dataset}, log axes. {'; '.join(told[:10])}."
        wide, narrow = (partial(_panels, shown, columns, width) for columns, width in ((2, WIDTH), (1, NARROW)))
        found.append(plot(f"Members found at few false alarms: {dataset}", alt, caption, wide, narrow))
    return found


def _panels(targets: Mapping[str, Sequence[Attacked]], columns: int, width: float, theme: Theme) -> Figure:
    from matplotlib.lines import Line2D

    columns = min(columns, len(targets))
    lines = math.ceil(len(targets) / columns)
    attacks = sorted({one.row.attack for group in targets.values() for one in group})[:MOST_LINES]
    side, space = width / columns, 0.62
    legend = 0.2 * math.ceil(len(attacks) / (3 if columns == 2 else 2)) + 0.15
    height = lines * (side * 0.72 + space) + legend
    figure = new_figure(height, width)
    for place, (name, group) in enumerate(targets.items()):
        down, across = divmod(place, columns)
        left = (across * side + 0.44) / width
        bottom = 1 - ((down + 1) * (side * 0.72 + space) - 0.38) / height
        axes = figure.add_axes((left, bottom, (side - 0.56) / width, side * 0.72 / height))
        _panel(axes, group, attacks, theme)
        axes.set_title("\n".join(wrapped(name, int(15 * side), 2)), fontsize=SMALL, color=theme.ink, loc="left")
        if across == 0:
            axes.set_ylabel("true positive rate", fontsize=SMALL)
        if place + columns >= len(targets):
            axes.set_xlabel("false positive rate", fontsize=SMALL)
    handles = [Line2D([], [], **_line(attacks, attack, theme)) for attack in attacks]
    figure.legend(handles, attacks, loc="lower center", ncols=3 if columns == 2 else 2, frameon=False,
                  fontsize=7.8, labelcolor=theme.ink, handlelength=2.6)  # fmt: skip
    return figure


def _panel(axes: Axes, group: Sequence[Attacked], attacks: Sequence[str], theme: Theme) -> None:
    bare(axes, theme, grid="both")
    start = min(LOWEST, *(one.curve[0][0] for one in group))
    axes.set(xscale="log", yscale="log", xlim=(start, 1), ylim=(start, 1.15))
    powers = [power for power in (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if power >= start]
    axes.set_xticks(powers, [f"{power:g}" for power in powers])
    axes.set_yticks(powers, [f"{power:g}" for power in powers])
    axes.minorticks_off()
    axes.plot([start, 1], [start, 1], color=theme.muted, linewidth=1, linestyle=":")
    bound = stated_bound(group[0].row)
    if bound:
        at = [start ** (1 - place / 100) for place in range(101)]
        axes.plot(at, [bound(rate) for rate in at], color=theme.gate, linewidth=1.3, linestyle="-.")
    resolved = 10 / mean(one.non_members for one in group)
    if start < resolved < 1:
        axes.axvspan(start, resolved, color=theme.grid, alpha=0.55, linewidth=0)
    for one in group:
        if one.row.attack in attacks:
            rates = [max(height, start) for height in one.curve[1]]
            axes.plot(one.curve[0], rates, **_line(attacks, one.row.attack, theme))


def stated_bound(row: Row) -> Callable[[float], float] | None:
    """The largest TPR at a FPR under (epsilon, delta)-differential privacy, where epsilon was set."""
    asked = row.experiment.get("set") or {}
    epsilon = asked.get("epsilon", asked.get("protocol.epsilon"))
    if not isinstance(epsilon, int | float):
        return None
    delta = float((row.parameters.get("protocol") or {}).get("delta") or DELTA)
    return lambda fpr: float(most_found(epsilon, delta, fpr))


def _line(attacks: Sequence[str], attack: str, theme: Theme) -> dict[str, Any]:
    """Colour and dashes of an attack, the same in every panel."""
    place = attacks.index(attack)
    return {
        "color": theme.lines[place],
        "linewidth": 1.7,
        "linestyle": ("-", (0, (5, 1.5)), (0, (2, 1)))[place % 3],
    }


def resolution(attacked: Sequence[Attacked]) -> str:
    """A sentence about rates that the data cannot resolve."""
    lacking = [one for one in attacked if any(rate.value is None for rate in one.rates.values())]
    if not lacking:
        return ""
    return (
        f"{count(len(lacking), 'row')} of {len(attacked)} cannot resolve a rate: that takes ten non-members at the "
        "rate, 1,000 for 1% and 10,000 for 0.1%."
    )
