"""Labels from what a guest itself computes: a bottom that was trained with others' labels separates the classes.

Needs no gradients. Classes lie apart in a trained bottom's outputs, so the leading singular vector of the centred
outputs tells two classes apart (the spectral attack of Sun et al., 'Label leakage and protection from forward embedding
in vertical federated learning', 2022), and C - 1 of them tell C classes.

Columns that go with the label do so without any training, too. `inputs=columns` is the same attack on the guest's own
columns: what it finds is no leak of the protocol.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from attacks.label_gradient import ASSUMED, CLASSES, NAMES, groups, name_bundles
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import child_seed
from vflaudit.core.view import Embedding, View
from vflaudit.errors import InputError

Inputs = Literal["representation", "columns"]
INPUTS: Any = Field("representation", description="what the guest sent about its rows, or its bare columns")


def guest_columns(view: View) -> bool:
    """Whether a corrupted party holds columns."""
    return any(state.features is not None for state in view.states.values())


COLUMNS = Requirement("a corrupted party with columns (such as --corrupts client1 or guest1)", guest_columns)


def guest_inputs(view: View, inputs: Inputs) -> Embedding:
    """What corrupted guests know about each row, side by side: what they sent last, or their columns."""
    guests = [party for party, state in view.states.items() if state.features is not None]
    if inputs == "columns":
        held = np.logical_and.reduce([np.asarray(view.states[party].present) for party in guests])
        rows = np.flatnonzero(held)
        return Embedding(rows, np.hstack([np.asarray(view.states[party].features) for party in guests])[rows])
    try:
        sent = [view.sent_by(party) for party in guests]
    except InputError:
        raise InputError("no guest sent representations that name their rows: use inputs=columns") from None
    rows = sent[0].rows
    for table in sent[1:]:
        rows = np.intersect1d(rows, table.rows)
    return Embedding(rows, np.hstack([table.at(rows) for table in sent]))


class LabelFromEmbedding(Attack):
    """Tell classes apart by the leading singular vectors of what a guest sent; no label and no gradient is needed."""

    name: ClassVar[str] = "label-from-embedding"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (CLASSES, COLUMNS, NAMES)
    inputs: Inputs = INPUTS

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        table, classes = guest_inputs(view, self.inputs), len(view.spec.classes)
        left, scale, _ = np.linalg.svd(table.values - table.values.mean(axis=0), full_matrices=False)
        points = (left * scale)[:, : classes - 1]
        member, odds, blur = groups(points, classes, child_seed(seed, self.name))
        named, gap, sources = name_bundles(view, member, table.rows, seed)
        notes = {"named_by": sources or [ASSUMED], "naming_margin": gap, "width": table.values.shape[1], "blur": blur}
        return {"labels": RowGuess(table.rows, odds[:, np.argsort(named)]), "notes": notes}
