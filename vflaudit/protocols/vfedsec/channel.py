"""How vFedSec's parties exchange batches and sums: masked, with sealed ids, or in the clear as split learning does.

A batch is known by its number, which every message carries. Where ids are sealed, messages name no rows: the place
`number * batch_size + position` is all that the server can call a row by (`VFedSec.places`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError
from vflaudit.protocols.base import Session
from vflaudit.protocols.vfedsec.batch_ids import open_ids, seal_ids
from vflaudit.protocols.vfedsec.clusters import ACTIVE
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeyRing, KeySource
from vflaudit.protocols.vfedsec.masks import Purpose, add_masks, unmask

if TYPE_CHECKING:
    from vflaudit.protocols.vfedsec.protocol import VFedSec


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch that the active party chose. `rows` are handles, known to it and to nobody else."""

    number: int
    rows: Array
    epoch: int | None

    @property
    def purpose(self) -> Purpose:
        """What its forward masks are for."""
        return "serving" if self.epoch is None else "forward"


@dataclass(frozen=True, eq=False)
class Part:
    """One client's share of the Secure Layer for a batch, zeros for rows that it does not hold (section 3)."""

    product: Array  # W_i [H_i]_p, shape (batch, hidden)
    embedding: Array  # [H_i]_p
    weight: Array
    bias: Array | None


class Channel(ABC):
    """What passes between the clients and the server besides weights, labels and the Secure Layer's gradient."""

    def __init__(self, protocol: VFedSec, session: Session, clusters: Sequence[tuple[str, ...]]) -> None:
        self.protocol, self.wire, self.data = protocol, session.wire, session.data
        self.clusters = list(clusters)
        self.clients = [party for cluster in clusters for party in cluster]
        self.passive = [party for party in self.clients if party != ACTIVE]

    def send(
        self, sender: str, receiver: str, kind: str, arrays: Mapping[str, Array], batch: Batch
    ) -> dict[str, Array]:
        """A message of this batch. Its number goes with it, and whoever gets another one refuses it."""
        numbered = {**arrays, "round": np.array(batch.number)}
        got = self.wire.send(sender, receiver, kind, numbered, epoch=batch.epoch)
        return check_round(got, batch.number, f"{kind!r} from {sender!r}")

    def about_rows(self, sender: str, receiver: str, kind: str, values: Array, batch: Batch) -> Array:
        """A message with one entry per row of the batch."""
        return self.send(sender, receiver, kind, {"values": values}, batch)["values"]

    @abstractmethod
    def open(self, batch: Batch) -> dict[str, Array]:
        """Tell the batch to those who hold its rows; returns each passive party's handles, -1 where not its own."""

    @abstractmethod
    def join(self, parts: Mapping[str, Part], batch: Batch) -> Array:
        """Z, the sum of all products, as the server gets it (eq. 2)."""

    @abstractmethod
    def add(self, cluster: tuple[str, ...], gradients: Mapping[str, Array], batch: Batch) -> Array:
        """The sum of a cluster's gradients of its slice, as the server gets it (4.2)."""

    def secrets(self, party: str) -> dict[str, Array]:
        """What the party knows of the exchange besides its messages."""
        return {}


def check_round(got: dict[str, Array], number: int, what: str) -> dict[str, Array]:
    """Refuse a message that is not of this round: a repeated, delayed or exchanged one."""
    told = got.pop("round", None)
    if told is None or int(told) != number:
        raise InputError(f"the message {what} is not of round {number}")
    return got


def of_all(cluster: tuple[str, ...], batch: Batch, data_present: Mapping[str, Array]) -> list[str]:
    """Who of a cluster holds each row of the batch: exactly one of them does."""
    held = np.stack([data_present[party][batch.rows] for party in cluster])
    if not (held.sum(axis=0) == 1).all():
        raise InputError("a row of the batch is held by none, or by several, of a cluster's parties")
    return [cluster[place] for place in held.argmax(axis=0)]


class Clear(Channel):
    """Unsecured split learning: ids, products and gradients in the clear (the comparison of section 6)."""

    def about_rows(self, sender: str, receiver: str, kind: str, values: Array, batch: Batch) -> Array:
        got = self.wire.send(sender, receiver, kind, {"values": values}, rows=batch.rows, epoch=batch.epoch)
        return got["values"]

    def open(self, batch: Batch) -> dict[str, Array]:
        self.wire.next_round()
        ids = self.send(ACTIVE, "server", "batch", {"ids": batch.rows}, batch)
        self.wire.next_round()
        told = {party: self.send("server", party, "batch", ids, batch)["ids"] for party in self.passive}
        return {party: np.where(self.data.blocks[party].present[ids], ids, -1) for party, ids in told.items()}

    def join(self, parts: Mapping[str, Part], batch: Batch) -> Array:
        got = [
            self.about_rows(party, "server", "output", part.product.astype(np.float32), batch)
            for party, part in parts.items()
        ]
        with self.wire.computing("server"):
            return np.stack(got).sum(axis=0, dtype=np.float64)

    def add(self, cluster: tuple[str, ...], gradients: Mapping[str, Array], batch: Batch) -> Array:
        sent = {party: {"values": gradients[party].astype(np.float32)} for party in cluster}
        got = [self.send(party, "server", "local_gradient", sent[party], batch)["values"] for party in cluster]
        with self.wire.computing("server"):
            return np.stack(got).sum(axis=0, dtype=np.float64)


class Masked(Channel):
    """The Secure Layer (sections 3 and 4): pairwise masks in Z_R over fixed-point values, ids under pairwise keys.

    With `security=quantised` the masks are left out and everything else stays: the same sums, bit for bit.
    """

    def __init__(self, protocol: VFedSec, session: Session, clusters: Sequence[tuple[str, ...]]) -> None:
        super().__init__(protocol, session, clusters)
        seeded = protocol.randomness == "seed"
        self.source = KeySource(child_seed(session.seed, "vfedsec", "keys") if seeded else None)
        self.rings: dict[str, KeyRing] = {}
        self.kept: dict[str, dict[str, Array]] = {party: {} for party in self.clients}

    def points(self, terms: int) -> FixedPoint:
        """The number format for a sum of so many values."""
        return FixedPoint(self.protocol.modulus_bits, self.protocol.fraction_bits, terms)

    def setup(self, batch: Batch) -> None:
        """4.1: fresh key pairs for every ordered pair of clients; the server relays the public keys."""
        generation = batch.number // self.protocol.rekey_every
        self.wire.next_round()
        mailbox: dict[str, dict[str, Array]] = {party: {} for party in self.clients}
        for party in self.clients:
            others = [other for other in self.clients if other != party]
            with self.wire.computing(party):
                self.rings[party] = KeyRing(party, others, generation, self.source)
                keys = self.rings[party].public_keys()
            for other, key in self.send(party, "server", "public_keys", keys, batch).items():
                mailbox[other][party] = key
        self.wire.next_round()
        for party in self.clients:
            got = self.send("server", party, "peer_keys", mailbox[party], batch)
            with self.wire.computing(party):
                self.rings[party].agree(got)
                self.kept[party] |= self.rings[party].secrets()

    def open(self, batch: Batch) -> dict[str, Array]:
        if batch.number % self.protocol.rekey_every == 0:
            self.setup(batch)
        present = {party: self.data.blocks[party].present for party in self.passive}
        passive_clusters = [cluster for cluster in self.clusters if cluster != (ACTIVE,)]
        self.wire.next_round()
        with self.wire.computing(ACTIVE):
            holders = [of_all(cluster, batch, present) for cluster in passive_clusters]
            keys = {party: self.rings[ACTIVE].id_key(party) for party in self.passive}
            sealed = seal_ids(batch.rows, holders, keys, batch.number, self.source, batch.purpose)
        relayed = self.send(ACTIVE, "server", "batch", sealed, batch)
        self.wire.next_round()
        opened: dict[str, Array] = {}
        for place, cluster in enumerate(passive_clusters):
            for party in cluster:
                got = self.send("server", party, "batch", relayed, batch)
                with self.wire.computing(party):
                    key = self.rings[party].id_key(ACTIVE)
                    opened[party] = open_ids(got, party, place, key, batch.number, batch.purpose)
        return opened

    def _masked(self, party: str, values: Array, group: Sequence[str], purpose: Purpose, batch: Batch) -> Array:
        encoded = self.points(len(group)).encode(values)
        if self.protocol.security == "masked":
            keys = {other: self.rings[party].mask_key(other) for other in group if other != party}
            add_masks(encoded, party, keys, group, batch.number, purpose)
        return encoded

    def _sum(
        self, kind: str, values: Mapping[str, Array], group: Sequence[str], purpose: Purpose, batch: Batch
    ) -> Array:
        masked: dict[str, Array] = {}
        for party in group:
            with self.wire.computing(party):
                out = self._masked(party, values[party], group, purpose, batch)
            masked[party] = self.about_rows(party, "server", kind, out, batch)
        with self.wire.computing("server"):
            return self.points(len(group)).decode(unmask(masked, group))

    def join(self, parts: Mapping[str, Part], batch: Batch) -> Array:
        products = {party: part.product for party, part in parts.items()}
        return self._sum("masked_output", products, self.clients, batch.purpose, batch)

    def add(self, cluster: tuple[str, ...], gradients: Mapping[str, Array], batch: Batch) -> Array:
        return self._sum("masked_gradient", gradients, cluster, "gradient", batch)

    def secrets(self, party: str) -> dict[str, Array]:
        return self.kept[party]
