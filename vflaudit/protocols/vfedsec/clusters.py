"""Who holds what in vFedSec: one active party, and clusters of passive parties with the same columns (section 2.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vflaudit.core.dataset import Block, VerticalDataset
from vflaudit.errors import InputError

ACTIVE = "active"


def passive_names(count: int, first: int = 1) -> list[str]:
    """passive1, passive2, ..."""
    return [f"passive{number}" for number in range(first, first + count)]


def form_clusters(data: VerticalDataset, clients: int) -> VerticalDataset:
    """Encoded data under vFedSec's names: the label owner (or else the first party) is active and holds every row.

    Every other party becomes a cluster of `clients` passive parties with its columns and disjoint rows, dealt in turn
    (rows were put in random order when the data was loaded). Encoding comes first, so a cluster shares one scale.
    """
    first = data.label_owner if data.label_owner in data.blocks else data.parties[0]
    others = [party for party in data.parties if party != first]
    if not others:
        raise InputError("vfedsec needs a passive party: load the data with two parties or more")
    missing = [party for party in data.parties if not data.blocks[party].present.all()]
    if missing:
        raise InputError(f"vfedsec: party {missing[0]!r} lacks some rows; use overlap=1 (clusters share the rows out)")
    names = {party: passive_names(clients, 1 + clients * place) for place, party in enumerate(others)}

    def dealt(source: VerticalDataset, *, shared: bool) -> VerticalDataset:
        turn = np.arange(len(source)) % clients
        blocks: dict[str, Block] = {ACTIVE: source.blocks[first]}
        for party in others:
            for place, name in enumerate(names[party]):
                block = source.blocks[party]
                blocks[name] = replace(block, present=turn == place) if shared else block
        return replace(source, blocks=blocks, label_owner=ACTIVE)

    pool = None if data.aux is None else dealt(data.aux, shared=False)
    return replace(dealt(data, shared=True), aux=pool)


def clusters_of(data: VerticalDataset) -> list[tuple[str, ...]]:
    """The clusters in order; the active party's comes first and holds it alone."""
    return list(dict.fromkeys(data.cluster(party) for party in data.parties))
