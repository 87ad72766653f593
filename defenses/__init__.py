"""Composable protections at named hook points; `defenses.GaussianNoise` and plug-ins are loaded on first use."""

from __future__ import annotations

from typing import Any

from vflaudit import registry


def __getattr__(name: str) -> Any:
    if name[:1].isupper() and registry.kebab(name) in registry.registered("defenses"):
        return registry.load("defenses", registry.kebab(name))
    raise AttributeError(f"module 'defenses' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [point.attr for point in registry.registered("defenses").values()]
