"""RAP's remedy against colluding clients: everybody's rows reach the server in an order that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field

from defenses.base import RowsDefense
from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError

NONCE, TAG, KEY = 12, 16, 32  # bytes


class SecureShuffle(RowsDefense):
    """Shuffle everybody's rows through two mixes (RAP section 3): nobody alone can tell whose row is whose.

    RAP names secure multi-party shuffling and cites secret-shared shuffle (Chase, Ghosh, Poburinnaya 2020). This is the
    older and simpler member of that family, a two-hop mix net (Chaum 1981): senders encrypt every row for mix2 and send
    it to mix1; mix1 permutes ciphertexts; mix2 decrypts, permutes again and delivers. The result is the same: the
    receiver gets plain rows (of already transformed data) in a uniformly random order, the same for all tables.

    The order at the receiver is original[p1][p2], with p1 uniform and known to mix1, p2 uniform and known to mix2.
    mix1 sees ciphertexts under fresh keys that are not its own, and p1: it never sees p2, nor the output. mix2 sees the
    plain rows in the order p1 and its own p2: for it, every original order is equally likely. The receiver sees one
    composition of two uniform permutations, which is uniform. Each of them may even collude with senders or with the
    receiver. Only mix1 and mix2 together know the order. Security is against honest-but-curious parties, RAP's threat
    model; of active attacks only changed, exchanged or repeated ciphertexts are noticed.

    What no shuffle hides is the content of the rows: see the attacks leverage-matching and colluder-linking.

    One X25519 agreement (fresh key pair per table), HKDF-SHA256 and AES-256-GCM per row with a random nonce. mix2's
    public key, widths and types are known to everybody beforehand. Randomness derives from the run's seed, so that
    tests and suites give the same bytes every time; whoever knows the seed knows all keys and the order. Real use is
    `randomness=os`.
    """

    name: ClassVar[str] = "secure-shuffle"
    helpers: ClassVar[tuple[str, ...]] = ("mix1", "mix2")
    randomness: Literal["seed", "os"] = Field(
        "seed", description="where keys and orders come from: the run's seed (tests and suites only), or the system"
    )

    def exchange(
        self, wire: Wire, tables: Mapping[str, Array], senders: Mapping[str, str], receiver: str, seed: int
    ) -> tuple[dict[str, Array], Array]:
        """Three rounds: senders -> mix1 -> mix2 -> receiver."""
        rows = _common_length(tables)
        source = Source(None if self.randomness == "os" else seed)
        private = X25519PrivateKey.from_private_bytes(source.take(KEY, "mix2", "key"))
        wire.next_round()
        sealed: dict[str, Array] = {}
        for sender in dict.fromkeys(senders[name] for name in tables):
            with wire.computing(sender):
                outgoing: dict[str, Array] = {}
                for name in (name for name in tables if senders[name] == sender):
                    outgoing |= seal(name, tables[name], private.public_key(), source)
            sealed |= wire.send(sender, "mix1", "sealed", outgoing)
        with wire.computing("mix1"):
            first = source.permutation(rows, "mix1")
            mixed = {name: value if name.startswith(OPENING) else value[first] for name, value in sealed.items()}
        wire.next_round()
        forwarded = wire.send("mix1", "mix2", "mixed", mixed)
        with wire.computing("mix2"):
            second = source.permutation(rows, "mix2")
            opened = {name: unseal(name, forwarded, private, table)[second] for name, table in tables.items()}
        wire.next_round()
        return wire.send("mix2", receiver, "shuffled", opened), first[second]


OPENING = "opening "  # before a table's name: the sender's public key for that table


class Source:
    """Secret bytes for named uses: from the operating system, or derived from a seed (tests and suites only)."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def take(self, count: int, *use: str) -> bytes:
        """`count` bytes for this use; from a seed, the same every time and independent of all other uses."""
        return secret_bytes(self.seed, count, "secure-shuffle", *use)

    def permutation(self, count: int, *use: str) -> Array:
        """A uniform order: that of 128-bit random numbers (two equal ones do not happen)."""
        numbers = np.frombuffer(self.take(16 * count, *use, "order"), dtype="<u8").reshape(count, 2)
        return np.lexsort((numbers[:, 0], numbers[:, 1]))


def seal(name: str, table: Array, recipient: X25519PublicKey, source: Source) -> dict[str, Array]:
    """A table as ciphertext rows (rows, nonce + row + tag), and the public key that opens the agreement."""
    key = X25519PrivateKey.from_private_bytes(source.take(KEY, name, "key"))
    cipher, context = AESGCM(_derive(key.exchange(recipient), name)), name.encode()
    plain = np.ascontiguousarray(table).reshape(len(table), -1).view(np.uint8)
    nonces = source.take(NONCE * len(plain), name, "nonces")
    parts = []
    for position, row in enumerate(plain):
        nonce = nonces[NONCE * position : NONCE * (position + 1)]
        parts.append(nonce + cipher.encrypt(nonce, row.tobytes(), context))
    sealed = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(plain), NONCE + plain.shape[1] + TAG)
    opening = np.frombuffer(key.public_key().public_bytes_raw(), dtype=np.uint8)
    return {name: sealed, f"{OPENING}{name}": opening}


def unseal(name: str, sealed: Mapping[str, Array], private: X25519PrivateKey, like: Array) -> Array:
    """The rows of a table of the (public) width and type of `like`; anything but what was sealed is refused."""
    opening = X25519PublicKey.from_public_bytes(sealed[f"{OPENING}{name}"].tobytes())
    cipher, context = AESGCM(_derive(private.exchange(opening), name)), name.encode()
    rows = sealed[name]
    if len(np.unique(rows[:, :NONCE], axis=0)) != len(like) or len(rows) != len(like):
        raise InputError(f"secure-shuffle: the table {name!r} has missing or repeated rows after mix1")
    data = rows.tobytes()
    width = rows.shape[1]
    plain = []
    try:
        for start in range(0, len(data), width):
            plain.append(cipher.decrypt(data[start : start + NONCE], data[start + NONCE : start + width], context))
    except InvalidTag:
        raise InputError(f"secure-shuffle: a row of the table {name!r} was changed or is not meant for mix2") from None
    return np.frombuffer(b"".join(plain), dtype=like.dtype).reshape(like.shape)


def _derive(secret: bytes, name: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=b"vflaudit secure-shuffle " + name.encode()).derive(
        secret
    )


def _common_length(tables: Mapping[str, Array]) -> int:
    lengths = {len(table) for table in tables.values()}
    if len(lengths) != 1:
        raise InputError(f"secure-shuffle: tables of {sorted(lengths)} rows cannot be shuffled together")
    return lengths.pop()
