"""LiRA: the likelihood ratio of a model's output with and without a candidate (Carlini et al., S&P 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.membership_base import MembershipAttack, candidates, labels_of, margins, released
from attacks.membership_shadows import train_shadows
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.view import View

PRIOR = 8.0  # observations that the pooled variance counts as, beside a candidate's own


class Lira(MembershipAttack):
    """Compare the released model's margin on a candidate with those of shadows trained with it and without it.

    Margins of shadows are taken as normal, for each candidate by itself (algorithm 1 of the paper; the signed residual
    in a regression). Online, the score is the log-likelihood ratio; offline, how unlikely so good a margin is among
    shadows without the candidate. The variance is that of each candidate, or one for all, as the paper does with few
    shadows. By default the variance and what the candidate moves are its own as far as few shadows can tell, and
    otherwise those of candidates like it: no step of the paper, but stronger (docs/membership.md).
    """

    name: ClassVar[str] = "lira"
    shadows: int = Field(16, ge=4, multiple_of=2, description="shadow models")
    offline: bool = Field(False, description="shadows know nothing of the candidates; needs other rows")
    variance: Literal["shrunken", "pooled", "per-example"] = Field("shrunken", description="of a candidate's margins")
    queries: int = Field(1, ge=1, description="queries for each candidate, all but the first with noise")
    noise: float = Field(0.1, gt=0, description="deviation of the noise on numeric columns, in their deviations")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rows, task = candidates(view), view.spec.task
        labels = labels_of(rows)
        shadows = train_shadows(view, self.shadows, seed, offline=self.offline)
        inside = shadows.inside(len(labels), offline=self.offline)
        score = np.zeros(len(labels))
        for features in self.augmented(view, rows.features, seed):
            seen = margins(released(view).predict(features), labels, task)
            theirs = margins(shadows.predict(features), labels, task)
            score += self.score(seen, theirs, inside, task) / self.queries
        notes = {"shadows": self.shadows, "rows_per_shadow": int(shadows.members[0].sum())}
        return {"membership": score, "notes": notes}

    def augmented(self, view: View, features: Mapping[str, Array], seed: int) -> list[Mapping[str, Array]]:
        """The candidates as they are, then with noise on their numeric columns."""
        found: list[Mapping[str, Array]] = [features]
        rng = stream(seed, "attack", self.name, "noise")
        for _ in range(self.queries - 1):
            noisy = {}
            for party, values in features.items():
                numeric = np.array([column.kind == "numeric" for column in view.spec.columns[party]])
                size = self.noise * values.std(axis=0) * numeric
                noisy[party] = values + size * rng.standard_normal(values.shape)
            found.append(noisy)
        return found

    def score(self, seen: Array, theirs: Array, inside: Array, task: str) -> Array:
        """One number per candidate from the target's margins (rows,) and the shadows' (shadows, rows)."""
        mean_out, variance_out, count_out = self.normal(theirs, ~inside)
        if not self.offline:
            mean_in, variance_in, count_in = self.normal(theirs, inside)
            if self.variance == "shrunken":
                error = variance_in / count_in + variance_out / count_out
                mean_in, mean_out = shrunken_means(mean_in, mean_out, error, (variance_in + variance_out) / 2)
            return _log_density(seen, mean_in, variance_in) - _log_density(seen, mean_out, variance_out)
        deviation = np.sqrt(variance_out)
        if task == "classification":
            return (seen - mean_out) / deviation  # increasing in P(margin below `seen`)
        return -_log_between(-(np.abs(seen) + mean_out) / deviation, (np.abs(seen) - mean_out) / deviation)

    def normal(self, values: Array, chosen: Array) -> tuple[Array, Array, Array]:
        """Mean, variance as asked for, and number of the chosen shadows, for each candidate."""
        count = chosen.sum(axis=0)
        mean = np.where(chosen, values, 0.0).sum(axis=0) / count
        squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
        pooled = max(float(squares.sum() / (count - 1).sum()), np.finfo(np.float64).tiny)
        if self.variance == "pooled":
            return mean, np.full(len(mean), pooled), count
        weight = PRIOR if self.variance == "shrunken" else 0.0
        own = (weight * pooled + squares) / (weight + count - 1)
        return mean, np.maximum(own, 1e-6 * pooled), count  # the least is for candidates on which all shadows agree


def shrunken_means(mean_in: Array, mean_out: Array, error: Array, variance: Array) -> tuple[Array, Array]:
    """Means with and without a candidate whose difference is drawn towards that of candidates like it.

    Empirical Bayes: differences scatter around a regression on where and how widely the margins lie, by more than
    their sampling error (`error`, a variance) if candidates truly differ. What is beyond the error is their own.
    """
    middle, gap = (mean_in + mean_out) / 2, mean_in - mean_out
    table = np.column_stack([np.ones_like(middle), middle, middle**2, np.sqrt(variance)])
    weight = 1 / np.sqrt(error)
    typical = table @ np.linalg.lstsq(table * weight[:, None], gap * weight, rcond=None)[0]
    spread = max(float(((gap - typical) ** 2 - error).mean()), 0.0)
    gap = (spread * gap + error * typical) / (spread + error)
    return middle + gap / 2, middle - gap / 2


def _log_density(values: Array, mean: Array, variance: Array) -> Array:
    return -0.5 * ((values - mean) ** 2 / variance + np.log(variance))


def _log_between(low: Array, high: Array) -> Array:
    """log P(low < Z < high) of a standard normal Z, exact in the tails too."""
    from scipy.special import log_ndtr

    flip = low > 0  # the probability is that of the mirrored interval
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    top, bottom = log_ndtr(high), log_ndtr(low)
    return top + np.log1p(-np.exp(np.minimum(bottom - top, -1e-300)))
