"""Everything that can be reached from an object: the garbage collector's references and a few it does not follow."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterator

import numpy as np
import torch

SKIPPED = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.GetSetDescriptorType)
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.dtype, torch.dtype, torch.device)


def reachable(root: object) -> Iterator[tuple[str, object]]:
    """Every object reachable from `root`, with a readable path to it, nearest first.

    Modules, classes and the globals of functions are left out, since they are the same for everybody. Closures,
    defaults, bound methods, weak references, suspended generators and the memory behind arrays are followed.
    """
    seen: dict[int, object] = {}  # keeps what it has seen alive, or an id could be used twice
    queue: list[tuple[str, object]] = [("view", root)]
    for path, item in queue:
        if id(item) in seen:
            continue
        seen[id(item)] = item
        yield path, item
        queue.extend(
            (f"{path}{step}", part) for step, part in references(item) if not isinstance(part, SKIPPED + PLAIN)
        )


def references(item: object) -> list[tuple[str, object]]:
    """What `item` refers to, each with how to say so."""
    if isinstance(item, types.FunctionType):
        parts: list[tuple[str, object]] = [(".__dict__", item.__dict__)]
        parts += [(".__defaults__", value) for value in item.__defaults__ or ()]
        parts += [(f".__kwdefaults__[{key!r}]", value) for key, value in (item.__kwdefaults__ or {}).items()]
        names = item.__code__.co_freevars
        return parts + [
            (f".<closure {name}>", cell.cell_contents)
            for name, cell in zip(names, item.__closure__ or (), strict=True)
            if cell != types.CellType()
        ]
    if isinstance(item, types.FrameType):
        return [(f".<local {name}>", value) for name, value in item.f_locals.items()]
    if isinstance(item, weakref.ref):
        return [("()", item())]
    if isinstance(item, memoryview):
        return [(".obj", item.obj)]
    if isinstance(item, np.ndarray):
        inside = [("[...]", value) for value in item.ravel().tolist()] if item.dtype.hasobject else []
        return [(".base", item.base), (".__dict__", getattr(item, "__dict__", None)), *inside]
    if isinstance(item, torch.Tensor):
        return [(".grad", item.grad if item.is_leaf else None), (".__dict__", item.__dict__)]
    if isinstance(item, dict):
        pairs = [(f"[{key!r}]" if isinstance(key, str | int) else "[...]", value) for key, value in item.items()]
        return [*pairs, *((".<key>", key) for key in item)]
    if isinstance(item, list | tuple):
        return [(f"[{index}]", value) for index, value in enumerate(item)]
    parts = [(f".<{type(part).__name__}>", part) for part in gc.get_referents(item)]
    named = {id(value): name for name, value in getattr(item, "__dict__", {}).items()}
    return [(f".{named[id(part)]}" if id(part) in named else step, part) for step, part in parts]


def array_of(item: object) -> np.ndarray | None:
    """The numbers of an array or a tensor, without a copy; None for anything else."""
    if isinstance(item, np.ndarray) and not item.dtype.hasobject:
        return item
    if isinstance(item, torch.Tensor) and item.device.type == "cpu" and item.layout == torch.strided:
        return item.detach().resolve_conj().resolve_neg().numpy()
    return None
