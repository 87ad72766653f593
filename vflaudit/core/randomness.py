"""Named random streams: every use of randomness has an address, and the address decides its numbers.

`stream(7, "client1", "init")` is the same generator in any process and in any order of calls, so results do not
depend on the number of workers, and adding a new use of randomness never shifts an old one.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _sequence(seed: int, path: tuple[str | int, ...]) -> np.random.SeedSequence:
    digest = hashlib.sha256("\x00".join(map(str, path)).encode()).digest()
    return np.random.SeedSequence(seed, spawn_key=tuple(np.frombuffer(digest[:16], dtype="<u4").tolist()))


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """The NumPy generator at this address."""
    return np.random.default_rng(_sequence(seed, path))


def child_seed(seed: int, *path: str | int) -> int:
    """A 63-bit seed at this address, for libraries that want an integer."""
    return int(_sequence(seed, path).generate_state(1, np.uint64)[0] >> 1)
