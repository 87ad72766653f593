"""The figures of a report. Each function takes rows and returns plots, none where there is nothing to show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from vflaudit.report.audit import Audit, Target
from vflaudit.report.style import NARROW, SMALL, WIDTH, Plot, Theme, bare, new_figure, plot, wrapped
from vflaudit.report.summary import Row, Series
from vflaudit.report.words import METRICS, capital, count, number, signed, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 40
MOST_LINES = 6
MOST_COLUMNS = 40
MOST_TARGETS = 5
LINE, GAP = 0.165, 0.36  # inches: a line of text; the interval below it with some air


# --- (1) forest ---------------------------------------------------------------------------------------------


def forest(audit: Audit) -> list[Plot]:
    """Advantage with interval per row; epsilon has a scale of its own, so a figure of its own."""
    found = []
    for epsilon in (False, True):
        rows = [row for row in audit.findings if (row.metric == "epsilon_lower") == epsilon]
        controls = [row for row in audit.controls if (row.metric == "epsilon_lower") == epsilon]
        if not rows and not controls:
            continue
        shown = rows[:MOST_ROWS]
        caption = (
            "The mark is the mean advantage over the best guess without the protocol, the line its 95% interval. "
            "A filled diamond leaks: its whole interval is above zero. A hollow circle does not show that. "
            "Squares are controls, red where they failed."
        )
        if len(shown) < len(rows):
            caption += f" The {len(shown)} strongest of {len(rows)} are drawn; the table has all."
        about = "; ".join(f"{row.target} on {row.dataset}: {signed(row.advantage)}" for row in shown[:8])
        alt = (
            f"Forest plot of {count(len(shown), 'finding')} and {count(len(controls), 'control')}. Strongest: {about}."
        )
        title = "Privacy loss as epsilon" if epsilon else "Advantage of every attack"
        wide, narrow = (partial(_forest, shown, controls, audit.gate, epsilon, width) for width in (WIDTH, NARROW))
        found.append(plot(title, alt, caption, wide, narrow))
    return found


def _forest(
    rows: Sequence[Row], controls: Sequence[Row], gate: float | None, epsilon: bool, width: float, theme: Theme
) -> Figure:
    sections = [
        ("Findings", rows),
        ("Positive controls: must win", [row for row in controls if row.control == "positive"]),
        ("Negative controls: must stay at zero", [row for row in controls if row.control == "negative"]),
    ]
    labels = {row.name: _forest_label(row, width) for row in (*rows, *controls)}
    used = [section for section in sections if section[1]]
    texts = sum(len(heads) + len(notes) for heads, notes in labels.values())
    height = 0.1 + 0.34 * len(used) + LINE * texts + GAP * len(labels)
    figure = new_figure(height + 0.5, width)
    axes = figure.add_axes((0.01, 0.45 / (height + 0.5), 0.98, height / (height + 0.5)))
    bare(axes, theme)
    everyone = [row for _, group in used for row in group]
    lowest = min(0.0, *(row.interval[0] for row in everyone))
    highest = max(0.2, gate or 0.0, *(row.interval[1] for row in everyone))
    left, right = (lowest, highest) if epsilon else (max(lowest, -0.5), min(highest, 1.0))
    margin = 0.03 * (right - left)
    axes.set_xlim(left - margin, right + margin)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.axvline(0, color=theme.muted, linewidth=1)
    top = 0.0
    for heading, group in used:
        top += 0.3
        axes.text(0, top - 0.08, heading.upper(), transform=axes.get_yaxis_transform(), fontsize=7.6,
                  color=theme.muted, fontweight="bold", va="baseline",
                  bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 0.6})  # fmt: skip
        axes.plot([0, 1], [top] * 2, transform=axes.get_yaxis_transform(), color=theme.muted, linewidth=0.6)
        top += 0.04
        for row in group:
            top = _forest_row(axes, row, labels[row.name], top, (left, right), theme)
    if gate is not None:
        axes.axvline(gate, color=theme.gate, linewidth=1.3, linestyle=(0, (4, 2)))
        axes.annotate(f"gate {gate:g}", (gate, 0), xycoords=axes.get_xaxis_transform(), xytext=(3, 3),
                      textcoords="offset points", fontsize=SMALL, color=theme.gate)  # fmt: skip
    unit = "epsilon shown, at least" if epsilon else "advantage over the best guess without the protocol"
    axes.set_xlabel(unit, fontsize=SMALL)
    return figure


def _forest_label(row: Row, width: float) -> tuple[list[str], list[str]]:
    head = " · ".join(part for part in (row.target, row.dataset, row.party) if part)
    return wrapped(head, int(12.4 * width), 3), wrapped(f"{row.attack}: {row.adversary}", int(16.4 * width), 4)


def _forest_row(
    axes: Axes,
    row: Row,
    label: tuple[list[str], list[str]],
    top: float,
    limits: tuple[float, float],
    theme: Theme,
) -> float:
    """Text, then the interval below it. Returns where the next row begins."""
    across, behind = axes.get_yaxis_transform(), {"facecolor": theme.paper, "edgecolor": "none", "pad": 2.4}
    heads, notes = label
    for place, text in enumerate((*heads, *notes)):
        head = place < len(heads)
        axes.text(0, top + LINE * (place + 1), text, transform=across, fontsize=SMALL if head else 7.5, va="baseline",
                  color=theme.ink if head else theme.muted, bbox=behind, zorder=2.5 if place else 2.6)  # fmt: skip
    axes.text(1, top + LINE, signed(row.advantage), transform=across, fontsize=SMALL, ha="right", va="baseline",
              fontweight="bold", color=theme.ink, bbox=behind)  # fmt: skip
    bottom = top + LINE * (len(heads) + len(notes))
    y = bottom + 0.15
    colour = theme.failed if row.problem else theme.control if row.control else theme.leak if row.leaks else theme.quiet
    left, right = limits
    low, high = (min(max(end, left), right) for end in row.interval)
    axes.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
    for end, shown, mark in ((row.interval[0], low, "<"), (row.interval[1], high, ">")):
        if end != shown and math.isfinite(end) and abs(end - shown) > 0.05:
            axes.plot([shown], [y], marker=mark, color=colour, markersize=6, clip_on=False)
    mark = "s" if row.control else "D" if row.leaks else "o"
    face = colour if row.leaks or row.control == "positive" else theme.paper
    middle = min(max(row.advantage, left), right)
    axes.plot([middle], [y], marker=mark, color=colour, markerfacecolor=face, markersize=6.5, markeredgewidth=1.6,
              clip_on=False, zorder=3)  # fmt: skip
    return bottom + GAP


# --- (2) curves ---------------------------------------------------------------------------------------------


def curves(audit: Audit) -> list[Plot]:
    """Score against how much the adversary knows, one figure per kind of knowledge, dataset, party and metric."""
    panels: dict[tuple[str, str, str | None, str], list[Series]] = {}
    for series in audit.series:
        row = series.first
        panels.setdefault((series.option, row.dataset, row.party, row.metric), []).append(series)
    found = []
    for (_, dataset, party, metric), group in panels.items():
        group = sorted(group, key=lambda s: -len(s.points))[:MOST_LINES]
        told = []
        for series in group:
            points = ", ".join(f"{known}: {number(row.score)}" for known, row in series.points)
            told.append(f"{series.first.attack} on {series.first.target}: {points}")
        where = f"{dataset}, {party}" if party else dataset
        seeds = max(row.seeds for series in group for _, row in series.points)
        band = "the 95% interval over seeds" if seeds > 1 else "the 95% interval over people"
        caption = f"Lines are means, bands {band}; dashed is the best guess without the protocol."
        alt = f"{METRICS[metric]} by number of {group[0].axis} ({where}). " + "; ".join(told) + "."
        found.append(plot(f"What knowledge buys: {where}", alt, caption, partial(_curves, group, metric)))
    return found


def _curves(group: Sequence[Series], metric: str, theme: Theme) -> Figure:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    figure = new_figure(3.3)
    axes = figure.add_axes((0.09, 0.13, 0.89, 0.84))
    bare(axes, theme, grid="both")
    ticks = sorted({known for series in group for known, _ in series.points})
    for place, series in enumerate(group):
        colour, mark = theme.lines[place], "oDs^vP"[place]
        known = [n for n, _ in series.points]
        rows = [row for _, row in series.points]
        axes.fill_between(known, [r.score_interval[0] for r in rows], [r.score_interval[1] for r in rows],
                          color=colour, alpha=0.16, linewidth=0)  # fmt: skip
        label = "\n".join(wrapped(f"{series.first.attack} on {series.first.target}", 58, 2))
        axes.plot(known, [r.score for r in rows], color=colour, marker=mark, markersize=5, linewidth=1.9, label=label)
        axes.plot(known, [r.baseline for r in rows], color=colour, linewidth=1.3, linestyle=(0, (4, 2)), clip_on=False)
    axes.plot([], [], color=theme.muted, linewidth=1.3, linestyle=(0, (4, 2)), label="best guess without the protocol")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_spread(ticks)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    if metric != "epsilon_lower":
        lows = [row.score_interval[0] for s in group for _, row in s.points]
        lows += [row.baseline for s in group for _, row in s.points]
        axes.set_ylim(max(min(-0.04, *lows), -0.55) if metric != "auc" else min(0.4, *lows), 1.04)
    axes.set_xlabel(f"{group[0].axis} (log scale)", fontsize=SMALL)
    axes.set_ylabel(METRICS[metric], fontsize=SMALL)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), frameon=False, fontsize=7.8, labelcolor=theme.ink,
                handlelength=2.6)  # fmt: skip
    return figure


def _spread(ticks: Sequence[int]) -> list[int]:
    """Ticks that do not touch each other on a log axis."""
    chosen: list[int] = []
    apart = math.log(ticks[-1] / ticks[0]) / 9
    for tick in ticks:
        if not chosen or math.log(tick / chosen[-1]) >= apart:
            chosen.append(tick)
    return chosen


# --- (3) columns --------------------------------------------------------------------------------------------


def heatmaps(audit: Audit) -> list[Plot]:
    """R2 of every column under the strongest attack on each target, one figure per dataset and party."""
    groups: dict[tuple[str, str | None], list[Row]] = {}
    for row in audit.strongest_by_target():
        groups.setdefault((row.dataset, row.party), []).append(row)
    found = []
    for (dataset, party), rows in groups.items():
        for start in range(0, len(rows), MOST_TARGETS):
            part = rows[start : start + MOST_TARGETS]
            columns = sorted({name for row in part for name in row.columns})
            average = {name: _average([row.columns[name] for row in part if name in row.columns]) for name in columns}
            columns = sorted(columns, key=lambda name: -average[name])
            caption = (
                "R² of each column, averaged over the seeds in which the attacked party held it. 1 is a perfect copy."
            )
            if len(columns) > MOST_COLUMNS:
                caption += f" The {MOST_COLUMNS} best recovered of {len(columns)} columns are shown."
                columns = columns[:MOST_COLUMNS]
            best, worst = columns[0], columns[-1]
            alt = (
                f"Heatmap of R² per column of {dataset} for {count(len(part), 'target')}: best recovered is {best} "
                f"({number(average[best], 2)}), least {worst} ({number(average[worst], 2)})."
            )
            title = f"Which columns leak: {dataset}" + (f", {party}" if party else "")
            found.append(plot(title, alt, caption, partial(_heatmap, part, columns)))
    return found


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _heatmap(rows: Sequence[Row], columns: Sequence[str], theme: Theme) -> Figure:
    import numpy as np
    from matplotlib import colormaps

    heads = ["\n".join(wrapped(row.target, 16 if len(rows) > 3 else 22, 5)) for row in rows]
    deepest = max(head.count("\n") + 1 for head in heads)
    height = 0.225 * len(columns) + 0.15 * deepest + 0.2
    figure = new_figure(height)
    wide = min(0.66, 0.22 * len(rows))
    axes = figure.add_axes((0.33, 0.01, wide, 0.225 * len(columns) / height))
    values = np.array([[row.columns.get(name, np.nan) for row in rows] for name in columns])
    palette = colormaps["cividis"].with_extremes(bad=(0, 0, 0, 0))
    axes.imshow(np.ma.masked_invalid(np.clip(values, 0, 1)), aspect="auto", cmap=palette, vmin=0, vmax=1,
                interpolation="nearest")  # fmt: skip
    for y, x in np.ndindex(*values.shape):
        value = float(values[y, x])
        text = "–" if np.isnan(value) else "< 0" if value < -0.005 else number(value, 2)
        colour = theme.muted if np.isnan(value) else "white" if value < 0.55 else "#10161d"
        axes.text(x, y, text, ha="center", va="center", fontsize=7.6, color=colour)
    axes.set_yticks(range(len(columns)), [_short(name) for name in columns], fontsize=7.8, color=theme.ink)
    axes.set_xticks(range(len(rows)), heads, fontsize=7.4, color=theme.ink)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _short(name: str, longest: int = 26) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


# --- (5) utility and cost -----------------------------------------------------------------------------------


def costs(audit: Audit) -> list[Plot]:
    """What each target is worth and what it sends."""
    shown = [t for t in audit.targets if t.costs.get("bytes") or t.measure][: MOST_ROWS // 2]
    if not shown:
        return []
    told = "; ".join(
        f"{t.target} on {t.dataset}: "
        + (f"{t.measure} {number(t.utility[t.measure])}, " if t.measure else "")
        + f"{size(t.costs.get('bytes'))}, {t.costs.get('rounds', 0):,.0f} rounds"
        for t in shown[:8]
    )
    caption = "Utility on held-out rows, and all bytes and rounds of training. Bytes and rounds are on log axes."
    return [plot("Utility and cost of each target", f"Bars: {told}.", caption, partial(_costs, shown))]


def _costs(targets: Sequence[Target], theme: Theme) -> Figure:
    measures = list(dict.fromkeys(t.measure for t in targets if t.measure))
    panels = [(capital(m) if len(m) > 4 else m.upper(), [t.utility.get(m) for t in targets], False) for m in measures]
    panels += [
        (name, [t.costs.get(key) for t in targets], True) for name, key in (("Sent", "bytes"), ("Rounds", "rounds"))
    ]
    labels = ["\n".join([*wrapped(t.target, 28, 2), *wrapped(t.dataset, 28, 1)]) for t in targets]
    height = 0.2 + sum(0.145 * (label.count("\n") + 1) + 0.13 for label in labels)
    figure = new_figure(height + 0.3)
    first, gap = 0.345, 0.035
    wide = (1 - first - gap * len(panels)) / len(panels)
    edges = [0.0]
    for label in labels:
        edges.append(edges[-1] + 0.145 * (label.count("\n") + 1) + 0.13)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    for place, (name, values, log) in enumerate(panels):
        axes = figure.add_axes((first + place * (wide + gap), 0.01, wide, height / (height + 0.3)))
        bare(axes, theme, grid=None)
        axes.spines["bottom"].set_visible(False)
        axes.spines["left"].set_visible(True)
        present = [v for v in values if v is not None and v > 0]
        floor = math.log10(min(present)) - 0.6 if log and present else 0.0
        top = (math.log10(max(present)) if log else max(present)) if present else 1.0
        for y, value in zip(middles, values, strict=True):
            length = (math.log10(value) - floor if log else value) if value and value > 0 else 0.0
            axes.barh([y], [length], height=0.17, color=theme.lines[0 if not log else 2 if name == "Sent" else 4])
            text = size(value) if name == "Sent" else f"{value:,.0f}" if log and value is not None else number(value)
            axes.text(length + 0.03 * (top - floor), y, text, va="center", fontsize=7.6, color=theme.ink)
        axes.set_xlim(0, (top - floor) * 1.75 or 1.0)
        axes.set_ylim(edges[-1], 0)
        axes.set_xticks([])
        axes.set_yticks(middles, labels if place == 0 else [""] * len(labels), fontsize=7.6, color=theme.ink)
        axes.set_title(name + (" (log)" if log else ""), fontsize=SMALL, color=theme.muted, loc="left")
    return figure
