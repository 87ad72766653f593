"""SecureLayerForward: the sum that vFedSec's server rightfully gets is a system of linear equations for every row.

Z = sum_i W_i x_i + b (eq. 1, 2), and the server knows W: it broadcasts W_i itself (section 3), and replays what a lone
client updates in private (4.2). With one linear layer per party (A.1) a row has `hidden` equations per epoch. That
determines all columns if they are no more than the equations, and one-hot columns far beyond that.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.joint_rows import SURE, estimated
from attacks.one_hot import DEVIATIONS, solve_rows
from attacks.secure_mlp import solve_mlp
from attacks.secure_people import People, Seen, believable, cluster_guesses, confirmed, refine, residuals
from attacks.secure_rounds import AT_SERVER, SOLVABLE
from vflaudit.core.dataset import Array
from vflaudit.core.view import View

CHUNK = 128  # people whose equations are in memory at once


class SecureLayerForward(FeatureAttack):
    """Solve the Secure Layer's output for the rows: the server knows the weights, and one-hot columns are few bits.

    One epoch is solved by least squares or with one-hot constraints. Rows that stay open are solved from all epochs
    together, as training changes the weights. Works alone or with corrupted clients, whose part is subtracted.
    """

    name: ClassVar[str] = "secure-layer-forward"
    requires: ClassVar[tuple[Requirement, ...]] = (AT_SERVER, SOLVABLE)
    sweeps: int = Field(8, ge=1, description="times that rows and replayed weights are refined from all epochs")
    priors: int = Field(3, ge=0, description="times that the columns' covariance is estimated from the rows found")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        people = People(view)
        if people.parameters["model"] == "mlp":
            table, good, notes = solve_mlp(people, forward=True, gradient=False, priors=0, steps=100)
            features = cluster_guesses(people, believable(people, table), self.victims(view))
            return {"features": features, "verified": confirmed(people, good, own=False), "notes": notes}
        good = np.zeros(len(people.places), dtype=bool)

        def solve(weights: Array, target: Array, rows: Array) -> Array:
            values, good[rows] = forward(people, weights, target, rows)
            return values

        table, seen = people.solve_first(solve)
        single = float(good.mean())
        if not good.all():
            done = good.copy()

            def improve(seen: list[Seen], table: Array, noise: float) -> tuple[Array, Array]:
                return over_epochs(people, seen, table, done, noise, self.priors)

            def first(seen: list[Seen], table: Array, noise: float) -> tuple[Array, Array]:
                return once(people, seen, table)

            table, found, seen = refine(people, table, first, improve, self.sweeps)
            good = found | done
        notes = {
            "hidden": int(people.rounds[0].joined.shape[1]),
            "unknown_columns": int((~people.known).any(axis=0).sum()),
            "epochs": len({one.round.epoch for one in seen}),
            "explained_by_one_epoch": single,
            "explained": float(good.mean()),
            "residual": float(residuals(seen, table).max()),
            "noise": people.noise,
        }
        return {
            "features": cluster_guesses(people, believable(people, table), self.victims(view)),
            "verified": confirmed(people, good),
            "notes": notes,
        }


def forward(people: People, weights: Array, target: Array, rows: Array) -> tuple[Array, Array]:
    """Rows of one batch from one epoch, and which of them are explained; people with the same known columns at once."""
    values, good = people.values[rows].copy(), np.zeros(len(rows), dtype=bool)
    patterns, which = np.unique(people.known[rows], axis=0, return_inverse=True)
    for number, known in enumerate(patterns):
        here = np.flatnonzero(which.ravel() == number)
        unknown = np.flatnonzero(~known)
        if not len(unknown):
            continue
        place = np.full(people.width, -1)
        place[unknown] = np.arange(len(unknown))
        groups = [place[group] for group in people.groups if (place[group] >= 0).all()]
        rest = target[here] - values[here] @ weights.T
        solved = solve_rows(weights[:, unknown], rest, groups, people.noise, people.scale)
        values[np.ix_(here, unknown)], good[here] = solved.values, solved.explained
    return values, good


def once(people: People, seen: list[Seen], table: Array) -> tuple[Array, Array]:
    """All rows from the first epoch alone, and which of them are explained."""
    table, good = table.copy(), np.zeros(len(table), dtype=bool)
    for one in seen[: people.opening]:
        table[one.people], good[one.people] = forward(people, one.weights, one.target, one.people)
    return table, good


def over_epochs(
    people: People, seen: list[Seen], table: Array, done: Array, noise: float, priors: int
) -> tuple[Array, Array]:
    """The most likely rows given all epochs: weighted least squares for each person, one-hot groups rounded.

    Without a sample of the population, the columns' covariance is estimated from the rows (expectation maximisation).
    Rows that are done stay. A person is explained if the equations determine every unknown number and the residual is
    no more than the true noise.
    """
    table, good = table.copy(), done.copy()
    open_ = np.flatnonzero(~done)
    prior = people.prior()
    for _ in range(priors if people.pool is None else 0):
        spread = np.zeros((people.width, people.width))
        for rows in _chunks(open_):
            gram, image = equations(people, seen, rows)
            values, inverse = _likely(prior, gram, image, people.known[rows], people.values[rows], noise)
            table[rows] = values
            spread += inverse.sum(axis=0)
        prior = estimated(table, spread, people.scale)
    for rows in _chunks(open_):
        gram, image = equations(people, seen, rows)
        known = people.known[rows]
        values, inverse = _likely(people.prior(), gram, image, known, people.values[rows], noise)
        sure = _sure(people, known, inverse)  # without what other rows suggest
        values, _ = _likely(prior, gram, image, known, people.values[rows], noise)
        if people.groups:
            rounded, fixed = values.copy(), known.copy()
            for group in people.groups:
                rounded[:, group], fixed[:, group] = 0.0, True
                rounded[np.arange(len(rows)), group[values[:, group].argmax(axis=1)]] = 1.0
            rounded, inverse = _likely(people.prior(), gram, image, fixed, rounded, noise)
            sure = _sure(people, fixed, inverse)
            fits = misfit(people, seen, rows, rounded) <= DEVIATIONS * noise
            values, sure = np.where(fits[:, None], rounded, values), sure & fits
        table[rows] = values
        good[rows] = sure & (misfit(people, seen, rows, values) <= DEVIATIONS * people.noise)
    return table, good


def equations(people: People, seen: list[Seen], rows: Array) -> tuple[Array, Array]:
    """W'W and W'z summed over the rounds that each person takes part in."""
    place = np.full(len(people.places), -1)
    place[rows] = np.arange(len(rows))
    gram, image = np.zeros((len(rows), people.width, people.width)), np.zeros((len(rows), people.width))
    for one in seen:
        here = place[one.people]
        mine = here >= 0
        if mine.any():
            gram[here[mine]] += one.weights.T @ one.weights
            image[here[mine]] += one.target[mine] @ one.weights
    return gram, image


def misfit(people: People, seen: list[Seen], rows: Array, values: Array) -> Array:
    """Root mean square residual of each person over all rounds."""
    place = np.full(len(people.places), -1)
    place[rows] = np.arange(len(rows))
    total, count = np.zeros(len(rows)), np.zeros(len(rows))
    for one in seen:
        here = place[one.people]
        mine = here >= 0
        total[here[mine]] += ((one.target[mine] - values[here[mine]] @ one.weights.T) ** 2).mean(axis=1)
        count[here[mine]] += 1
    return np.sqrt(total / np.maximum(count, 1))


def _chunks(rows: Array) -> list[Array]:
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]


def _likely(
    prior: tuple[Array, Array], gram: Array, image: Array, known: Array, values: Array, noise: float
) -> tuple[Array, Array]:
    """Posterior mean of the unknown columns, and their covariance (zero for known ones)."""
    mean, precision = prior
    places = np.arange(len(mean))
    fixed = np.where(known, values, 0.0)
    matrix = gram / noise**2 + precision
    right = image / noise**2 + precision @ mean - np.einsum("nij,nj->ni", matrix, fixed)
    matrix = np.where(known[:, :, None] | known[:, None, :], 0.0, matrix)
    matrix[:, places, places] += known
    unit = 1.0 / np.sqrt(np.einsum("nii->ni", matrix))  # equal diagonals: the solve stays accurate
    inverse = np.linalg.inv(matrix * unit[:, :, None] * unit[:, None, :]) * unit[:, :, None] * unit[:, None, :]
    inverse[:, places, places] -= known
    found = np.einsum("nij,nj->ni", inverse, np.where(known, 0.0, right))
    return np.where(known, values, found), inverse


def _sure(people: People, known: Array, covariance: Array) -> Array:
    """Rows whose unknown columns all have a small deviation."""
    deviation = np.sqrt(np.maximum(np.einsum("nii->ni", covariance), 0.0))
    return np.asarray(np.all(known | (deviation < SURE * people.scale), axis=1))
