"""Members found in a differentially private model, against what its epsilon and delta allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vflaudit.accounting.tradeoff import most_found, one_sided
from vflaudit.core.games.membership import RATES
from vflaudit.lab.result import Result
from vflaudit.protocols.fedonce.protocol import PRIVATE
from vflaudit.protocols.fedonce.tables import DELTA
from vflaudit.report.audit import Audit
from vflaudit.report.style import NARROW, SMALL, WIDTH, Plot, Theme, bare, new_figure, plot, wrapped
from vflaudit.report.summary import Row, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SERIES = 6  # in one figure
TALL, TOP = 2.7, 2.5  # inches of the vertical axis, and where it ends
MARKS = ("o", "D", "s", "^", "v", "P")


@dataclass(frozen=True)
class Found:
    """The true positive rate of an attack at a false positive rate; `epsilon` is infinite where nothing is promised."""

    name: str
    epsilon: float
    delta: float
    tpr: float
    interval: tuple[float, float]
    fpr: float


def bounds(audit: Audit) -> list[Plot]:
    """A figure for every false positive rate that the data resolve, if there are models with a budget."""
    by_key = {result.key: result for result in audit.results}
    rows = [row for row in audit.findings if row.game == "membership"]
    drawn = []
    for metric, fpr in RATES.items():
        found = [
            one
            for row in rows
            if (one := _found(row, [by_key[key] for key in row.keys if key in by_key], metric, fpr)) is not None
        ]
        promised = {one.name for one in found if math.isfinite(one.epsilon)}
        if promised:
            drawn.append(figure_of([one for one in found if one.name in promised]))
    return drawn


def _found(row: Row, group: Sequence[Result], metric: str, fpr: float) -> Found | None:
    """The mean over seeds; the interval is the mean of each seed's exact (Clopper-Pearson) limits."""
    budget = promise(group[0].protocol, row.parameters.get("protocol", {}), group[0].dataset.name) if group else None
    tables = [result.metrics for result in group]
    if budget is None or any(table.get(metric) is None for table in tables):
        return None
    ends = [table[f"{metric}_interval"] for table in tables]
    interval = (mean(low for low, _ in ends), mean(high for _, high in ends))
    return Found(f"{row.attack}, {row.dataset}", *budget, mean(table[metric] for table in tables), interval, fpr)


def promise(protocol: str, parameters: Mapping[str, Any], data: str) -> tuple[float, float] | None:
    """(epsilon, delta) that a released model keeps, as published; infinite for FedOnce-L0; none for other targets."""
    if protocol != "fedonce" or parameters.get("variant") not in ("l0", *PRIVATE):
        return None
    delta = parameters["delta"] or DELTA.get(data.partition(":")[0], 1e-5)
    return float(parameters["epsilon"]) if parameters["variant"] in PRIVATE else math.inf, float(delta)


# --- figure -------------------------------------------------------------------------------------------------


def figure_of(found: Sequence[Found]) -> Plot:
    """Measured rates by epsilon, and the most that differential privacy allows. All are at one false positive rate."""
    fpr, delta = found[0].fpr, max(one.delta for one in found)
    names = list(dict.fromkeys(one.name for one in found))[:MOST_SERIES]
    shown = sorted((one for one in found if one.name in names), key=lambda one: (names.index(one.name), one.epsilon))
    above = [one for one in shown if one.interval[0] > most_found(one.epsilon, one.delta, fpr)]
    caption = (
        f"True positive rate at {fpr:.1%} false positives, as the mean over seeds of the rate and of its exact "
        f"(Clopper-Pearson) limits. Dashed: e^epsilon FPR + delta, with delta {delta:g}. Solid: the same for those who "
        "are called non-members too, which keeps it below 1. Dotted: guessing. The bound is for one person more or "
        "less; for one in place of another it is that of twice epsilon. Marks below the line prove nothing about the "
        "promise. "
    )
    caption += f"{len(above)} of {len(shown)} marks lie above the line with their whole interval."
    told = [f"{one.name}, epsilon {one.epsilon:g}: {one.tpr:.3f}" for one in shown]
    alt = f"Members found at {fpr:.1%} false positives against the bound of differential privacy. {'; '.join(told)}."
    wide, narrow = (partial(_draw, shown, names, width) for width in (WIDTH, NARROW))
    return plot(f"Members found at {fpr:.1%} false positives, and what epsilon allows", alt, caption, wide, narrow)


def _draw(shown: Sequence[Found], names: Sequence[str], width: float, theme: Theme) -> Figure:
    columns = 2 if width > NARROW else 1
    labels = {name: "\n".join(wrapped(name, int(16 * width / columns) - 6, 2)) for name in names}
    lines = [max(label.count("\n") + 1 for label in part) for part in _dealt(list(labels.values()), columns)]
    legend = 0.16 * sum(lines) + 0.1
    height = legend + 0.55 + TALL + 0.1
    figure = new_figure(height, width)
    axes = figure.add_axes((0.62 / width, (legend + 0.55) / height, 1 - 0.74 / width, TALL / height))
    bare(axes, theme, grid="both")
    last, low = _lines(axes, shown, theme), 0.1 * shown[0].fpr
    for at, name in enumerate(names):
        series = [one for one in shown if one.name == name]
        aside = 0.12 * WIDTH / width * (at - (len(names) - 1) / 2)
        places = [(one.epsilon if math.isfinite(one.epsilon) else last) + aside for one in series]
        for place, one in zip(places, series, strict=True):
            axes.plot([place] * 2, [max(end, low) for end in one.interval], color=theme.lines[at], linewidth=1.3)
        axes.plot(places, [max(one.tpr, low) for one in series], MARKS[at], color=theme.lines[at], markersize=5,
                  label=labels[name])  # fmt: skip
    axes.set(yscale="log", ylim=(low, TOP))
    powers = [10.0**power for power in range(round(math.log10(low)), 1)]
    axes.set_yticks(powers, [f"{power:g}" for power in powers])
    axes.minorticks_off()
    axes.set_ylabel("true positive rate (log scale)", fontsize=SMALL)
    axes.set_xlabel("epsilon (none: released without protection)", fontsize=SMALL)
    axes.text(0.02, 0.97, "more than\nepsilon allows", transform=axes.transAxes, va="top", fontsize=7.8,
              color=theme.muted)  # fmt: skip
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=columns, frameon=False, fontsize=7.8,
                  labelcolor=theme.ink, handlelength=1.2)  # fmt: skip
    return figure


def _dealt(labels: list[str], columns: int) -> list[list[str]]:
    """Labels by the line of the legend that they stand in: legends are filled column by column."""
    rows = math.ceil(len(labels) / columns)
    return [labels[row::rows] for row in range(rows)]


def _lines(axes: Axes, shown: Sequence[Found], theme: Theme) -> float:
    """Both bounds over epsilon, and guessing; returns where models without a budget stand."""
    import numpy as np

    budgets = sorted({one.epsilon for one in shown if math.isfinite(one.epsilon)})
    fpr, delta, most = shown[0].fpr, max(one.delta for one in shown), budgets[-1]
    grid = np.linspace(0, most + 0.6, 200)
    allowed = most_found(grid, delta, fpr)
    axes.fill_between(grid, allowed, TOP, color=theme.grid, alpha=0.45, linewidth=0)
    axes.plot(grid, one_sided(grid, delta, fpr), color=theme.muted, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.plot(grid, allowed, color=theme.ink, linewidth=1.4)
    axes.axhline(fpr, color=theme.muted, linewidth=1, linestyle=":")
    last, ticks = most + 1.4, [f"{budget:g}" for budget in budgets]
    without = any(math.isinf(one.epsilon) for one in shown)
    axes.set_xticks([*budgets, *([last] if without else [])], [*ticks, *(["none"] if without else [])])
    axes.set_xlim(min(budgets[0] - 1.0, 1.0), last + 0.6 if without else most + 0.6)
    return last
