"""VFedPCA (Cheung, Jiang, Yu, Lou 2022): principal components of vertically split data by power iteration.

All parties hold the same rows, so their matrices X_i X_i' have the same shape and an eigenvector has one entry per row.
Each party iterates u <- X_i X_i' u from a common start, and sends its eigenvector and eigenvalue to a server, which
returns their average weighted by the eigenvalues; the next period starts there. One local iteration per period is close
to the power method on the joint data; many are what the authors use, and give an average of the local components.

The paper finds one component. For more, each party takes the found direction out of its data and all start again. The
representation is the table of these vectors. (The code of VFedTrans projects the joint table, which nobody has.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.wire import Wire
from vflaudit.protocols.apcvfl.parties import ACTIVE
from vflaudit.protocols.vfedtrans.fedsvd import SERVER, Representation


def vfedpca(
    wire: Wire,
    tables: Mapping[str, Array],
    handles: Array,
    components: int | None,
    *,
    periods: int,
    iterations: int,
    seed: int,
) -> Representation:
    """Federated eigenvectors at every party, the leading first. The server is never told which rows they are about."""
    rest = {party: np.array(table, dtype=np.float64) for party, table in tables.items()}
    count = min(len(handles), sum(table.shape[1] for table in tables.values()))
    found: list[Array] = []
    for component in range(min(components or count, count)):
        with wire.computing(SERVER):
            start = stream(seed, "vfedpca", component).standard_normal(len(handles))
            merged = start / np.linalg.norm(start)
        told = _broadcast(wire, list(tables), "start", merged, handles)
        for _ in range(periods):
            wire.next_round()
            vectors, values = [], []
            for party, table in rest.items():
                with wire.computing(party):
                    vector, value = leading(table, told[party], iterations)
                got = wire.send(party, SERVER, "component", {"vector": vector, "value": np.array(value)})
                vectors.append(got["vector"])
                values.append(float(got["value"]))
            with wire.computing(SERVER):
                merged = _merge(vectors, values, merged)
            told = _broadcast(wire, list(tables), "merged", merged, handles)
        for party, table in rest.items():
            with wire.computing(party):
                rest[party] = table - np.outer(told[party], told[party] @ table)
        found.append(told[ACTIVE])
    return Representation(np.stack(found, axis=1))


def leading(table: Array, start: Array, iterations: int) -> tuple[Array, float]:
    """Power iteration on X X' from `start`: the vector, and its eigenvalue (zero if nothing is left)."""
    vector = start
    for _ in range(iterations):
        image = table @ (table.T @ vector)
        length = np.linalg.norm(image)
        if length < 1e-12:
            return start, 0.0
        vector = image / length
    return vector, float(np.sum((table.T @ vector) ** 2))


def _merge(vectors: list[Array], values: list[float], before: Array) -> Array:
    """The average by eigenvalue; all parties started from one vector, so their signs agree."""
    total = sum(value * vector for value, vector in zip(values, vectors, strict=True))
    length = np.linalg.norm(total)
    return before if length < 1e-12 else np.asarray(total / length)


def _broadcast(wire: Wire, parties: list[str], kind: str, vector: Array, handles: Array) -> dict[str, Array]:
    """The parties know which rows the entries are about: they agreed on them."""
    wire.next_round()
    return {party: wire.send(SERVER, party, kind, {"values": vector}, rows=handles)["values"] for party in parties}
