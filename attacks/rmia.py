"""RMIA: how much likelier a candidate is under the released model than under others (Zarifzadeh et al., ICML 2024)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.membership_base import MembershipAttack, candidates, labels_of, margins, released
from attacks.membership_shadows import train_shadows
from vflaudit.core.dataset import Array
from vflaudit.core.view import View


class Rmia(MembershipAttack):
    """Compare a candidate's likelihood under the released model with its mean over a few reference models.

    The test of the paper counts for how many rows z of the population p(x|model)/p(x) is at least gamma times
    p(z|model)/p(z). For one model and one population that share grows with the ratio of x alone,
    whatever gamma: it moves the threshold and not the order. The game sets thresholds itself, on rows that it does not
    count, so the ratio of x is the score and neither gamma nor a population is asked for.

    p(x) is the mean over reference models with x and without it; offline there are only the latter, and those with x
    are taken to have a p_out + 1 - a, as in the paper's offline attack. In a regression the likelihood is that of
    the residual, normal with the residual variance of references without x.
    """

    name: ClassVar[str] = "rmia"
    shadows: int = Field(16, ge=2, multiple_of=2, description="reference models")
    offline: bool = Field(False, description="references know nothing of the candidates; needs other rows")
    a: float = Field(0.3, ge=0, le=1, description="offline: how little training moves a likelihood (1: not at all)")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rows = candidates(view)
        labels = labels_of(rows)
        shadows = train_shadows(view, self.shadows, seed, offline=self.offline)
        inside = shadows.inside(len(labels), offline=self.offline)
        theirs = shadows.predict(rows.features)
        seen = released(view).predict(rows.features)
        ratio = self.log_ratio(*_log_likelihoods(seen, theirs, labels, inside, view.spec.task), inside)
        notes = {"shadows": self.shadows, "rows_per_shadow": int(shadows.members[0].sum())}
        return {"membership": ratio, "notes": notes}

    def log_ratio(self, seen: Array, theirs: Array, inside: Array) -> Array:
        """log p(x|model) - log p(x) from log-likelihoods (rows,) and (shadows, rows)."""
        without = _log_mean(theirs, ~inside)
        if self.offline:
            return seen - np.log(((1 + self.a) * np.exp(without) + 1 - self.a) / 2)
        return seen - np.logaddexp(_log_mean(theirs, inside), without) + np.log(2)


def _log_likelihoods(seen: Array, theirs: Array, labels: Array, inside: Array, task: str) -> tuple[Array, Array]:
    """Log-likelihoods of the true labels, at most 0, under the target and under every reference."""
    one, many = margins(seen, labels, task), margins(theirs, labels, task)
    if task == "classification":
        return -np.logaddexp(0, -one), -np.logaddexp(0, -many)
    variance = max(float((many[~inside] ** 2).mean()), np.finfo(np.float64).tiny)
    return -(one**2) / (2 * variance), -(many**2) / (2 * variance)


def _log_mean(values: Array, chosen: Array) -> Array:
    """log of the mean of exp(values) over the chosen shadows of every column."""
    return np.logaddexp.reduce(np.where(chosen, values, -np.inf), axis=0) - np.log(chosen.sum(axis=0))
