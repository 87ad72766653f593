"""Solving a linear transformation from known rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import KNOWN_PAIRS, FeatureAttack, Requirement
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import Embedding, View

CONVINCING = 0.05  # relative error of left-out rows below which a lower rank is believed
NO_SIGNAL = 0.9  # relative error above which left-out rows are as good as unpredicted


class KnownSampleReconstruction(FeatureAttack):
    """Solve features = messages x R by least squares from known rows (RAP case 3): exact for linear targets.

    With fewer rows than unknowns the solution of least norm is taken. The result is called verified only if every
    known row is reproduced from the others: that needs more rows than unknowns, and cannot happen by chance.
    """

    name: ClassVar[str] = "known-sample-reconstruction"
    requires: ClassVar[tuple[Requirement, ...]] = (KNOWN_PAIRS,)
    intercept: bool | None = Field(None, description="fit a constant too; none: whatever predicts left-out rows better")
    tolerance: float = Field(1e-3, gt=0, description="relative error of left-out known rows that counts as verified")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        samples = view.knowledge.samples
        assert samples is not None and samples.handles is not None
        features: dict[str, RowGuess] = {}
        errors: dict[str, float] = {}
        for party in self.victims(view):
            sent = view.sent_by(party)
            usable = np.isin(samples.handles, sent.rows)
            handles, targets = samples.handles[usable], samples.features[party][usable]
            constants = [False, True] if self.intercept is None else [self.intercept]
            best: tuple[Array | None, float] = (None, np.inf)
            guess = np.zeros(0)
            for coordinates in (evened(sent), sent) if len(handles) >= 4 else (evened(sent),):
                for constant in constants:
                    found = solve(_with(coordinates.at(handles), constant), targets)
                    if guess.size and not found[1] < best[1]:
                        continue
                    best = found
                    guess = self._values(view, party, _with(coordinates.values, constant), found[0], targets)
            errors[party] = best[1]
            features[party] = RowGuess(sent.rows, guess)
        verified = bool(errors) and max(errors.values()) < self.tolerance
        return {"features": features, "verified": verified, "notes": {"left_out_relative_error": errors}}

    def _values(self, view: View, party: str, sent: Array, solution: Array | None, targets: Array) -> Array:
        """The mapped table, or the mean where there is no map."""
        if solution is not None:
            return sent @ solution
        mean = known_mean(view, party)
        return np.tile(targets.mean(axis=0) if mean is None else mean, (len(sent), 1))


def evened(sent: Embedding) -> Embedding:
    """Messages in coordinates where all directions vary alike, so that the private matrix no longer matters.

    With fewer rows than unknowns the solution of least norm depends on the coordinates; in these it does not depend on
    the transformation. Directions a thousand times smaller than the largest may be rounding or drift and stay small.
    Neither these coordinates nor the plain ones are always better: strongly correlated columns favour the plain ones.
    """
    values = np.asarray(sent.values, dtype=np.float64)
    sizes, axes = np.linalg.eigh(values.T @ values / len(values))
    sizes = np.sqrt(np.maximum(sizes, 0.0))
    return Embedding(sent.rows, values @ (axes / np.maximum(sizes, 1e-3 * max(sizes[-1], 1e-300))))


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
