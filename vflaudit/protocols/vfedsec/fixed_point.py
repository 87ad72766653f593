"""Real numbers as integers modulo R, so that masks can be uniform and cancel exactly (vFedSec A.2).

    encode(v) = round(v * 2^fraction) mod R,   R = 2^bits,   half to even
    decode(s) = signed(s) * 2^-fraction

Negative numbers are the upper half of Z_R (two's complement), so sums of encoded values are sums of values as long as
the true sum stays in the signed half. The overflow rule makes that certain instead of likely: with at most `terms`
summands, no value may exceed `largest`, and one that does (or is not finite) is refused, never wrapped.

Each value is rounded by at most half a step, so a sum of n <= `terms` values is off by at most n * 2^-(fraction+1),
hence at most terms * 2^-(fraction+1). Float64 adds nothing to this as long as the encoded sum is below 2^53 in size;
above (64 bits only), decoding also rounds to float64, a relative 2^-53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError

_UNSIGNED: dict[int, type[np.uint32] | type[np.uint64]] = {32: np.uint32, 64: np.uint64}
_SIGNED: dict[int, type[np.int32] | type[np.int64]] = {32: np.int32, 64: np.int64}


@dataclass(frozen=True)
class FixedPoint:
    """Integers of `bits` bits of which `fraction` stand behind the point, for sums of at most `terms` values."""

    bits: Literal[32, 64]
    fraction: int
    terms: int

    def __post_init__(self) -> None:
        if self.bits not in _UNSIGNED:
            raise InputError(f"vfedsec: bits={self.bits} is not possible: expected 32 or 64")
        if not 0 <= self.fraction < self.bits:
            raise InputError(f"vfedsec: fraction={self.fraction} is not possible: expected 0 to {self.bits - 1}")
        if not 1 <= self.terms < 2 ** (self.bits - 1):
            raise InputError(f"vfedsec: terms={self.terms} is not possible: expected 1 to {2 ** (self.bits - 1) - 1}")

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """The unsigned type whose wrap-around is arithmetic modulo R."""
        return _UNSIGNED[self.bits]

    @property
    def resolution(self) -> float:
        """The step between neighbouring values."""
        return math.ldexp(1.0, -self.fraction)

    @cached_property
    def largest(self) -> float:
        """The largest size of a value: `terms` of them never leave the signed half of Z_R."""
        whole = (2 ** (self.bits - 1) - 1) // self.terms
        surplus = max(whole.bit_length() - 53, 0)
        return math.ldexp(whole >> surplus, surplus - self.fraction)  # rounded down to a float64, never up

    @property
    def error(self) -> float:
        """How far a decoded sum can be from the sum of the real values."""
        return self.terms * self.resolution / 2

    def encode(self, values: Array) -> Array:
        """The values in Z_R; an error if one of them is out of range or not finite."""
        values = np.asarray(values, dtype=np.float64)
        size = np.abs(values, out=np.empty_like(values, order="C"))  # contiguous, as masks need it
        if values.size and not size.max() <= self.largest:  # also true of NaN
            worst = values[~(size <= self.largest)][0]
            raise InputError(
                f"vfedsec: the value {worst:g} cannot be encoded: {self.bits} bits with fraction={self.fraction} and "
                f"{self.terms} terms hold -{self.largest:g} to {self.largest:g}; "
                f"choose a smaller fraction{' or bits=64' if self.bits == 32 else ''}"
            )
        whole = np.multiply(values, math.ldexp(1.0, self.fraction), out=size)
        return np.rint(whole, out=whole).astype(_SIGNED[self.bits]).view(self.dtype)

    def decode(self, total: Array) -> Array:
        """The real value of a sum of encoded values."""
        if total.dtype != self.dtype:
            raise InputError(f"vfedsec: a sum of type {total.dtype} cannot be decoded: expected {self.dtype.__name__}")
        return np.multiply(total.view(_SIGNED[self.bits]), self.resolution)
