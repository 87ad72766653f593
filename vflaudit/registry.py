"""Finding protocols, attacks, defenses, datasets, suites and claims by name.

Everything is registered through entry points (`vflaudit.protocols`, `vflaudit.attacks`, ...), the built-in ones too, so
a plug-in is never second class. Names and summaries are read without importing the heavy modules behind them.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from vflaudit.errors import InputError, unknown

KINDS = ("protocols", "attacks", "defenses", "datasets", "suites", "claims")


def kebab(class_name: str) -> str:
    """`LeverageMatching` -> `leverage-matching`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).lower()


@cache
def registered(kind: str) -> dict[str, EntryPoint]:
    """Entry points of one kind by name; two packages that claim the same name are an error, never a silent choice."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    check_packages()
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"vflaudit.{kind}"):
        if point.name in found and found[point.name].value != point.value:
            raise InputError(
                f"two packages register {kind[:-1]} {point.name!r}: {found[point.name].value} and {point.value}"
            )
        found[point.name] = point
    return dict(sorted(found.items()))


def load(kind: str, name: str) -> Any:
    """The object registered under this name; an unknown name tells the nearest one."""
    points = registered(kind)
    if name not in points:
        raise unknown(kind[:-1], name, points)
    try:
        return points[name].load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{kind[:-1]} {name!r} is registered as {points[name].value} but cannot be imported: {error}"
        ) from error


def summary(kind: str, name: str) -> str:
    """First line of the docstring, read from the source so that `vflaudit list` imports nothing heavy."""
    point = registered(kind)[name]
    spec = importlib.util.find_spec(point.module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return point.value
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or point.value).splitlines()[0]
    return point.value


def listing(kind: str) -> Iterator[dict[str, str]]:
    """Rows of name and summary."""
    for name in registered(kind):
        yield {"name": name, "summary": summary(kind, name)}


def check_packages() -> None:
    """Say so if a folder named attacks or defenses in the working directory hides ours."""
    home = Path(__file__).resolve().parent.parent
    for package in ("attacks", "defenses"):
        spec = importlib.util.find_spec(package)
        origin = spec.origin if spec is not None else None
        if origin is None or Path(origin).resolve().parent.parent != home:
            where = origin or (list(spec.submodule_search_locations or [])[:1] if spec else "nowhere")
            raise InputError(
                f"vflaudit's package {package!r} is hidden by {where}: rename that folder or start elsewhere"
            )
