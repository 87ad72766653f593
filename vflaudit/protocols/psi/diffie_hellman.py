"""Diffie-Hellman private set intersection (Meadows 1986; Huberman, Franklin, Hogg 1999), chained through one leader.

Two parties: the leader sends its ids blinded, H(x)^a. The other returns H(x)^ab in the same order, and its own ids
blinded, H(y)^b. The leader blinds those too and sees which of its own are among them.

More parties: after the first of them the leader has its ids blinded by both, goes on with those that matched, and so on
through the chain. Everybody else's ids are blinded by all earlier parties in turn before they are compared. So that the
leader does not learn *which* of its ids matched on the way, everybody but the last returns them in an order of its own
(sorted by the blinded value), and at the end the places of the final matches are traced back through the chain.

What is learned, by parties that follow the protocol, besides the intersection (given ideal hashing and the decisional
Diffie-Hellman assumption): the leader, the size of every set and of every intersection along the chain; the others,
sizes alone: of the leader's set or of the intersection so far, and of the sets that they help to blind. Nobody is
stopped from putting made-up ids into its set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.core.wire import Wire
from vflaudit.protocols.psi.curve import BYTES, Blinding, hash_points

Secrets = dict[str, dict[str, Array]]


def leader_learns(
    wire: Wire, leader: str, sets: Mapping[str, Sequence[str]], seed: int | None
) -> tuple[list[str], Secrets]:
    """The ids that all sets share, as the leader finds them; and every party's key."""
    keys = {party: secret_bytes(seed, BYTES, "psi", "diffie-hellman", party) for party in sets}
    blind = {party: Blinding(key) for party, key in keys.items()}
    chain = [party for party in sets if party != leader]
    with wire.computing(leader):
        mine = blind[leader](hash_points(sets[leader]))
        order = _order(mine)
        current = [mine[place] for place in order]
    orders: dict[str, list[int]] = {}
    kept: dict[str, list[int]] = {}
    for number, party in enumerate(chain):
        wire.next_round()
        got = _points(wire.send(leader, party, "psi_blinded", {"leader": _array(current)})["leader"])
        with wire.computing(party):
            both = blind[party](got)
            if party != chain[-1]:
                orders[party] = _order(both)
                both = [both[place] for place in orders[party]]
            own = sorted(blind[party](hash_points(sets[party])))
        wire.next_round()
        answer = wire.send(party, leader, "psi_answer", {"leader": _array(both), "own": _array(own)})
        both = _points(answer["leader"])
        with wire.computing(leader):
            lifted = blind[leader](_points(answer["own"]))
        for earlier in chain[:number]:
            wire.next_round()
            got = _points(wire.send(leader, earlier, "psi_lift", {"others": _array(lifted)})["others"])
            with wire.computing(earlier):
                raised = blind[earlier](got)
            wire.next_round()
            lifted = _points(wire.send(earlier, leader, "psi_lifted", {"others": _array(raised)})["others"])
        with wire.computing(leader):
            theirs = set(lifted)
            kept[party] = [place for place, point in enumerate(both) if point in theirs]
            current = [both[place] for place in kept[party]]
    places = _trace(wire, leader, chain, orders, kept)
    secrets = {party: {"psi key": np.frombuffer(key, dtype=np.uint8)} for party, key in keys.items()}
    return [sets[leader][order[place]] for place in places], secrets


def _trace(
    wire: Wire,
    leader: str,
    chain: Sequence[str],
    orders: Mapping[str, Sequence[int]],
    kept: Mapping[str, Sequence[int]],
) -> list[int]:
    """Where the final matches stand in the leader's first list: everybody undoes its own order."""
    places = list(range(len(kept[chain[-1]])))
    for party in reversed(chain):
        places = [kept[party][place] for place in places]
        if party in orders:
            wire.next_round()
            asked = wire.send(leader, party, "psi_trace", {"places": np.array(places, dtype=np.int64)})["places"]
            with wire.computing(party):
                before = np.array([orders[party][place] for place in asked], dtype=np.int64)
            wire.next_round()
            places = wire.send(party, leader, "psi_traced", {"places": before})["places"].tolist()
    return places


def _order(points: Sequence[bytes]) -> list[int]:
    """Places sorted by blinded value: an order that tells nothing to whoever has not the key."""
    return sorted(range(len(points)), key=points.__getitem__)


def _array(points: Sequence[bytes]) -> Array:
    return np.frombuffer(b"".join(points), dtype=np.uint8).reshape(-1, BYTES)


def _points(array: Array) -> list[bytes]:
    return [row.tobytes() for row in array]
