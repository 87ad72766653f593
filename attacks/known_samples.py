"""Solving a linear transformation from known rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import KNOWN_PAIRS, FeatureAttack, Requirement
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View

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
            known, targets = sent.at(samples.handles[usable]), samples.features[party][usable]
            options = [False, True] if self.intercept is None else [self.intercept]
            solved = {option: solve(_with(known, option), targets) for option in options}
            option = min(options, key=lambda choice: solved[choice][1])
            solution, errors[party] = solved[option]
            if solution is None:
                mean = known_mean(view, party)
                values = np.tile(targets.mean(axis=0) if mean is None else mean, (len(sent.rows), 1))
            else:
                values = _with(sent.values, option) @ solution
            features[party] = RowGuess(sent.rows, values)
        verified = bool(errors) and max(errors.values()) < self.tolerance
        return {"features": features, "verified": verified, "notes": {"left_out_relative_error": errors}}


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
