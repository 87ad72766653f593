"""The same interface on OpenMined's PSI (extra `psi`): Diffie-Hellman over P-256 in C++, between two parties.

With more parties the leader intersects with one after the other and goes on with what is left. Unlike the built-in
implementation, it then learns *which* of its ids matched at each step, and not only how many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError
from vflaudit.protocols.psi.curve import id_bytes
from vflaudit.protocols.psi.diffie_hellman import Secrets

FALSE_POSITIVES = 1e-9  # not used by the raw data structure, which has none, but the library asks for it


def leader_learns(
    wire: Wire, leader: str, sets: Mapping[str, Sequence[str]], seed: int | None
) -> tuple[list[str], Secrets]:
    """The ids that all sets share, as the leader finds them; and every party's keys."""
    psi = _library()
    keys = {party: secret_bytes(seed, 32, "psi", "openmined", party) for party in sets}
    # The library keeps the order of a request; a keyed order tells nothing.
    current = sorted(sets[leader], key=lambda name: hashlib.sha256(keys[leader] + id_bytes(name)).digest())
    secrets = {party: {"psi key": np.frombuffer(key, dtype=np.uint8)} for party, key in keys.items()}
    for party in sets:
        if party == leader:
            continue
        wire.next_round()
        with wire.computing(leader):
            client = psi.client.CreateFromKey(keys[leader], True)
            request = _array(client.CreateRequest(_texts(current)))
        got = wire.send(leader, party, "psi_blinded", {"leader": request})["leader"]
        with wire.computing(party):
            server = psi.server.CreateFromKey(keys[party], True)
            response = server.ProcessRequest(psi.Request.FromString(got.tobytes()))
            setup = server.CreateSetupMessage(FALSE_POSITIVES, len(current), _texts(sets[party]), psi.DataStructure.RAW)
        wire.next_round()
        answer = wire.send(party, leader, "psi_answer", {"leader": _array(response), "own": _array(setup)})
        with wire.computing(leader):
            places = client.GetIntersection(
                psi.ServerSetup.FromString(answer["own"].tobytes()),
                psi.Response.FromString(answer["leader"].tobytes()),
            )
            current = [current[place] for place in sorted(places)]
    return current, secrets


def _library() -> Any:
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise InputError("psi='openmined' needs OpenMined's PSI: pip install 'vflaudit[psi]'") from None


def _texts(ids: Sequence[str]) -> list[str]:
    """Ids as text that the library takes: digests, because an id may hold what UTF-8 cannot."""
    return [hashlib.sha256(id_bytes(name)).hexdigest() for name in ids]


def _array(message: Any) -> Array:
    return np.frombuffer(message.SerializeToString(), dtype=np.uint8)
