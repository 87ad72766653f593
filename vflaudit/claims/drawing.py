"""What figures of claims share: colours, style, an empty figure, a band over seeds, files with their words.

The same installation gives the same bytes every time, as long as no timings are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.lab.perform import one_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b2430", "#5b6775", "#dde2e8"
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#b8679a"
STYLE: Any = {
    "svg.hashsalt": "vflaudit", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.0,
    "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "grid.color": GRID, "grid.linewidth": 0.8, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0,
    "ytick.minor.size": 0, "legend.frameon": False, "legend.fontsize": 8.0, "axes.titlesize": 9.0,
    "axes.titlelocation": "left", "text.usetex": False, "figure.facecolor": "white", "savefig.facecolor": "white",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A figure with its words."""

    title: str
    caption: str
    figure: Figure


Draw = Callable[[Path], Drawn | None]  # gets the report's folder; none if there is nothing to draw


def draw_all(folder: Path, drawings: Mapping[str, Draw]) -> list[dict[str, str]]:
    """Draw everything into folder/figures; returns the entries of figures.json."""
    import matplotlib

    place = Path(folder) / "figures"
    place.mkdir(parents=True, exist_ok=True)
    entries = []
    with one_thread(), matplotlib.rc_context():
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(STYLE)
        for name, draw in drawings.items():
            drawn = draw(Path(folder))
            if drawn is None:
                continue
            path = place / f"{name}.svg"
            drawn.figure.savefig(path, format="svg", bbox_inches="tight", pad_inches=0.08, metadata={"Date": None})
            entries.append({"file": f"figures/{path.name}", "title": drawn.title, "caption": drawn.caption})
    return entries


def new_axes(
    panels: int = 1, size: tuple[float, float] = (5.6, 3.2), rows: int = 1, *, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """An empty figure with its panels, on one vertical scale unless `share` is off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, list(np.ravel(figure.subplots(rows, panels // rows, sharey=share)))


def band(axes: Axes, values: Mapping[Any, Array], label: str, colour: str, mark: str, *, dashed: bool = False) -> None:
    """The median over seeds as a line, and the range as a band."""
    places = list(values)
    low, high = [values[n].min() for n in places], [values[n].max() for n in places]
    axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
    line = (0, (4, 2)) if dashed else "-"
    axes.plot(places, [np.median(values[n]) for n in places], color=colour, marker=mark, markersize=4.5, label=label,
              linestyle=line, markerfacecolor="white" if dashed else colour)  # fmt: skip
