"""Who shares which secret with whom: a fresh key pair per pair of clients and generation (vFedSec 4.1).

The aggregator only relays public keys. It is honest but curious (5.1); one that replaces keys would sit in the middle
of every pair, and the paper leaves that to a public-key infrastructure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.errors import InputError

KEY = 32  # bytes, of X25519 keys and of the secrets


class KeySource:
    """Where keys and nonces come from: the operating system (no seed), or a seed (tests and suites only)."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed

    def take(self, count: int, *use: str) -> bytes:
        """`count` secret bytes; from a seed, the same for the same use."""
        return secret_bytes(self._seed, count, "vfedsec", *use)


class KeyRing:
    """One client's key pairs and secrets of one generation: sk_i^(j), pk_i^(j) and ss_ij for every other client j.

    Of every shared secret HKDF-SHA256 makes two independent ones, for masks and for sample ids, as figure 1 recommends.
    Both bind the two names, the public keys, the generation and the use. A new generation is a new key ring.
    """

    def __init__(self, owner: str, others: Sequence[str], generation: int, source: KeySource) -> None:
        if owner in others or len(set(others)) != len(others):
            raise InputError(f"vfedsec: {owner!r} cannot share keys with {list(others)}: names must differ")
        self.owner, self.others, self.generation = owner, tuple(others), generation
        self._private = {
            other: X25519PrivateKey.from_private_bytes(source.take(KEY, "key", owner, other, str(generation)))
            for other in self.others
        }
        self._public = {other: key.public_key().public_bytes_raw() for other, key in self._private.items()}
        self._mask: dict[str, bytes] = {}
        self._id: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"KeyRing(owner={self.owner!r}, others={list(self.others)}, generation={self.generation})"

    def public_keys(self) -> dict[str, Array]:
        """What the aggregator forwards to each other client: pk_i^(j), keyed by j."""
        return {other: np.frombuffer(key, dtype=np.uint8) for other, key in self._public.items()}

    def agree(self, received: Mapping[str, Array]) -> None:
        """Derive all secrets from the public keys that the others made for the owner, keyed by their names.

        The private keys are forgotten afterwards. Nothing changes if a key is refused.
        """
        if set(received) != set(self.others):
            raise InputError(
                f"vfedsec: {self.owner} got public keys of {sorted(received)}: expected {sorted(self.others)}"
            )
        if not self._private and self.others:
            raise InputError(f"vfedsec: {self.owner} has agreed on keys of generation {self.generation} already")
        shared = {other: self._exchange(other, received[other]) for other in self.others}
        for other, secret in shared.items():
            public = {self.owner: self._public[other], other: received[other].tobytes()}
            self._mask[other] = self._derive(secret, "masks", public)
            self._id[other] = self._derive(secret, "sample ids", public)
        self._private.clear()

    def mask_key(self, other: str) -> bytes:
        """The seed of the masks that the owner shares with `other`."""
        return self._secret(self._mask, other)

    def id_key(self, other: str) -> bytes:
        """The key for the sample ids between the owner and `other`."""
        return self._secret(self._id, other)

    def secrets(self) -> dict[str, Array]:
        """What the owner's private state holds of the masks: what a collusion with the owner brings."""
        return {
            f"mask key {self.generation} {other}": np.frombuffer(key, dtype=np.uint8)
            for other, key in self._mask.items()
        }

    def _exchange(self, other: str, public: Array) -> bytes:
        if public.dtype != np.uint8 or public.shape != (KEY,):
            raise InputError(f"vfedsec: the public key of {other} for {self.owner} is not {KEY} bytes")
        try:
            return self._private[other].exchange(X25519PublicKey.from_public_bytes(public.tobytes()))
        except ValueError:  # the shared secret would be zero for every private key
            raise InputError(f"vfedsec: the public key of {other} for {self.owner} is a point of low order") from None

    def _derive(self, secret: bytes, use: str, public: Mapping[str, bytes]) -> bytes:
        first, second = sorted(public)
        context = json.dumps(["vflaudit vfedsec", use, self.generation, first, second]).encode()
        info = context + public[first] + public[second]  # JSON ends itself, and keys have a fixed length: unambiguous
        return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret)

    def _secret(self, secrets: Mapping[str, bytes], other: str) -> bytes:
        if other not in self.others:
            raise InputError(f"vfedsec: {self.owner} shares no key with {other!r}: expected one of {list(self.others)}")
        if other not in secrets:
            raise InputError(f"vfedsec: {self.owner} has not agreed on keys of generation {self.generation} yet")
        return secrets[other]
