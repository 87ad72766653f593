"""FedSVD (Chai, Wang, Zhang, Yang, Cai, Chen, Yang 2022): a singular value decomposition of masked data.

With X = [X_1 ... X_k] side by side, a key server gives everybody the same orthogonal P (as a seed) and each party its
rows Q_i of an orthogonal Q, then leaves. Each party computes P X_i Q_i; a second server gets only their sum P X Q
(secure aggregation: pairwise masks in Z_R), whose singular values are those of X, and decomposes it into U' S V'. Only
who has P can undo the rotation: U = P'U'. The key server must not talk to the other one, or together they know X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.secret_bytes import secret_bytes
from vflaudit.core.wire import Wire
from vflaudit.protocols.apcvfl.parties import ACTIVE
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeyRing, KeySource
from vflaudit.protocols.vfedsec.masks import add_masks, unmask

SERVER, KEY_SERVER = "server", "key_server"
FRACTION_BITS = 40  # of 64: rounding stays below 1e-12, values may reach millions


@dataclass(frozen=True, eq=False)
class Representation:
    """What the active party has at the end: one row per shared row; and what everybody keeps secret."""

    values: Array
    secrets: dict[str, dict[str, Array]] = field(default_factory=dict)


def orthogonal(size: int, block: int, rng: np.random.Generator) -> Array:
    """A random orthogonal matrix, block-diagonal with uniformly distributed blocks (FedSVD's efficient masks)."""
    matrix = np.zeros((size, size))
    for start in range(0, size, block):
        end = min(start + block, size)
        q, r = np.linalg.qr(rng.standard_normal((end - start, end - start)))
        matrix[start:end, start:end] = q * np.sign(np.diag(r))  # without the signs QR is not uniform
    return matrix


def fedsvd(
    wire: Wire,
    tables: Mapping[str, Array],
    components: int | None,
    *,
    block: int,
    send_values: bool,
    seed: int | None,
) -> Representation:
    """The leading left singular vectors of the joint table, at the active party. Without a seed, the OS gives keys."""
    rows = len(tables[ACTIVE])
    widths = [table.shape[1] for table in tables.values()]
    with wire.computing(KEY_SERVER):
        row_seed = secret_bytes(seed, 32, "fedsvd", "rows")
        right = orthogonal(sum(widths), block, _generator(secret_bytes(seed, 32, "fedsvd", "columns")))
        slices = dict(zip(tables, np.split(right, np.cumsum(widths)[:-1]), strict=True))
    wire.next_round()
    left: dict[str, Array] = {}
    secrets: dict[str, dict[str, Array]] = {}
    products: dict[str, Array] = {}
    for party, table in tables.items():
        sent = {"row_seed": np.frombuffer(row_seed, dtype=np.uint8), "columns": slices[party]}
        got = secrets[party] = wire.send(KEY_SERVER, party, "masks", sent)
        with wire.computing(party):
            left[party] = orthogonal(rows, block, _generator(got["row_seed"].tobytes()))
            products[party] = left[party] @ table @ got["columns"]
    masked = _sum(wire, products, seed, secrets)
    with wire.computing(SERVER):
        factor, values, _ = np.linalg.svd(masked, full_matrices=False)
        count = min(components or len(values), len(values))
    wire.next_round()
    told = {"left": factor[:, :count]} | ({"values": values[:count]} if send_values else {})
    found = wire.send(SERVER, ACTIVE, "factors", told)["left"]
    with wire.computing(ACTIVE):
        return Representation(left[ACTIVE].T @ found, secrets)


def _generator(secret: bytes) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(secret, "little"))


def _sum(wire: Wire, products: Mapping[str, Array], seed: int | None, secrets: Mapping[str, dict[str, Array]]) -> Array:
    """The sum of everybody's products, which is all that the server gets of them."""
    group, source = list(products), KeySource(seed)
    points = FixedPoint(64, FRACTION_BITS, len(group))
    rings: dict[str, KeyRing] = {}
    mailbox: dict[str, dict[str, Array]] = {party: {} for party in group}
    wire.next_round()
    for party in group:
        with wire.computing(party):
            rings[party] = KeyRing(party, [other for other in group if other != party], 0, source)
            keys = rings[party].public_keys()
        for other, key in wire.send(party, SERVER, "public_keys", keys).items():
            mailbox[other][party] = key
    wire.next_round()
    for party in group:
        got = wire.send(SERVER, party, "peer_keys", mailbox[party])
        with wire.computing(party):
            rings[party].agree(got)
            secrets[party].update(rings[party].secrets())
    wire.next_round()
    arrived: dict[str, Array] = {}
    for party in group:
        with wire.computing(party):
            encoded = points.encode(products[party])
            add_masks(encoded, party, {o: rings[party].mask_key(o) for o in group if o != party}, group, 0, "forward")
        arrived[party] = wire.send(party, SERVER, "masked", {"values": encoded})["values"]
    with wire.computing(SERVER):
        return points.decode(unmask(arrived, group))
