"""Client failures (IV-E): who is offline, and what the host uses instead of what does not come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array

Remedy = Literal["cache", "zeros"]


class Silent(Exception):
    """A guest did not answer (in time)."""


class Attendance:
    """Each guest is offline for a whole epoch with probability p_fail; in the first epoch of a phase nobody is.

    A guest that really stops answering counts as offline until the next epoch, where it is asked again.
    """

    def __init__(self, guests: Sequence[str], p_fail: float, rng: np.random.Generator) -> None:
        self.guests, self.p_fail, self.rng = tuple(guests), p_fail, rng
        self.online = self.guests
        self.epoch: int | None = None
        self.missed = 0  # epochs that guests missed, wholly or in part

    def begin(self, epoch: int) -> None:
        """Draw who is online, when an epoch begins."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        skipped = (self.rng.random(len(self.guests)) < self.p_fail) & (epoch > 0)
        self.online = tuple(guest for guest, skip in zip(self.guests, skipped, strict=True) if not skip)
        self.missed += int(skipped.sum())

    def lose(self, guest: str) -> None:
        """This guest did not answer."""
        self.online = tuple(other for other in self.online if other != guest)
        self.missed += 1

    def everybody(self) -> None:
        """A phase is over: the next one, and serving, ask all guests again."""
        self.online, self.epoch = self.guests, None


class Cache:
    """The last that each guest sent about each row, at the host; zeros about rows of which nothing ever came."""

    def __init__(self, rows: int, shapes: Mapping[str, Mapping[str, tuple[int, ...]]], remedy: Remedy) -> None:
        self.keep = remedy == "cache"
        self.tables = {
            guest: {name: np.zeros((rows if self.keep else 1, *shape), np.float32) for name, shape in arrays.items()}
            for guest, arrays in shapes.items()
        }

    def store(self, guest: str, rows: Array, arrays: Mapping[str, Array]) -> None:
        """Remember what came (Alg. 1, lines 13-14; Alg. 2, line 11)."""
        if self.keep:
            for name, value in arrays.items():
                self.tables[guest][name][rows] = value

    def recall(self, guest: str, rows: Array) -> dict[str, Array]:
        """What stands in for a guest that is offline (Alg. 1, lines 10-11; Alg. 2, line 9), or zero vectors."""
        places = rows if self.keep else np.zeros(len(rows), dtype=np.int64)
        return {name: table[places] for name, table in self.tables[guest].items()}
