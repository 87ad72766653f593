"""Figures that a claims run left beside its results: `figures.json` and SVG files in the folder `figures`.

A folder of results may come from anybody. Only SVG files inside it are taken, and only as images (base64 in an <img>),
where browsers run no scripts and load nothing. Whatever else is listed is left out, with a note that says why.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST = 5_000_000  # bytes of one file
ALTOGETHER = 30_000_000
MOST = 40
FILE = re.compile(r"figures/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.svg")
# An XML declaration, comments, a document type without definitions of its own (they can grow without end), <svg
SVG = re.compile(rb"\s*(<\?xml[^>]*\?>\s*)?(<!--(?:(?!-->).){0,2000}-->\s*){0,5}(<!DOCTYPE[^>\[]*>\s*)?<svg[\s>]", re.S)


@dataclass(frozen=True)
class Figure:
    """A picture ready for an <img>."""

    title: str
    caption: str
    image: str


def load_figures(folder: Path) -> tuple[list[Figure], list[str]]:
    """The figures of a folder, and a note about each entry that was left out. Figures never cost the report."""
    path = folder / "figures.json"
    if not path.exists():
        return [], []
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise ValueError
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, list):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        return [], ["figures.json is not a list of figures that can be read"]
    found: list[Figure] = []
    notes: list[str] = []
    left = ALTOGETHER
    for entry in content[:MOST]:
        figure = _figure(folder, entry, left)
        if isinstance(figure, str):
            notes.append(figure)
        else:
            found.append(figure)
            left -= len(figure.image)
    if len(content) > MOST:
        notes.append(f"only the first {MOST} of {len(content)} figures were read")
    return found, notes


def _figure(folder: Path, entry: Any, left: int) -> Figure | str:
    """The figure, or why not."""
    if not isinstance(entry, dict):
        return "an entry of figures.json is not a table"
    name, title, caption = (entry.get(key) for key in ("file", "title", "caption"))
    if not isinstance(name, str) or not FILE.fullmatch(name):
        return f"{_shown(name)}: expected the name of an SVG file, as in figures/name.svg"
    if not isinstance(title, str) or not isinstance(caption, str):
        return f"{name}: expected a title and a caption"
    path, home = folder / name, folder.resolve()
    try:
        if path.resolve() != home / name:
            return f"{name}: links are not followed"
        if not path.is_file():
            return f"{name}: there is no such file"
        if path.stat().st_size >= LARGEST:
            return f"{name}: larger than {LARGEST // 1_000_000} MB"
        content = path.read_bytes()
    except (OSError, RuntimeError, ValueError):
        return f"{name}: cannot be read"
    if not SVG.match(content):
        return f"{name}: not an SVG"
    image = "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii")
    if len(image) > left:
        return f"{name}: all figures together are larger than {ALTOGETHER // 1_000_000} MB"
    return Figure(title, caption, image)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
