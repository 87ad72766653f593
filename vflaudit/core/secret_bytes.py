"""Secret bytes for keys and nonces: from the operating system, or derived from a seed for tests and suites."""

from __future__ import annotations

import hashlib
import os


def secret_bytes(seed: int | None, count: int, scope: str, *use: str) -> bytes:
    """`count` bytes for a use within a scope; from a seed, the same every time and independent of all other uses."""
    if seed is None:
        return os.urandom(count)
    return hashlib.shake_256("\x00".join((scope, str(seed), *use)).encode()).digest(count)
