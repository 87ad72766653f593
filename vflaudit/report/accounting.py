"""FedOnce's Fig. 10: epsilon over the number of parties, simple division against moments, by accountant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflaudit.accounting.parties import Row
from vflaudit.errors import InputError
from vflaudit.report.style import LIGHT, SMALL, Theme, bare, new_figure, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
LABELS = {
    "rdp-classic": "moments accountant (the paper's)",
    "rdp": "RDP, improved conversion",
    "prv": "PRV",
    "pld": "PLD",
    "exact": "closed form",
}


def draw(rows: Sequence[Row], delta: float, event: str, theme: Theme = LIGHT) -> Figure:
    """Dashed: simple division. Solid: moments. One colour per accountant."""
    figure = new_figure(3.9, 6.4)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(row.accountant for row in rows))
    for colour, name in zip(theme.lines, names, strict=False):
        own = sorted((row for row in rows if row.accountant == name), key=lambda row: row.parties)
        counts, dots = [row.parties for row in own], "o" if len(own) <= 12 else ""
        label = LABELS.get(name, name)
        axes.plot(counts, [row.simple for row in own], color=colour, linestyle="--", marker=dots, markersize=3.5)
        axes.plot(counts, [row.moments for row in own], color=colour, marker=dots, markersize=3.5, label=label)
    own = [row for row in rows if row.accountant == names[0]]
    last, middle = max(own, key=lambda row: row.parties), sorted(own, key=lambda row: row.parties)[len(own) * 2 // 3]
    words: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": SMALL, "textcoords": "offset points"}
    axes.annotate("simple division (dashed)", (middle.parties, middle.simple), (-8, 2), color=theme.ink, **words)
    saved = f"moments division: {last.reduction:.1%} less with {last.parties} parties"
    axes.annotate(saved, (last.parties, last.moments), (0, 5), color=theme.lines[0], **words)
    axes.set_xlabel("parties that train on the same people")
    axes.set_ylabel(f"total epsilon at delta {delta:g}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=SMALL, loc="upper left")
    axes.set_title("\n".join(wrapped(f"Each party: {event}", 90)), fontsize=SMALL, loc="left", color=theme.muted)
    bare(axes, theme, grid="both")
    return figure


def save(rows: Sequence[Row], delta: float, event: str, path: Path) -> Path:
    """Write the figure; the ending of the name decides the format."""
    import matplotlib

    if path.suffix.lstrip(".") not in FORMATS:
        raise InputError(f"figure {str(path)!r}: expected a name that ends in .svg, .png or .pdf")
    if not rows:
        raise InputError("there is nothing to draw: no accountant has an answer in this range")
    with matplotlib.rc_context({"svg.hashsalt": "vflaudit", "text.parse_math": False}):
        figure = draw(rows, delta, event)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise InputError(f"figure {str(path)!r} cannot be written: {error.strerror}") from None
    return path
