"""What a colluding client undoes of a shuffle: it recognises its own people by its own columns."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.spatial import cKDTree

from attacks.base import KNOWN_PAIRS, FeatureAttack, Requirement
from attacks.known_samples import merged, solve
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError


def colluders(view: View) -> list[str]:
    """Corrupted clients that know their matrix and whose own columns came out of a shuffle."""
    found = []
    for party, state in view.states.items():
        if state.features is None or "matrix" not in state.parameters:
            continue
        try:
            table = view.table_of(party)
        except InputError:
            continue
        if table.shuffled:
            found.append(party)
    return found


COLLUDER = Requirement(
    "the receiver of a shuffled table together with a client in it that knows its own matrix "
    "(--corrupts server --corrupts client2 --defense secure-shuffle)",
    lambda view: bool(colluders(view)),
)


class ColluderLinking(FeatureAttack):
    """Undo RAP's shuffle with a colluding client's own rows, then solve the victim's table (RAP section 3).

    RAP proposes a secure shuffle so that 'the ID information is hidden from the server even though it may collude with
    some clients'. But the shuffled table has the colluder's columns, times a matrix that the colluder knows: undoing it
    shows which position has which of its own rows. Rows that are unique in its columns link; equal ones (categories)
    do not, and that is all that protects. Linked positions give ids to the victim's rows at the same positions. Several
    colluders join their columns, which makes fewer rows equal.
    """

    name: ClassVar[str] = "colluder-linking"
    requires: ClassVar[tuple[Requirement, ...]] = (COLLUDER, KNOWN_PAIRS)
    tolerance: float = Field(1e-3, gt=0, description="relative error of left-out known rows that counts as verified")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        parties = colluders(view)
        samples = view.knowledge.samples
        assert parties and samples is not None and samples.handles is not None
        handles, places = links(view, parties)
        where = np.full(view.spec.rows, -1)
        where[handles] = places
        features: dict[str, RowGuess] = {}
        errors: dict[str, float] = {}
        spanned = True
        for victim in self.victims(view):
            table = view.table_of(victim)
            values = table.values.astype(np.float64).reshape(len(table.values), -1)
            at = where[samples.handles]
            linked, targets = merged(values[at[at >= 0]], samples.features[victim][at >= 0])
            solution, errors[victim] = solve(linked, targets) if len(linked) else (None, np.inf)
            # equal rows predict each other: only rows that span the table, and two more, prove anything
            spanned &= len(linked) >= (rank := _rank(values)) + 2 and _rank(linked) == rank
            if solution is None:
                mean = known_mean(view, victim)
                made = np.tile(samples.features[victim].mean(axis=0) if mean is None else mean, (len(values), 1))
            else:
                made = values @ solution
            features[victim] = RowGuess(table.rows, made, table.shuffled)
        notes = {
            "colluders": parties,
            "unique_link_rate": len(handles) / len(view.table_of(parties[0]).values),
            "known_rows_linked": int((where[samples.handles] >= 0).sum()),
            "left_out_relative_error": {victim: e if np.isfinite(e) else None for victim, e in errors.items()},
        }
        return {"features": features, "verified": spanned and max(errors.values()) < self.tolerance, "notes": notes}


def _rank(values: Array) -> int:
    """Directions that are more than rounding."""
    return int(np.linalg.matrix_rank(values.T @ values / max(1, len(values)), rtol=1e-11, hermitian=True))


def links(view: View, parties: list[str]) -> tuple[Array, Array]:
    """Handles of the colluders' rows that stand at exactly one position, and these positions.

    Rows that a colluder sent outside the shuffle, as at serving, are not looked for: it knows they are not in it.
    """
    mine = np.ones(view.spec.rows, dtype=bool)
    for party in parties:
        present = view.states[party].present
        assert present is not None
        mine &= present
        for message in view.transcript.select(sender=party, kind="features"):
            if message.rows is not None:
                mine[message.rows] = False
    handles = np.flatnonzero(mine)
    found, wanted = (
        np.hstack(side) for side in zip(*(_columns(view, party, handles) for party in parties), strict=True)
    )
    position = _only(cKDTree(found), wanted)
    back = _only(cKDTree(wanted), found)
    row = np.flatnonzero(position >= 0)
    row = row[back[position[row]] == row]
    return handles[row], position[row]


def _columns(view: View, party: str, handles: Array) -> tuple[Array, Array]:
    """A colluder's columns out of the shuffle, with its matrix undone, and as it holds them, in units of rounding."""
    state, table = view.states[party], view.table_of(party)
    assert state.features is not None
    own, matrix = state.features[handles], state.parameters["matrix"]
    sent = table.values.astype(np.float64)
    precision = float(np.finfo(table.values.dtype).eps)
    if sent.shape[1] < len(matrix):  # not all of the projection was sent: it cannot be undone, but done again
        error = 2 * precision * np.abs(sent).max(axis=0, initial=0.0) + 1e-12
        return sent / error, own @ matrix[: own.shape[1], : sent.shape[1]] / error
    undo = np.linalg.inv(matrix)
    # what rounding on the wire can do to each column; a pseudo feature, if any, stands behind the real one
    error = 2 * precision * (np.abs(sent).max(axis=0, initial=0.0) @ np.abs(undo))[: own.shape[1]] + 1e-12
    return (sent @ undo)[:, : own.shape[1]] / error, own / error


def _only(tree: cKDTree, points: Array) -> Array:
    """For each point the one neighbour within rounding; -1 if there is none, or more than one."""
    distance, found = tree.query(points, k=min(2, tree.n), p=np.inf, distance_upper_bound=1.0)
    distance, found = distance.reshape(len(points), -1), found.reshape(len(points), -1)
    single = np.isfinite(distance).sum(axis=1) == 1
    return np.where(single, found[:, 0], -1)
