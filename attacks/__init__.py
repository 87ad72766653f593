"""One module per attack idea. `attacks.RepresentationInversion` and registered plug-ins are loaded on first use."""

from __future__ import annotations

from typing import Any

from vflaudit import registry


def __getattr__(name: str) -> Any:
    if name[:1].isupper() and registry.kebab(name) in registry.registered("attacks"):
        return registry.load("attacks", registry.kebab(name))
    raise AttributeError(f"module 'attacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [point.attr for point in registry.registered("attacks").values()]
