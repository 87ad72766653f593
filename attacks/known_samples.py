"""Solving a linear transformation from known rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks import signs
from attacks.base import KNOWN_PAIRS, FeatureAttack, Requirement
from attacks.few_rows import Columns, best_map, shrunk_moment
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.view import Embedding, View

CONVINCING = 0.05  # relative error of left-out rows below which a lower rank is believed
NO_SIGNAL = 0.9  # relative error above which left-out rows are as good as unpredicted


class KnownSampleReconstruction(FeatureAttack):
    """Solve features = messages x R by least squares from known rows (RAP case 3): exact for linear targets.

    With fewer rows than unknowns the solution of least norm is taken, or, if the matrix is RAP's, the mean of all
    solutions by how well they agree with the second moments of the columns (told, or estimated from known people). A
    known mean is then one more equation. People who are known as a group by their mean are one equation together.
    Random signs of rows are solved for. The result is called verified only if every known row is reproduced from the
    others: that needs more rows than unknowns, and cannot happen by chance.
    """

    name: ClassVar[str] = "known-sample-reconstruction"
    requires: ClassVar[tuple[Requirement, ...]] = (KNOWN_PAIRS,)
    intercept: bool | None = Field(None, description="fit a constant too; none: whatever predicts left-out rows better")
    tolerance: float = Field(1e-3, gt=0, description="relative error of left-out known rows that counts as verified")
    moments: bool = Field(True, description="use second moments if rows are too few")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        errors: dict[str, float] = {}
        methods: dict[str, str] = {}
        for party in self.victims(view):
            sent, pairs = view.sent_by(party), equations(view, party)
            values, errors[party], methods[party] = self._solve(view, party, sent, pairs, seed)
            features[party] = RowGuess(sent.rows, values)
        verified = bool(errors) and max(errors.values()) < self.tolerance and not signs.turned(view)
        return {
            "features": features,
            "verified": verified,
            "notes": {"left_out_relative_error": errors, "method": methods},
        }

    def _solve(
        self, view: View, party: str, sent: Embedding, pairs: tuple[Array, Array], seed: int
    ) -> tuple[Array, float, str]:
        """Guessed values for all rows, the error of left-out known rows, and how."""
        x, targets = pairs
        linear, width = linear_rap(view, party), sent.values.shape[1]
        constants = [self.intercept] if self.intercept is not None else [False] if linear else [False, True]
        even = evened(sent)
        best: tuple[Array | None, float] = (None, np.inf)
        guess = np.zeros(0)
        for forward in (even, np.eye(width)) if len(x) >= 4 else (even,):
            for constant in constants:
                solved = solve(_with(x @ forward, constant), targets)
                if guess.size and not solved[1] < best[1]:
                    continue
                best = solved
                guess = self._values(view, party, _with(sent.values @ forward, constant), solved[0], targets)
        # with two more rows than columns, known rows predict each other
        if linear and (len(x) <= width or (best[1] > CONVINCING and len(x) < width + 2)):
            known = known_columns(view, party, self.moments)
            found = best_map(view.table_of(party).values, x, targets, known, stream(seed, "attack", self.name, party))
            if found is not None:
                how = "least norm" if known.moment is None else f"{'exact' if known.exact else 'estimated'} moments"
                return sent.values @ found, best[1], how
        if signs.turned(view) and best[0] is not None:
            return signs.upright(guess, people(view, party), seed), best[1], "solved up to signs"
        return guess, best[1], "mean" if best[0] is None else "least squares"

    def _values(self, view: View, party: str, sent: Array, solution: Array | None, targets: Array) -> Array:
        """The mapped table, or the mean where there is no map."""
        if solution is not None:
            return sent @ solution
        mean = known_mean(view, party)
        return np.tile(targets.mean(axis=0) if mean is None else mean, (len(sent), 1))


def equations(view: View, party: str) -> tuple[Array, Array]:
    """Pairs of a message and the features behind it, from known rows.

    People with equal values are one pair, of the mean of their messages: if they are alike, their messages are too; if
    they are known as a group, by their mean, only the means belong together. With random signs that holds for single
    rows alone, and signs are solved first.
    """
    samples, sent = view.knowledge.samples, view.sent_by(party)
    assert samples is not None and samples.handles is not None
    usable = np.isin(samples.handles, sent.rows)
    x, y = sent.at(samples.handles[usable]), samples.features[party][usable]
    if signs.turned(view):
        found = signs.find_signs(x, y)
        return (x if found is None else x * found[:, None]), y
    return merged(x, y)


def merged(x: Array, y: Array) -> tuple[Array, Array]:
    """One pair for all that have the same y, with the mean of their x, in the order of their first."""
    _, first, number = np.unique(y, axis=0, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), x.shape[1]))
    np.add.at(sums, number.ravel(), x)
    order = np.argsort(first)
    return (sums / np.bincount(number.ravel())[:, None])[order], y[first[order]]


def linear_rap(view: View, party: str) -> bool:
    """Whether the party's table is its columns times RAP's Gaussian matrix, and nothing else was done to it."""
    spec, columns = view.spec, view.spec.columns[party]
    shuffle_only = all(defense["name"] == "secure-shuffle" for defense in spec.parameters.get("defenses", ()))
    alone = len(columns) == 1 and columns[0].kind == "numeric"  # with a pseudo feature
    return spec.parameters.get("like", spec.protocol) == "rap" and shuffle_only and not alone


def known_columns(view: View, party: str, moments: bool) -> Columns:
    """Mean and second moment of a party's columns: told, public, or estimated from all known people."""
    rows, mean = people(view, party), known_mean(view, party)
    middle = rows.mean(axis=0)
    spread, size = rows.var(axis=0).sum(), (rows**2).mean(axis=0).sum()
    error = 0.0 if mean is not None else float(spread / max(size, 1e-300)) / len(rows)
    mean = middle if mean is None else mean
    told, public = view.knowledge.second_moments.get(party), view.spec.standardised
    if not moments or (told is None and not public and len(rows) < 2 * len(mean)):
        return Columns(mean, error, None, False)  # too few people to know even deviations
    if told is not None:
        return Columns(mean, error, told, True)
    numeric = np.array([column.kind == "numeric" for column in view.spec.columns[party]])
    deviation = np.where(numeric, 1.0, rows.std(axis=0)) if public else None
    return Columns(mean, error, shrunk_moment(rows, mean, deviation), False)


def people(view: View, party: str) -> Array:
    """All rows of the population that the adversary knows, wherever they stand."""
    known = (view.knowledge.samples, view.knowledge.distribution)
    return np.vstack([rows.features[party] for rows in known if rows is not None])


def evened(sent: Embedding) -> Array:
    """Coordinates (messages times this) in which all directions vary alike: the private matrix no longer matters.

    With fewer rows than unknowns the solution of least norm depends on the coordinates; in these it does not depend on
    the transformation. Directions a thousand times smaller than the largest may be rounding or drift and stay small.
    Neither these coordinates nor the plain ones are always better: strongly correlated columns favour the plain ones.
    """
    values = np.asarray(sent.values, dtype=np.float64)
    sizes, axes = np.linalg.eigh(values.T @ values / len(values))
    sizes = np.sqrt(np.maximum(sizes, 0.0))
    return axes / np.maximum(sizes, 1e-3 * max(sizes[-1], 1e-300))


def _with(values: Array, intercept: bool) -> Array:
    return np.hstack([values, np.ones((len(values), 1))]) if intercept else values


def solve(x: Array, y: Array) -> tuple[Array | None, float]:
    """The linear map from x to y, and the relative error of known rows that are predicted from the others.

    Messages are float32 and networks drift while they train, so the smallest singular values may be noise: where
    left-out rows are predicted convincingly at some rank, that rank is used. Where they are predicted in part, there
    are too few rows to tell, and the solution of least norm is taken (RAP case 3a). Where they are not predicted at
    all, there is no linear map to be found: None.
    """
    left, values, right = np.linalg.svd(x, full_matrices=False)
    rank = int((values > values[0] * 1e-12).sum()) if values.size and values[0] > 0 else 0
    best, error = _best_rank(left[:, :rank], y)
    if error >= NO_SIGNAL and len(x) >= 4:
        return None, error
    if error > CONVINCING and len(x) <= x.shape[1]:
        best = rank
    return right[:best].T @ ((left[:, :best].T @ y) / values[:best, None]), error


def _best_rank(left: Array, y: Array) -> tuple[int, float]:
    """The rank with the smallest leave-one-out error, relative to the spread of y.

    At rank r the left-out residual is r_i / (1 - h_i) with the hat diagonal h; a row with h_i = 1 determines itself
    alone and proves nothing, and one such row is not enough.
    """
    best, error = left.shape[1], np.inf
    residual, slack = y.copy(), np.ones(len(y))
    for rank, vector in enumerate(left.T, start=1):
        residual = residual - np.outer(vector, vector @ y)
        slack = slack - vector**2
        proven = slack > 1e-6
        if proven.sum() < 2:
            break
        size = np.linalg.norm(y[proven] - y.mean(axis=0)) or 1.0
        found = float(np.linalg.norm(residual[proven] / slack[proven, None]) / size)
        if found < error:
            best, error = rank, found
    return best, error
