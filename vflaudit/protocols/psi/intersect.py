"""One interface for both implementations: sets of ids in, the places of the shared ids out, at every party."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError
from vflaudit.protocols.psi.curve import id_bytes

Method = Literal["diffie-hellman", "openmined"]


@dataclass(frozen=True, eq=False)
class Intersection:
    """Where each party finds the shared ids in its own list, in an order that all share; and what it kept secret."""

    places: Mapping[str, Array]
    secrets: Mapping[str, Mapping[str, Array]]


def intersect(
    wire: Wire,
    ids: Mapping[str, Sequence[str]],
    leader: str,
    *,
    method: Method = "diffie-hellman",
    seed: int | None = None,
) -> Intersection:
    """Every party learns which of its ids all others hold too, through the leader. Without a seed, the OS gives keys.

    Ids are equal if their code points are. One that a party holds twice counts once, at its first place. The leader
    learns the intersection and tells it to the others, to whom nothing in it is new but that it is shared.
    """
    if leader not in ids:
        raise InputError(f"psi: the leader {leader!r} has no ids: expected one of {', '.join(ids)}")
    first: dict[str, dict[str, int]] = {}
    for party, names in ids.items():
        first[party] = {}
        for place, name in enumerate(names):
            first[party].setdefault(name, place)
    shared, secrets = list(first[leader]), {party: dict[str, Array]() for party in ids}
    if len(ids) > 1:
        if method == "openmined":
            from vflaudit.protocols.psi.openmined import leader_learns
        else:
            from vflaudit.protocols.psi.diffie_hellman import leader_learns
        shared, secrets = leader_learns(wire, leader, {party: list(names) for party, names in first.items()}, seed)
    shared = sorted(shared)  # an order that depends on nothing but the intersection
    places = {leader: np.array([first[leader][name] for name in shared], dtype=np.int64)}
    wire.next_round()
    for party in ids:
        if party == leader:
            continue
        with wire.computing(leader):
            told = np.frombuffer(b"".join(map(_digest, shared)), dtype=np.uint8).reshape(-1, 32)
        got = wire.send(leader, party, "psi_shared", {"digests": told})["digests"]
        with wire.computing(party):
            own = {_digest(name): place for name, place in first[party].items()}
            if not all(row.tobytes() in own for row in got):
                raise InputError(f"psi: {leader} told {party} of a shared id that it does not hold")
            places[party] = np.array([own[row.tobytes()] for row in got], dtype=np.int64)
    return Intersection({party: places[party] for party in ids}, secrets)


def _digest(name: str) -> bytes:
    return hashlib.sha256(b"vflaudit psi, shared id: " + id_bytes(name)).digest()
