"""Paillier (phe) behind the interface of `homomorphic`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.homomorphic import LARGEST, Encrypted, KeyPair, PublicKey, Randomness, module

_EXPONENT = -6  # phe counts in powers of 16. One exponent for all: phe's own choice would tell the size of each number


class Paillier(PublicKey):
    """One ciphertext per number, in fixed point: 24 digits behind the binary point, 48 in a product."""

    def __init__(self, modulus: int, randomness: Randomness) -> None:
        self._phe, self._random = module("phe"), randomness
        self.key = self._phe.PaillierPublicKey(modulus)
        self.limit = 2.0**64  # far below n / 2 for every key of 512 bits or more

    def _encoded(self, value: float) -> Any:
        return self._phe.EncodedNumber(self.key, round(value * 16.0**-_EXPONENT) % self.key.n, _EXPONENT)

    def _fresh(self, encoded: Any) -> Any:
        size = (self.key.n.bit_length() + 7) // 8 + 16
        unit = 1 + int.from_bytes(self._random.take(size), "big") % (self.key.n - 1)
        return self.key.encrypt(encoded, r_value=unit)

    def encrypt_weights(self, weights: Array) -> Encrypted:
        return self.encrypt(weights)

    def encrypt(self, values: Array) -> Encrypted:
        parts = [self._fresh(self._encoded(value)) for value in self.check(values).ravel().tolist()]
        return Encrypted((len(values), values.shape[1]), parts)

    def multiply(self, values: Array, weights: Encrypted) -> Encrypted:
        width, hidden = weights.shape
        parts = []
        for row in self.check(values, LARGEST).tolist():
            scalars = [self._encoded(value) for value in row]
            for column in range(hidden):
                total = weights.parts[column] * scalars[0]
                for place in range(1, width):
                    total = total + weights.parts[place * hidden + column] * scalars[place]
                parts.append(total)
        return Encrypted((len(values), hidden), parts)

    def add(self, first: Encrypted, second: Encrypted) -> Encrypted:
        return Encrypted(first.shape, [mine + other for mine, other in zip(first.parts, second.parts, strict=True)])

    def refresh(self, product: Encrypted) -> Encrypted:
        zeros = (self._fresh(self._phe.EncodedNumber(self.key, 0, part.exponent)) for part in product.parts)
        return Encrypted(product.shape, [part + zero for part, zero in zip(product.parts, zeros, strict=True)])

    def dump(self, content: Encrypted) -> list[bytes]:
        size = (self.key.nsquare.bit_length() + 7) // 8
        return [  # the exponent is public and the same for all
            bytes([-part.exponent]) + part.ciphertext(be_secure=False).to_bytes(size, "big") for part in content.parts
        ]

    def load(self, parts: Sequence[bytes], shape: tuple[int, int]) -> Encrypted:
        numbers = [(int.from_bytes(part[1:], "big"), -part[0]) for part in parts]
        expected = shape[0] * shape[1]
        known = all(0 < number < self.key.nsquare and scale in (_EXPONENT, 2 * _EXPONENT) for number, scale in numbers)
        if len(parts) != expected or not known:
            raise InputError("an encrypted message was not made with this Paillier key")
        return Encrypted(shape, [self._phe.EncryptedNumber(self.key, *number) for number in numbers])

    def key_bytes(self) -> bytes:
        return self.key.n.to_bytes((self.key.n.bit_length() + 7) // 8, "big")


def generate(bits: int, randomness: Randomness) -> KeyPair:
    """Two primes of half the bits each."""
    phe = module("phe")
    if randomness.seed is None:
        public, private = phe.generate_paillier_keypair(n_length=bits)
    else:
        first, second = (_prime(bits // 2, randomness) for _ in range(2))
        public = phe.PaillierPublicKey(first * second)
        private = phe.PaillierPrivateKey(public, first, second)
    key = Paillier(public.n, randomness)
    half = (bits // 2 + 7) // 8
    secret = b"".join(prime.to_bytes(half, "big") for prime in (int(private.p), int(private.q)))

    def decrypt(content: Encrypted) -> Array:
        values = [float(private.decrypt(part)) for part in content.parts]
        return np.array(values, dtype=np.float64).reshape(content.shape)

    return KeyPair(key, secret, decrypt)


def _prime(bits: int, randomness: Randomness) -> int:
    """A prime of exactly so many bits; the two highest are set, so that two of them have a product of twice as many."""
    number = int.from_bytes(randomness.take(bits // 8), "big") | 3 << (bits - 2) | 1
    while not module("phe.util").is_prime(number):
        number += 2
    return number
