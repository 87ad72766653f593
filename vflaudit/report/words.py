"""Numbers and lists as people read them: at most three decimals, units, no minus zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

METRICS = {"r2": "R²", "auc": "AUC", "hit_rate": "hit rate", "epsilon_lower": "epsilon, at least"}
NETWORKS = {"lan": "LAN", "wan": "WAN", "satellite": "satellite"}


def number(value: float | None, digits: int = 3) -> str:
    """0.1234 -> 0.123; what is no number is a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float | None, digits: int = 3) -> str:
    """The same with its sign: an advantage."""
    text = number(value, digits)
    return text if text.startswith("-") or text == "–" or float(text) == 0 else f"+{text}"


def interval(ends: Sequence[float | None] | None, *, sign: bool = True) -> str:
    """[+0.100, +0.200]"""
    if ends is None or len(ends) != 2:
        return "–"
    show = signed if sign else number
    return f"[{show(ends[0])}, {show(ends[1])}]"


def count(many: int, one: str, several: str | None = None) -> str:
    """1 seed, 5 seeds."""
    return f"{many:,} {one if many == 1 else several or one + 's'}"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None or not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours, with three figures at most."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms" if seconds >= 0.001 else "< 1 ms" if seconds > 0 else "0 s"
    for limit, unit, length in ((99.5, "s", 1.0), (5970.0, "min", 60.0), (math.inf, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / length:.3g} {unit}" if seconds / length < 999.5 else f"{seconds / length:,.0f} {unit}"
    raise AssertionError


def listed(items: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else ""


def capital(text: str) -> str:
    """A sentence begins with a capital."""
    return text[:1].upper() + text[1:]
