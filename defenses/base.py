"""A defense is a function at a named hook point of a protocol. Attacks are told which defenses are on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np

from vflaudit.core.config import Configurable
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.wire import Wire

Hook = Literal["features_in", "features_out", "labels_out", "gradients_out", "rows_out"]


class Defense(Configurable):
    """A protection at one hook. `applies_to` names protocols; empty means any that has the hook."""

    hook: ClassVar[Hook]
    applies_to: ClassVar[tuple[str, ...]] = ()
    helpers: ClassVar[tuple[str, ...]] = ()  # parties that the defense adds to the protocol


class ArrayDefense(Defense):
    """Changes an array just before its owner sends it (`..._out`), or before the protocol uses it (`..._in`)."""

    @abstractmethod
    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        """The protected array: one row for each row; some defenses change the number of columns."""


class RowsDefense(Defense):
    """Brings everybody's tables to their receiver in another order. It sends messages of its own."""

    hook: ClassVar[Hook] = "rows_out"

    @abstractmethod
    def exchange(
        self, wire: Wire, tables: Mapping[str, Array], senders: Mapping[str, str], receiver: str, seed: int
    ) -> tuple[dict[str, Array], Array]:
        """Tables as the receiver gets them, and (for the lab alone) which original row stands at each position."""


class Protection:
    """All defenses of a run, each with its own random stream per party."""

    def __init__(self, defenses: Sequence[Defense], seed: int) -> None:
        self.defenses = tuple(defenses)
        self._seed = seed
        self._streams: dict[tuple[int, str], np.random.Generator] = {}

    def __call__(self, hook: Hook, party: str, values: Array) -> Array:
        """Pass an outgoing array through every defense at this hook, in the order they were given."""
        for index, defense in enumerate(self.defenses):
            if defense.hook == hook and isinstance(defense, ArrayDefense):
                key = (index, party)
                if key not in self._streams:
                    self._streams[key] = stream(self._seed, "defense", index, defense.name, party)
                values = defense.apply(values, self._streams[key])
        return values

    @property
    def shuffle(self) -> RowsDefense | None:
        """The defense that reorders rows, if there is one."""
        return next((defense for defense in self.defenses if isinstance(defense, RowsDefense)), None)
