"""How figures look: two themes, one colour-blind safe palette (Okabe and Ito), and the way to an SVG data URI."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, NARROW = 5.6, 3.8  # inches: a column on a desktop, a phone
SMALL, NORMAL = 8.6, 9.4  # points
_SIGNS = re.compile(r"(?<=[=:,_+/-])")


@dataclass(frozen=True)
class Theme:
    """Colours of one mode of the page."""

    ink: str
    paper: str
    muted: str
    grid: str
    leak: str
    quiet: str
    control: str
    failed: str
    gate: str
    lines: tuple[str, ...]


LIGHT = Theme(
    ink="#1b2430", paper="#ffffff", muted="#5b6775", grid="#dde2e8", leak="#c24e00", quiet="#0072b2",
    control="#4f5b69", failed="#b00020", gate="#8a3a86",
    lines=("#0072b2", "#d55e00", "#009e73", "#b8679a", "#b07a00", "#3f91c4"),
)  # fmt: skip
DARK = Theme(
    ink="#e8edf3", paper="#10161d", muted="#a3afbd", grid="#3a4552", leak="#ff9a4d", quiet="#62b8f0",
    control="#b6c1cd", failed="#ff6b6b", gate="#d99ad4",
    lines=("#62b8f0", "#ff9a4d", "#3fd0a5", "#e3a3cb", "#f0c04a", "#a5d4f5"),
)  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A figure for both modes, ready for an <img>."""

    title: str
    alt: str
    caption: str
    light: str
    dark: str
    narrow_light: str | None = None
    narrow_dark: str | None = None


def plot(
    title: str, alt: str, caption: str, draw: Callable[[Theme], Figure], narrow: Callable[[Theme], Figure] | None = None
) -> Plot:
    """Draw once per theme; `narrow` draws the same for a phone, where scaling down would make text too small."""
    images = [data_uri(one, theme) for one in (draw, narrow) if one is not None for theme in (LIGHT, DARK)]
    return Plot(title, alt, caption, *images)


def data_uri(draw: Callable[[Theme], Figure], theme: Theme) -> str:
    """The figure as SVG, the same bytes for the same numbers; matplotlib's own settings are left as they were."""
    import matplotlib

    settings: Any = {
        "svg.hashsalt": "vflaudit", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": NORMAL,
        "text.color": theme.ink, "axes.edgecolor": theme.grid, "axes.labelcolor": theme.muted,
        "xtick.color": theme.muted, "ytick.color": theme.muted, "axes.facecolor": "none", "text.usetex": False,
        "figure.facecolor": "none", "savefig.facecolor": "none", "path.simplify": False, "text.parse_math": False,
    }  # fmt: skip
    with matplotlib.rc_context():
        matplotlib.rcParams.update(settings)
        figure, buffer = draw(theme), io.BytesIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.06, metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure that no global list knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def bare(axes: Axes, theme: Theme, *, grid: str | None = "x") -> None:
    """No box, a light grid, small ticks."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL)
    axes.set_axisbelow(True)
    if grid == "x":
        axes.xaxis.grid(True, color=theme.grid, linewidth=0.8)
    elif grid:
        axes.grid(True, color=theme.grid, linewidth=0.8)


def wrapped(text: str, width: int, lines: int = 3) -> list[str]:
    """At most so many lines of so many characters; a word too long for a line is broken after a sign in it."""
    found = [""]
    for word in text.split():
        for place, piece in enumerate([word] if len(word) <= width else _pieces(word, width)):
            joint = " " if place == 0 and found[-1] else ""
            if found[-1] and len(found[-1] + joint + piece) > width:
                found.append(piece)
            else:
                found[-1] += joint + piece
    return found if len(found) <= lines else [*found[: lines - 1], found[lines - 1][: width - 1] + "…"]


def _pieces(word: str, width: int) -> list[str]:
    """Parts of a long word, none longer than a line."""
    parts = _SIGNS.split(word)
    return [part[start : start + width] for part in parts for start in range(0, len(part), width)]
