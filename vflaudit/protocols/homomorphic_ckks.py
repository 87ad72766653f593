"""CKKS (Microsoft SEAL, through TenSEAL) behind the interface of `homomorphic`."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.homomorphic import LARGEST, Encrypted, KeyPair, PublicKey, Randomness, module


@dataclass(frozen=True)
class Ring:
    """CKKS parameters of at least 128 bits of security. The last prime serves key generation and encryption only."""

    degree: int
    primes: tuple[int, ...]  # bits
    scale: int  # bits behind the binary point
    whole: int  # bits before it, sign included, that a result has room for


NAIVE = Ring(8192, (60, 40, 40, 60), 40, 50)  # as in SEAL's examples; the bytes of table 2 fit it (he_costs)
PACKED = {4096: Ring(4096, (42, 33, 33), 33, 8), 8192: Ring(8192, (60, 40, 60), 40, 19)}


def _parameters(ring: Ring) -> Any:
    seal = module("tenseal.sealapi")
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(ring.degree)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(ring.degree, list(ring.primes)))
    return parameters


@lru_cache(maxsize=8)
def _context(ring: Ring) -> Any:
    seal = module("tenseal.sealapi")
    return seal.SEALContext(_parameters(ring), True, seal.SEC_LEVEL_TYPE.TC128)


def _drawing(ring: Ring, randomness: Randomness) -> Any:
    """A context to draw randomness from, once: SEAL repeats itself under a seed, so every use has its own (slowly)."""
    if randomness.seed is None:
        return _context(ring)
    seal, parameters = module("tenseal.sealapi"), _parameters(ring)
    words = np.frombuffer(randomness.take(64), dtype="<u8").tolist()
    parameters.set_random_generator(seal.Blake2xbPRNGFactory(words))
    return seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """SEAL writes to files only: in memory, where there is a file system in memory."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def _saved(item: Any) -> bytes:
    with _folder() as folder:
        path = Path(folder, "item")
        item.save(str(path))
        return path.read_bytes()


def _loaded(item: Any, content: bytes, ring: Ring) -> Any:
    with _folder() as folder:
        path = Path(folder, "item")
        path.write_bytes(content)
        try:
            item.load(_context(ring), str(path))
        except (RuntimeError, ValueError):
            raise InputError("an encrypted message was not made with these CKKS parameters") from None
    return item


class CKKS(PublicKey):
    """What both layouts share. `self._seal` is SEAL's own interface."""

    def __init__(self, ring: Ring, key: Any, randomness: Randomness) -> None:
        self._seal, self.ring, self.key, self._random = module("tenseal.sealapi"), ring, key, randomness
        context = _context(ring)
        self._encoder, self._evaluator = self._seal.CKKSEncoder(context), self._seal.Evaluator(context)
        self._encryptor = self._seal.Encryptor(context, key)
        self.slots, self.limit = ring.degree // 2, 2.0 ** (ring.whole - 1)

    def _plain(self, values: Any, parms: Any = None, scale: float | None = None) -> Any:
        plain = self._seal.Plaintext()
        level = () if parms is None else (parms,)
        self._encoder.encode(values, *level, scale or 2.0**self.ring.scale, plain)
        return plain

    def _fresh(self, plain: Any) -> Any:
        cipher = self._seal.Ciphertext()
        if self._random.seed is None:
            self._encryptor.encrypt(plain, cipher)
        else:
            self._seal.Encryptor(_drawing(self.ring, self._random), self.key).encrypt(plain, cipher)
        return cipher

    def _combine(self, ciphers: Sequence[Any], scalars: Sequence[Any]) -> Any:
        """The sum of ciphertexts times plaintexts; SEAL refuses to multiply by zero, so `None` is left out."""
        total = None
        for cipher, scalar in zip(ciphers, scalars, strict=True):
            if scalar is None:
                continue
            part = self._seal.Ciphertext()
            self._evaluator.multiply_plain(cipher, scalar, part)
            if total is None:
                total = part
            else:
                self._evaluator.add_inplace(total, part)
        return self._fresh(self._plain(0.0, scale=4.0**self.ring.scale)) if total is None else total

    def add(self, first: Encrypted, second: Encrypted) -> Encrypted:
        parts = []
        for mine, other in zip(first.parts, second.parts, strict=True):
            total = self._seal.Ciphertext()
            self._evaluator.add(mine, other, total)
            parts.append(total)
        return Encrypted(first.shape, parts)

    def refresh(self, product: Encrypted) -> Encrypted:
        zeros = [self._fresh(self._plain(0.0, part.parms_id(), part.scale)) for part in product.parts]
        return self.add(product, Encrypted(product.shape, zeros))

    def dump(self, content: Encrypted) -> list[bytes]:
        return [_saved(part) for part in content.parts]

    def load(self, parts: Sequence[bytes], shape: tuple[int, int]) -> Encrypted:
        if len(parts) != self.count(shape):
            raise InputError(f"an encrypted message has {len(parts)} ciphertexts: expected {self.count(shape)}")
        return Encrypted(shape, [_loaded(self._seal.Ciphertext(), part, self.ring) for part in parts])

    def key_bytes(self) -> bytes:
        return _saved(self.key)

    @abstractmethod
    def count(self, shape: tuple[int, int]) -> int:
        """Ciphertexts of a result of this shape."""

    @abstractmethod
    def unpack(self, slots: list[Array], shape: tuple[int, int]) -> Array:
        """The matrix from the decrypted slots of each ciphertext."""


class Naive(CKKS):
    """One ciphertext per number."""

    def count(self, shape: tuple[int, int]) -> int:
        return shape[0] * shape[1]

    def encrypt_weights(self, weights: Array) -> Encrypted:
        return self.encrypt(weights)

    def encrypt(self, values: Array) -> Encrypted:
        parts = [self._fresh(self._plain(value)) for value in self.check(values).ravel().tolist()]
        return Encrypted((len(values), values.shape[1]), parts)

    def multiply(self, values: Array, weights: Encrypted) -> Encrypted:
        hidden = weights.shape[1]
        parts = []
        for row in self.check(values, LARGEST).tolist():
            scalars = [self._plain(value) if value else None for value in row]
            parts += [self._combine(weights.parts[column::hidden], scalars) for column in range(hidden)]
        return Encrypted((len(values), hidden), parts)

    def unpack(self, slots: list[Array], shape: tuple[int, int]) -> Array:
        return np.array([values[0] for values in slots]).reshape(shape)


class Packed(CKKS):
    """A ciphertext of the result holds as many whole rows as fit, one after the other."""

    def _rows(self, hidden: int) -> int:
        if hidden > self.slots:
            raise InputError(f"{hidden} outputs do not fit a ciphertext: expected at most {self.slots}")
        return self.slots // hidden

    def count(self, shape: tuple[int, int]) -> int:
        return -(-shape[0] // self._rows(shape[1]))

    def encrypt_weights(self, weights: Array) -> Encrypted:
        rows = self._rows(weights.shape[1])
        parts = [self._fresh(self._plain(np.tile(row, rows).tolist())) for row in self.check(weights)]
        return Encrypted((len(weights), weights.shape[1]), parts)

    def encrypt(self, values: Array) -> Encrypted:
        rows, last = self._rows(values.shape[1]), _context(self.ring).last_parms_id()
        checked = self.check(values)
        parts = [
            self._fresh(self._plain(checked[start : start + rows].ravel().tolist(), last))
            for start in range(0, len(checked), rows)
        ]
        return Encrypted((len(values), values.shape[1]), parts)

    def multiply(self, values: Array, weights: Encrypted) -> Encrypted:
        hidden, checked = weights.shape[1], self.check(values, LARGEST)
        rows, parts = self._rows(hidden), []
        for start in range(0, len(checked), rows):
            block = checked[start : start + rows]
            scalars = [self._plain(np.repeat(x, hidden).tolist()) if x.any() else None for x in block.T]
            total = self._combine(weights.parts, scalars)
            self._evaluator.rescale_to_next_inplace(total)  # once, after the sum: one prime is left to send
            parts.append(total)
        return Encrypted((len(values), hidden), parts)

    def unpack(self, slots: list[Array], shape: tuple[int, int]) -> Array:
        used = self._rows(shape[1]) * shape[1]
        return np.concatenate([values[:used] for values in slots])[: shape[0] * shape[1]].reshape(shape)


def layout(scheme: str, degree: int) -> tuple[type[CKKS], Ring]:
    """The class and the parameters that a scheme's name stands for."""
    if scheme == "ckks-naive":
        return Naive, NAIVE
    if degree not in PACKED:
        raise InputError(f"degree={degree} is not possible for packed CKKS: expected {' or '.join(map(str, PACKED))}")
    return Packed, PACKED[degree]


def generate(kind: type[CKKS], ring: Ring, randomness: Randomness) -> KeyPair:
    """A secret key, and a public key that was drawn apart from it."""
    seal = module("tenseal.sealapi")
    secret = seal.KeyGenerator(_drawing(ring, randomness)).secret_key()
    public = seal.PublicKey()
    seal.KeyGenerator(_drawing(ring, randomness), secret).create_public_key(public)
    key = kind(ring, public, randomness)
    decryptor, encoder = seal.Decryptor(_context(ring), secret), seal.CKKSEncoder(_context(ring))

    def decrypt(content: Encrypted) -> Array:
        slots = []
        for part in content.parts:
            plain = seal.Plaintext()
            decryptor.decrypt(part, plain)
            slots.append(np.array(encoder.decode_double(plain)))
        return key.unpack(slots, content.shape)

    return KeyPair(key, _saved(secret), decrypt)


def load_key(kind: type[CKKS], ring: Ring, content: bytes, randomness: Randomness) -> CKKS:
    """A public key that came from its holder."""
    return kind(ring, _loaded(module("tenseal.sealapi").PublicKey(), content, ring), randomness)
