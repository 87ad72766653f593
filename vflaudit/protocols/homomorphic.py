"""Computing on encrypted matrices: Paillier, and CKKS element by element or well packed (vFedSec 6.2).

The product is plain X (rows x width) times encrypted W (width x hidden). One interface, three schemes:

paillier     phe: one ciphertext per number, fixed point with 24 digits behind the binary point.
ckks-naive   Microsoft SEAL: one ciphertext per number, nested Python loops, as the paper has to time it (6.3).
ckks-packed  Microsoft SEAL: the k-th ciphertext of W holds row k of W over and over, once per sample, so that one
             multiplication serves 2048 (4096) numbers of the result. No rotation, no evaluation key, depth one.

SEAL is reached through TenSEAL's low-level interface, because the high-level one rescales after each multiplication.
Ciphertexts of a product show linear relations between rows of X until `refresh` adds a fresh zero to each.
Not modelled: noise flooding. Whoever has the secret key sees noise that depends on X besides the result.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.errors import InputError, unknown

LARGEST = 2.0**30  # of a plain multiplier, whatever the scheme
SchemeName = Literal["paillier", "ckks-naive", "ckks-packed"]
SCHEMES: tuple[SchemeName, ...] = ("paillier", "ckks-naive", "ckks-packed")


@dataclass(frozen=True, eq=False)
class Encrypted:
    """A matrix of this shape, in ciphertexts laid out as the scheme likes."""

    shape: tuple[int, int]
    parts: list[Any]


class Randomness:
    """Secret bytes, each for one use: from the operating system, or (tests only) from a seed."""

    def __init__(self, seed: int | None, *use: str) -> None:
        self.seed, self._use, self._taken = seed, use, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self._taken += 1
        return secret_bytes(self.seed, count, "homomorphic", *self._use, str(self._taken))


class PublicKey(ABC):
    """What everybody may do."""

    limit: float  # numbers of a larger size do not decrypt to themselves

    @abstractmethod
    def encrypt_weights(self, weights: Array) -> Encrypted:
        """W, laid out to be multiplied."""

    @abstractmethod
    def encrypt(self, values: Array) -> Encrypted:
        """A matrix laid out as a product is, to be added to others of its kind."""

    @abstractmethod
    def multiply(self, values: Array, weights: Encrypted) -> Encrypted:
        """Plain X times encrypted W."""

    @abstractmethod
    def add(self, first: Encrypted, second: Encrypted) -> Encrypted:
        """The sum of two products, or of two encrypted matrices."""

    @abstractmethod
    def refresh(self, product: Encrypted) -> Encrypted:
        """The same numbers under fresh randomness: nothing of X is left in the ciphertexts but the result."""

    @abstractmethod
    def dump(self, content: Encrypted) -> list[bytes]:
        """Every ciphertext as bytes."""

    @abstractmethod
    def load(self, parts: Sequence[bytes], shape: tuple[int, int]) -> Encrypted:
        """Ciphertexts from bytes; an error if they are none of this key's."""

    @abstractmethod
    def key_bytes(self) -> bytes:
        """The public key."""

    def check(self, values: Array, limit: float | None = None) -> Array:
        """The values as float64, or an error that says what does not fit."""
        values, limit = np.asarray(values, dtype=np.float64), limit or self.limit
        size = np.abs(values)
        if values.size and not size.max() <= limit:  # also true of NaN
            raise InputError(
                f"the value {values[~(size <= limit)][0]:g} cannot be encrypted: this scheme holds -{limit:g} to "
                f"{limit:g}; packed CKKS holds more with degree=8192"
            )
        return values


@dataclass(frozen=True, eq=False)
class KeyPair:
    """A public key and what its holder alone can do."""

    public: PublicKey
    secret: bytes
    decrypt: Callable[[Encrypted], Array]

    def __repr__(self) -> str:
        return f"KeyPair({type(self.public).__name__})"  # never the secret


def to_arrays(parts: Sequence[bytes]) -> dict[str, Array]:
    """Ciphertexts as they cross the wire."""
    return {
        "ciphertexts": np.frombuffer(b"".join(parts), dtype=np.uint8),
        "sizes": np.array([len(part) for part in parts], dtype=np.int64),
    }


def from_arrays(arrays: Mapping[str, Array]) -> list[bytes]:
    """Ciphertexts as they came from the wire."""
    content, ends = arrays["ciphertexts"].tobytes(), np.cumsum(arrays["sizes"])
    if (arrays["sizes"] <= 0).any() or (ends[-1] if len(ends) else 0) != len(content):
        raise InputError("an encrypted message is cut short or too long")
    return [content[end - size : end] for size, end in zip(arrays["sizes"].tolist(), ends.tolist(), strict=True)]


def module(name: str) -> Any:
    """A library of the extra `he`, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"homomorphic encryption needs {name.partition('.')[0]!r}: pip install 'vflaudit[he]'"
        ) from None


def generate(
    scheme: str, *, key_bits: int = 2048, degree: int = 4096, seed: int | None = None, use: Sequence[str] = ()
) -> KeyPair:
    """A new key pair: `key_bits` for Paillier, `degree` (4096 or 8192) for packed CKKS; a seed is for tests only.

    With a seed, `use` must differ from one caller to the next: the same use takes the same randomness again.
    """
    from vflaudit.protocols import homomorphic_ckks as ckks
    from vflaudit.protocols import homomorphic_paillier as paillier

    _known(scheme)
    randomness = Randomness(seed, "holder", *use)
    if scheme == "paillier":
        return paillier.generate(key_bits, randomness)
    return ckks.generate(*ckks.layout(scheme, degree), randomness)


def load_key(
    scheme: str, content: bytes, *, degree: int = 4096, seed: int | None = None, use: Sequence[str] = ()
) -> PublicKey:
    """A public key that came from its holder."""
    from vflaudit.protocols import homomorphic_ckks as ckks
    from vflaudit.protocols import homomorphic_paillier as paillier

    _known(scheme)
    randomness = Randomness(seed, "user", *use)
    if scheme == "paillier":
        return paillier.Paillier(int.from_bytes(content, "big"), randomness)
    return ckks.load_key(*ckks.layout(scheme, degree), content, randomness)


def _known(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise unknown("homomorphic scheme", scheme, SCHEMES)
