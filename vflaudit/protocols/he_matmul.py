"""The Secure Layer under homomorphic encryption instead of masks: the baseline of vFedSec, section 6.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.homomorphic import (
    Encrypted,
    KeyPair,
    PublicKey,
    SchemeName,
    from_arrays,
    generate,
    load_key,
    to_arrays,
)
from vflaudit.protocols.vfedsec.channel import Batch, Channel, Masked, Part
from vflaudit.protocols.vfedsec.clusters import ACTIVE, clusters_of
from vflaudit.protocols.vfedsec.protocol import Training, VFedSec


class HEMatmul(VFedSec):
    """vFedSec with encrypted products instead of masked ones: clients encrypt W_i and multiply their batch with it.

    6.2 estimates the cost of HE protocols from two steps per forward pass: encrypt the weights, multiply a plain matrix
    with them. It leaves open who has the key. The server must not (it would read every product), and of the clients
    only the active one is in every round and rightfully learns the predictions: so it has the key here, decrypts the
    sum and returns it. It therefore sees Z, which masks would keep from it; and it can read every product if the server
    hands it over. Everything else (ids, gradients of a cluster, keys renewed every K rounds) is vFedSec's.

    The returned sum is rounded to float32, because exact CKKS decryptions would tell the server the secret key (Li and
    Micciancio 2021); rounding stops the plain attack, only noise flooding would be a proof.

    A client knows its own W_i (section 3), so encrypting W_i protects nothing that encrypting the product would not:
    `encrypts=product` does that, far faster. `security=clear` is the unsecured twin.
    """

    name: ClassVar[str] = "he-matmul"
    hooks: ClassVar[frozenset[str]] = frozenset({"gradients_out"})

    scheme: SchemeName = Field(
        "ckks-packed", description="Paillier or CKKS, one ciphertext per number as in 6.3, or packed"
    )
    key_bits: int = Field(2048, ge=512, description="of Paillier; fewer than 2048 are for tests")
    degree: Literal[4096, 8192] = Field(4096, description="of packed CKKS: 8192 is more precise and holds more")
    encrypts: Literal["weights", "product"] = Field(
        "weights", description="what a client encrypts: W_i, then multiplied (6.2), or the product at once"
    )
    refresh: bool = Field(
        True, description="add a fresh zero to every product; without it, equal rows can have equal ciphertexts"
    )
    rounds: int = Field(5, ge=1, description="mini-batches to train on at most (6.2 reports five); it is slow")

    def channel(self, session: Session) -> Channel:
        if self.security == "clear":
            return super().channel(session)
        return Encryption(self, session, clusters_of(session.data))

    def execute(self, session: Session) -> Outcome:
        return FewRounds(self, session, self.channel(session)).run()


class FewRounds(Training):
    """Training that ends early."""

    protocol: HEMatmul

    def batches(self) -> Iterator[tuple[int, Array]]:
        return islice(super().batches(), self.protocol.rounds)


class Encryption(Masked):
    """Encrypted products, added by the server and decrypted by the active party."""

    protocol: HEMatmul

    def __init__(self, protocol: HEMatmul, session: Session, clusters: Sequence[tuple[str, ...]]) -> None:
        super().__init__(protocol, session, clusters)
        seeded = protocol.randomness == "seed"
        self.seed = child_seed(session.seed, "he-matmul", "keys") if seeded else None
        self.pair: KeyPair | None = None  # the active party's
        self.public: dict[str, PublicKey] = {}  # each party's copy

    def setup(self, batch: Batch) -> None:
        """A key pair as often as vFedSec renews its own; the server relays the public key."""
        super().setup(batch)
        protocol, generation = self.protocol, str(batch.number // self.protocol.rekey_every)
        self.wire.next_round()
        with self.wire.computing(ACTIVE):
            self.pair = generate(
                protocol.scheme,
                key_bits=protocol.key_bits,
                degree=protocol.degree,
                seed=self.seed,
                use=(ACTIVE, generation),
            )
            key = np.frombuffer(self.pair.public.key_bytes(), dtype=np.uint8)
        self.kept[ACTIVE][f"homomorphic key {generation}"] = np.frombuffer(self.pair.secret, dtype=np.uint8)
        got = {"server": self.send(ACTIVE, "server", "encryption_key", {"values": key}, batch)["values"]}
        self.wire.next_round()
        for party in self.passive:
            got[party] = self.send("server", party, "encryption_key", {"values": got["server"]}, batch)["values"]
        self.public = {ACTIVE: self.pair.public}
        for party, content in got.items():
            with self.wire.computing(party):
                self.public[party] = load_key(
                    protocol.scheme,
                    content.tobytes(),
                    degree=protocol.degree,
                    seed=self.seed,
                    use=(party, generation),
                )

    def join(self, parts: Mapping[str, Part], batch: Batch) -> Array:
        shape, total = next(iter(parts.values())).product.shape, None
        at_server = self.public["server"]
        for party, part in parts.items():
            with self.wire.computing(party):
                sent = to_arrays(self.public[party].dump(self.encrypted(party, part)))
            got = self.send(party, "server", "encrypted_output", sent, batch)
            with self.wire.computing("server"):
                loaded = at_server.load(from_arrays(got), shape)
                total = loaded if total is None else at_server.add(total, loaded)
        assert total is not None and self.pair is not None
        with self.wire.computing("server"):
            summed = to_arrays(at_server.dump(total))
        self.wire.next_round()
        got = self.send("server", ACTIVE, "encrypted_sum", summed, batch)
        with self.wire.computing(ACTIVE):
            joined = self.pair.decrypt(self.pair.public.load(from_arrays(got), shape)).astype(np.float32)
        self.wire.next_round()
        return self.about_rows(ACTIVE, "server", "decrypted_sum", joined, batch).astype(np.float64)

    def encrypted(self, party: str, part: Part) -> Encrypted:
        """One client's product under the active party's key (6.2). A bias is one more row of W, times one."""
        key, protocol = self.public[party], self.protocol
        key.check(part.product, key.limit / len(self.clients))  # so that the sum of all decrypts to itself
        if protocol.encrypts == "product":
            return key.encrypt(part.product)
        values, weights = part.embedding, part.weight.T
        if part.bias is not None:
            values = np.hstack([values, np.ones((len(values), 1), dtype=values.dtype)])
            weights = np.vstack([weights, part.bias])
        product = key.multiply(values, key.encrypt_weights(weights))
        return key.refresh(product) if protocol.refresh else product
