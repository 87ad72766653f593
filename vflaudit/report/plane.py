"""The figure of privacy against utility: numbered points, their intervals both ways, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from vflaudit.report.style import NARROW, SMALL, Plot, Theme, bare, new_figure, plot, wrapped
from vflaudit.report.tradeoff import Plane, Point
from vflaudit.report.words import METRICS, count, listed, number, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 24
WIDE = 8.2  # inches: it has the page's width to itself
TALL, LINE = 3.5, 0.17  # inches: the axes; a line of the legend
LABEL = (0.2, 0.15)  # inches: the box around a number
MARK = 0.11  # inches: half a mark, with some air
RINGS, TURNS = (0.2, 0.3, 0.42, 0.56, 0.74, 0.95), 16  # where a number may stand around its point

Place = tuple[float, float]


def planes(found: Sequence[Plane]) -> list[Plot]:
    """One figure per plane."""
    return [_figure(plane) for plane in found]


def _figure(plane: Plane) -> Plot:
    shown = plane.points[:MOST_POINTS]
    caption = (
        f"The lower right is good: useful, and little leaks. Each point is a target with the strongest of the attacks "
        f"on it; {_same(plane)}. "
        "Lines are 95% intervals over seeds"
        + (", where there is more than one seed" if any(p.utility_interval is None for p in shown) else "")
        + ". Squares have no defense. The grey steps join the points that no other beats in both ways (by their means; "
        "intervals may overlap). A low point says that these attacks learn little there, not that none could."
    )
    if len(shown) < len(plane.points):
        caption += f" {len(shown)} of {len(plane.points)} targets are drawn; the table has all."
    if plane.left_out:
        caption += f" Not drawn, because they faced other adversaries only: {listed(plane.left_out)}."
    told = "; ".join(f"{p.name}: {plane.worth} {number(p.utility)}, advantage {signed(p.row.advantage)}" for p in shown)
    alt = f"Privacy against utility: largest advantage against {plane.worth} of {count(len(shown), 'target')}. {told}."
    wide, narrow = (partial(_draw, plane, shown, width) for width in (WIDE, NARROW))
    return plot(plane.title, alt, caption, wide, narrow)


def _same(plane: Plane) -> str:
    one = len(plane.adversaries) == 1
    who = [sentence + (f" (against {party})" if party else "") for sentence, party in plane.adversaries[:4]]
    more = f" and {len(plane.adversaries) - 4} more" if len(plane.adversaries) > 4 else ""
    return f"the adversar{'y is' if one else 'ies are'} the same for all: {'; '.join(who)}{more}"


def _draw(plane: Plane, points: Sequence[Point], width: float, theme: Theme) -> Figure:
    columns = 3 if width > NARROW else 1
    longest = int((width - 0.4) / columns * 15.5) - 4
    heads = [wrapped(p.name, longest, 2) for p in points]
    legend = _columns(heads, columns)
    depth = LINE * max(sum(len(head) for head in part) for part in legend) + 0.1
    left, bottom, height = 0.62, depth + 0.55, depth + 0.55 + TALL + 0.25
    figure = new_figure(height, width)
    size = (width - left - 0.12, TALL)
    axes = figure.add_axes((left / width, bottom / height, size[0] / width, size[1] / height))
    bare(axes, theme, grid="both")
    across = _limits([(p.utility, p.utility_interval) for p in points], 0.02)
    upward = _limits([(p.row.advantage, p.row.interval) for p in points] + [(0.0, None)], 0.1)
    axes.set_xlim(*across)
    axes.set_ylim(*upward)
    axes.axhline(0, color=theme.muted, linewidth=1)
    steps = [p for p in plane.frontier if p in points]
    axes.plot([p.utility for p in steps], [p.row.advantage for p in steps], drawstyle="steps-pre", color=theme.muted,
              linewidth=5, alpha=0.3, solid_joinstyle="round", zorder=1.5)  # fmt: skip
    where = [((p.utility - across[0]) / (across[1] - across[0]) * size[0],
              (p.row.advantage - upward[0]) / (upward[1] - upward[0]) * size[1]) for p in points]  # fmt: skip
    labels = spread(where, size)
    for p, at, label in zip(points, where, labels, strict=True):
        colour = theme.leak if p.surest.leaks else theme.quiet
        for ends, flat in ((p.utility_interval, True), (p.row.interval, False)):
            if ends is not None and all(map(math.isfinite, ends)):
                line = (ends, [p.row.advantage] * 2) if flat else ([p.utility] * 2, ends)
                axes.plot(*line, color=colour, linewidth=1.1, alpha=0.55, zorder=2)
        axes.plot([p.utility], [p.row.advantage], marker="o" if p.defended else "s", color=colour, markersize=6.5,
                  markerfacecolor=colour if p.surest.leaks else theme.paper, markeredgewidth=1.5, zorder=3)  # fmt: skip
        x, y = (across[0] + label[0] / size[0] * (across[1] - across[0]),
                upward[0] + label[1] / size[1] * (upward[1] - upward[0]))  # fmt: skip
        if math.dist(at, label) > RINGS[0] + 0.01:
            axes.plot([p.utility, x], [p.row.advantage, y], color=theme.ink, linewidth=0.6, zorder=2.5)
        axes.text(x, y, str(p.number), ha="center", va="center", fontsize=7.8, fontweight="bold", color=theme.ink,
                  zorder=4, bbox={"boxstyle": "circle,pad=0.1", "fc": theme.paper, "ec": "none"})  # fmt: skip
    axes.set_xlabel(f"{plane.worth} of the model: more useful to the right", fontsize=SMALL)
    axes.set_ylabel(f"largest advantage ({METRICS[plane.metric]})", fontsize=SMALL)
    axes.set_title("better: lower right ↘", fontsize=SMALL, color=theme.muted, loc="right")
    numbers = iter(points)
    for column, part in enumerate(legend):
        top = depth - 0.05
        for head in part:
            p = next(numbers)
            x = (0.12 + column * (width - 0.2) / columns) / width
            bold = "normal" if p.defended else "bold"
            figure.text(x + 0.2 / width, top / height, str(p.number), fontsize=7.8, fontweight="bold", ha="right",
                        va="top", color=theme.ink)  # fmt: skip
            figure.text(x + 0.29 / width, top / height, "\n".join(head), fontsize=7.8, va="top", color=theme.ink,
                        fontweight=bold, linespacing=1.1)  # fmt: skip
            top -= LINE * len(head)
    return figure


def _columns(heads: list[list[str]], many: int) -> list[list[list[str]]]:
    """Columns read downwards, of about the same length."""
    length = math.ceil(len(heads) / many)
    return [heads[start : start + length] for start in range(0, len(heads), length)]


def _limits(values: Sequence[tuple[float, tuple[float, float] | None]], least: float) -> tuple[float, float]:
    """Around all points and their intervals; an interval may stretch the axis by its own length at most."""
    low, high = min(v for v, _ in values), max(v for v, _ in values)
    room = max(high - low, least)
    ends = [end for _, interval in values if interval for end in interval if math.isfinite(end)]
    bottom, top = max(min([low, *ends]), low - 0.5 * room), min(max([high, *ends]), high + 0.5 * room)
    margin = 0.08 * max(top - bottom, least)
    return bottom - margin, top + margin


def spread(points: Sequence[Place], size: Place) -> list[Place]:
    """Where each point's number stands: near it, off all marks and other numbers, inside the axes (in inches).

    The most crowded points choose first. If no free place is left, the least bad one is taken.
    """
    order = sorted(range(len(points)), key=lambda i: (-sum(math.dist(points[i], p) < 0.5 for p in points), i))
    taken: dict[int, Place] = {}
    for i in order:
        x, y = points[i]
        candidates = [
            (ring, (x + ring * math.cos(turn), y + ring * math.sin(turn)))
            for ring in RINGS
            for turn in (math.pi / 4 + 2 * math.pi * k / TURNS for k in range(TURNS))
        ]
        taken[i] = min(candidates, key=lambda c: c[0] + 10 * _clashes(c[1], points, list(taken.values()), size))[1]
    return [taken[i] for i in range(len(points))]


def _clashes(place: Place, points: Sequence[Place], labels: Sequence[Place], size: Place) -> int:
    """How many marks and numbers a number would cover here, or how far it would stick out."""
    wide, high = LABEL[0] / 2, LABEL[1] / 2
    marks = sum(abs(place[0] - x) < wide + MARK / 2 and abs(place[1] - y) < high + MARK / 2 for x, y in points)
    texts = sum(abs(place[0] - x) < 2 * wide and abs(place[1] - y) < 2 * high for x, y in labels)
    inside = wide <= place[0] <= size[0] - wide and high <= place[1] <= size[1] - high
    return marks + texts + (0 if inside else 2)
