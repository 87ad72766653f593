"""Who takes part in APC-VFL and VFedTrans, and how they find the rows that all of them hold (section III)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError, unknown
from vflaudit.protocols.base import Session
from vflaudit.protocols.psi.intersect import Method, intersect

ACTIVE = "active"


def name_parties(data: VerticalDataset, active: str | None) -> VerticalDataset:
    """The active party has the labels, and the columns of `active`, or of the label owner, or of the first party."""
    first = active or (data.label_owner if data.label_owner in data.parties else data.parties[0])
    if first not in data.parties:
        raise unknown("party to be the active one", first, data.parties)
    others = [party for party in data.parties if party != first]
    names = {first: ACTIVE} | {party: f"passive{number}" for number, party in enumerate(others, 1)}
    return data.rename(names, label_owner=ACTIVE)


def passive_parties(data: VerticalDataset) -> tuple[str, ...]:
    """Everybody with columns but the active party."""
    return tuple(party for party in data.parties if party != ACTIVE)


def held_rows(data: VerticalDataset, party: str, *parts: str) -> Array:
    """The rows of these splits that a party holds."""
    rows = np.sort(np.concatenate([data.split[part] for part in parts if part in data.split]))
    return rows[data.blocks[party].present[rows]]


@dataclass(frozen=True, eq=False)
class Alignment:
    """D_A: handles of the rows that everybody holds, in order, and what each party keeps secret of finding them."""

    rows: Array
    secrets: dict[str, dict[str, Array]]


def align(
    session: Session, method: Method, randomness: Literal["os", "seed"], parts: tuple[str, ...] = ("train",)
) -> Alignment:
    """Private set intersection of the ids that the parties hold in these splits; training needs two shared rows.

    The intersection gives everybody the same order of the shared ids. Handles stand for it in the lab, sorted: a
    relabelling that is the same at all parties.
    """
    data = session.data
    held = {party: held_rows(data, party, *parts) for party in (ACTIVE, *passive_parties(data))}
    found = intersect(
        session.wire,
        {party: [str(name) for name in data.ids[rows]] for party, rows in held.items()},
        ACTIVE,
        method=method,
        seed=child_seed(session.seed, "psi") if randomness == "seed" else None,
    )
    rows = {party: np.sort(held[party][places]) for party, places in found.places.items()}
    shared = rows[ACTIVE]
    assert all(np.array_equal(shared, theirs) for theirs in rows.values())
    if len(np.intersect1d(shared, data.split["train"])) < 2:
        raise InputError(f"dataset {data.name!r}: fewer than two training rows are held by every party")
    secrets = {party: {**found.secrets[party], "aligned rows": rows[party]} for party in rows}
    return Alignment(shared, secrets)
