"""Rows from two kinds of linear equations at once, right (Z = X W') and left (G = D' X), solved as one.

Turned into the singular directions of D, they fall apart into one small least-squares problem per direction, which is
solved exactly where every row has the same weights, and by conjugate gradients with that solution as preconditioner
otherwise. Cells that the equations leave open follow from the others by the columns' covariance, which is estimated
from the rows found (expectation maximisation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vflaudit.core.dataset import Array

SURE = 0.1  # deviation of a number, in deviations of its column, below which the equations determine it


@dataclass(frozen=True, eq=False)
class Equations:
    """What one round says about the open cells: z = x w' for its rows, and (if told) g = d' x for all of them."""

    rows: Array  # among the open rows
    weights: Array
    target: Array
    slope: Array
    gradient: Array | None
    mask: Array | None = None  # which outputs of a row count (all)

    def right(self, values: Array) -> Array:
        """(x w') w, without outputs that do not count."""
        out = values @ self.weights.T
        return (out if self.mask is None else out * self.mask) @ self.weights


@dataclass(frozen=True, eq=False)
class Part:
    """Open rows whose equations hang together: one batch if batches are fixed, everybody otherwise."""

    rows: Array
    rounds: list[Equations]
    turn: Array  # U of D = U S V'
    sizes: Array  # S^2
    gram: Array  # W'W over the rounds of a row, on average


class Joint:
    """Equations about a table of open cells. `reached` are columns that the gradients are about.

    `rights` and `lefts` are the deviations of the noise in Z and in G; without `rights` only gradients count.
    """

    def __init__(
        self, rounds: Sequence[Equations], sets: Sequence[Array], reached: Array, lefts: float, rights: float | None
    ) -> None:
        self.reached, self.lefts, self.rights = reached, lefts, rights
        self.count = sum(len(rows) for rows in sets)
        self.parts = [self._part(rows, rounds) for rows in sets if len(rows)]

    def _part(self, rows: Array, rounds: Sequence[Equations]) -> Part:
        place = np.full(self.count, -1)
        place[rows] = np.arange(len(rows))
        mine = [replace(one, rows=place[one.rows]) for one in rounds if len(one.rows) and place[one.rows[0]] >= 0]
        product, gram = np.zeros((len(rows), len(rows))), np.zeros((len(self.reached), len(self.reached)))
        for one in mine:
            if one.gradient is not None:
                product[np.ix_(one.rows, one.rows)] += one.slope @ one.slope.T
            share = len(one.rows) / len(rows) * (1.0 if one.mask is None else one.mask.mean(axis=0)[:, None])
            gram += one.weights.T @ (one.weights * share)
        sizes, turn = np.linalg.eigh(product)
        return Part(rows, mine, turn, np.maximum(sizes, 0.0), gram)

    def notes(self) -> dict[str, Any]:
        """Of the largest part: rows to solve for, the rank of the gradient at Z over all rounds, its condition.

        Directions below the noise tell nothing and do not count.
        """
        if not self.parts:
            return {}
        part = max(self.parts, key=lambda part: len(part.rows))
        size = np.sqrt(part.sizes)
        rank = int((size > self.lefts).sum())
        condition = float(size[-1] / size[-rank]) if rank else None
        return {"solved_together": len(part.rows), "rounds": len(part.rounds), "rank": rank, "condition": condition}

    def solve(
        self, mean: Array, precision: Array, scale: float, priors: int, steps: int, start: Array | None = None
    ) -> tuple[Array, Array]:
        """The most likely cells under a normal prior, and which are determined, for which no estimate counts."""
        cells = np.zeros((self.count, len(mean))) if start is None else start.copy()
        sure = np.ones(cells.shape, dtype=bool)
        for number in range(1 + priors):
            spread = np.zeros_like(precision)
            for part in self.parts:
                usable = np.zeros_like(part.gram) if self.rights is None else part.gram / self.rights**2
                split = Split(part, usable + precision, self.reached, self.lefts)
                cells[part.rows] = self._solve(part, split, cells[part.rows], mean, precision, steps)
                spread += split.spread()
                if number == 0:
                    sure[part.rows] = split.deviations() < SURE * scale
            mean, precision = estimated(cells, spread, scale)
        return cells, sure

    def _solve(self, part: Part, split: Split, start: Array, mean: Array, precision: Array, steps: int) -> Array:
        def apply(values: Array) -> Array:
            out = values @ precision
            for one in part.rounds:
                here = values[one.rows]
                if self.rights is not None:
                    out[one.rows] += one.right(here) / self.rights**2
                if one.gradient is not None:
                    out[one.rows] += one.slope @ (one.slope.T @ here) * self.reached / self.lefts**2
            return out

        right = np.tile(precision @ mean, (len(part.rows), 1))
        for one in part.rounds:
            if self.rights is not None:
                wanted = one.target if one.mask is None else one.target * one.mask
                right[one.rows] += wanted @ one.weights / self.rights**2
            if one.gradient is not None:
                right[one.rows] += one.slope @ one.gradient / self.lefts**2
        return conjugate(apply, split.solve, right, start, steps)


class Split:
    """The equations with the same W'W for everybody, solved exactly: one small system per direction of D."""

    def __init__(self, part: Part, matrix: Array, reached: Array, noise: float) -> None:
        self.turn, self.sizes = part.turn, part.sizes / noise**2
        self.reached = reached
        self.rest = np.linalg.inv(matrix[np.ix_(~reached, ~reached)])
        self.cross = matrix[np.ix_(reached, ~reached)]
        left = matrix[np.ix_(reached, reached)] - self.cross @ self.rest @ self.cross.T
        values, self.base = np.linalg.eigh((left + left.T) / 2)
        self.inverse = 1.0 / (np.maximum(values, 1e-3) + self.sizes[:, None])  # never below the prior by rounding

    def solve(self, right: Array) -> Array:
        """The table whose normal equations have this right side."""
        turned = self.turn.T @ right
        out = np.zeros_like(turned)
        other = turned[:, ~self.reached] @ self.rest
        first = ((turned[:, self.reached] - other @ self.cross.T) @ self.base * self.inverse) @ self.base.T
        out[:, self.reached] = first
        out[:, ~self.reached] = (turned[:, ~self.reached] - first @ self.cross) @ self.rest
        return self.turn @ out

    def deviations(self) -> Array:
        """The posterior deviation of every cell."""
        spread = np.zeros((len(self.turn), len(self.reached)))
        spread[:, self.reached] = self.turn**2 @ self.inverse @ (self.base**2).T
        carried = self.base.T @ self.cross @ self.rest
        spread[:, ~self.reached] = np.diag(self.rest) + self.turn**2 @ self.inverse @ carried**2
        return np.sqrt(np.maximum(spread, 0.0))

    def spread(self) -> Array:
        """The posterior covariance of a row's columns, summed over all rows."""
        total = np.zeros((len(self.reached), len(self.reached)))
        inner = (self.base * self.inverse.sum(axis=0)) @ self.base.T
        carried = self.cross @ self.rest
        total[np.ix_(self.reached, self.reached)] = inner
        total[np.ix_(self.reached, ~self.reached)] = -inner @ carried
        total[np.ix_(~self.reached, self.reached)] = -(inner @ carried).T
        total[np.ix_(~self.reached, ~self.reached)] = len(self.turn) * self.rest + carried.T @ inner @ carried
        return total


def estimated(table: Array, spread: Array, scale: float) -> tuple[Array, Array]:
    """Mean and precision of the columns, from rows and the sum of their posterior covariances."""
    mean = table.mean(axis=0)
    covariance = (spread + (table - mean).T @ (table - mean)) / len(table)
    return mean, np.linalg.inv(covariance + 1e-6 * scale**2 * np.eye(len(mean)))


Linear = Callable[[Array], Array]


def conjugate(apply: Linear, precondition: Linear, right: Array, start: Array, steps: int) -> Array:
    """Preconditioned conjugate gradients, until the error is nothing next to the solution."""
    found, gap = start.copy(), right - apply(start)
    ahead = direction = precondition(gap)
    energy, enough = float((gap * ahead).sum()), 1e-16 * float((right * precondition(right)).sum())
    for _ in range(steps):
        if energy <= enough:
            break
        image = apply(direction)
        length = energy / float((direction * image).sum())
        found += length * direction
        gap -= length * image
        ahead = precondition(gap)
        energy, before = float((gap * ahead).sum()), energy
        direction = ahead + energy / before * direction
    return found
