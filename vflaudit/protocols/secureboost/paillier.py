"""Additively homomorphic encryption of gradients (as in SecureBoost), through `phe`; and its stand-in without keys.

Both turn whole numbers into arrays that can travel, and add them up there. Keys come from the operating system.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.protocols.homomorphic import module
from vflaudit.protocols.secureboost.trees import histograms


class Cipher(Protocol):
    """The host encrypts and decrypts; a guest adds up what it cannot read."""

    def encrypt(self, numbers: Array) -> Array:
        """Whole numbers as an array that can travel."""

    def add_up(self, codes: Array, positions: Array, encrypted: Array, bins: int) -> Array:
        """The guest's histograms, still encrypted."""

    def decrypt(self, encrypted: Array) -> Array:
        """Whole numbers again."""


class Plain:
    """No encryption: bytes are counted as FedOnce 5.1 counts them ("we ignore the cryptographic overhead")."""

    def encrypt(self, numbers: Array) -> Array:
        """As they are."""
        return numbers

    def add_up(self, codes: Array, positions: Array, encrypted: Array, bins: int) -> Array:
        """Sums by node, column and bin."""
        return histograms(codes, positions, encrypted, bins)

    def decrypt(self, encrypted: Array) -> Array:
        """As they are."""
        return encrypted


class Paillier:
    """Real ciphertexts of 2 * bits each, as rows of bytes."""

    def __init__(self, bits: int) -> None:
        self.public, self._private = module("phe").generate_paillier_keypair(n_length=bits)
        self.length = bits // 4  # bytes of a number below n squared

    def encrypt(self, numbers: Array) -> Array:
        """(...,) whole numbers -> (..., bytes)."""
        found = [self.public.raw_encrypt(int(number) % self.public.n) for number in numbers.ravel()]
        return self._bytes(found, numbers.shape)

    def decrypt(self, encrypted: Array) -> Array:
        """(..., bytes) -> (...,) whole numbers."""
        found = [self._private.raw_decrypt(number) for number in self._numbers(encrypted)]
        half = self.public.n // 2
        signed = [number - self.public.n if number > half else number for number in found]
        return np.array(signed, dtype=np.int64).reshape(encrypted.shape[:-1])

    def add_up(self, codes: Array, positions: Array, encrypted: Array, bins: int) -> Array:
        """Products of ciphertexts are sums of what is in them.

        Each product starts with the guest's own fresh encryption of 0. Without it the host, who drew the randomness of
        every gradient, could tell from the randomness of a sum which rows are in it.
        """
        width, nodes = codes.shape[1], int(positions.max(initial=-1)) + 1
        square, trees = self.public.nsquare, positions.shape[1]
        numbers = np.array(self._numbers(encrypted), dtype=object).reshape(len(codes), trees, 2)
        shape = (nodes, width, bins, 2)
        zeros = [self.public.raw_encrypt(0) for _ in range(int(np.prod(shape)))]
        sums = np.array(zeros, dtype=object).reshape(shape)
        for row, tree in np.argwhere(positions >= 0):
            node = positions[row, tree]
            for column, code in enumerate(codes[row]):
                for kind in range(2):
                    sums[node, column, code, kind] = sums[node, column, code, kind] * numbers[row, tree, kind] % square
        return self._bytes(sums.ravel().tolist(), sums.shape)

    def _bytes(self, numbers: list[Any], shape: tuple[int, ...]) -> Array:
        content = b"".join(int(number).to_bytes(self.length, "big") for number in numbers)
        return np.frombuffer(content, dtype=np.uint8).reshape(*shape, self.length).copy()

    def _numbers(self, encrypted: Array) -> list[int]:
        flat = np.ascontiguousarray(encrypted).reshape(-1, self.length)
        return [int.from_bytes(line.tobytes(), "big") for line in flat]
