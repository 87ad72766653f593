"""Bounds from two rates at a threshold: how often trials with the record exceed it, and how often those without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vflaudit.accounting.audit.bounds import (
    Array,
    Bonferroni,
    Bound,
    Correction,
    Fixed,
    Kind,
    Split,
    checked,
    geometric,
)
from vflaudit.accounting.events import Neighbours
from vflaudit.accounting.gaussian import gaussian_epsilon
from vflaudit.core.rates import _fair_ranks, _log_ratio, beta_limits
from vflaudit.errors import InputError

NODES = 400  # points at which the posterior of a rate is evaluated
FINE = 200  # thresholds of each kind among which half of the trials choose one


@dataclass(frozen=True, eq=False)
class Counts:
    """Per test: how many trials of each kind lie above the threshold. `share`: the error that each limit may have."""

    above_in: Array
    above_out: Array
    n_in: int
    n_out: int
    share: float

    def limits(self, tail: float) -> tuple[Array, Array]:
        """The true positive rate is at least, the false positive rate at most; each missing with `tail` * `share`."""
        low, _ = beta_limits(self.above_in, self.n_in, tail * self.share)
        _, high = beta_limits(self.above_out, self.n_out, tail * self.share)
        return low, high

    def perfect(self) -> Counts:
        """The same tests, had the scores been told apart perfectly."""
        return Counts(np.array([self.n_in]), np.array([0]), self.n_in, self.n_out, self.share)


def order_tests(inside: Array, outside: Array, tests: int) -> tuple[Array, Array, Array]:
    """Thresholds at fixed places of the ordered scores: cuts, and how many of each kind lie above.

    Half of the cuts are just above the k-th greatest "out" score, so k - 1 of those exceed it; the chance that a fresh
    one does is Beta(k, n - k + 1), whose upper quantile is the Clopper-Pearson limit of k - 1 successes. Given the cut,
    "in" scores above it are binomial. The other half are at the k-th least "in" score, the same with roles swapped.
    So the usual limits hold although the cut depends on the scores.
    """
    top, bottom = np.sort(outside)[::-1], np.sort(inside)
    k_out, k_in = geometric(outside.size // 2, (tests + 1) // 2), geometric(inside.size // 2, max(tests // 2, 1))
    cuts = np.concatenate([top[k_out - 1], np.nextafter(bottom[k_in - 1], -np.inf)])
    above_in = inside.size - np.searchsorted(bottom, cuts, side="right")
    above_out = outside.size - np.searchsorted(top[::-1], cuts, side="right")
    return cuts, above_in, above_out


def count(
    inside: Array, outside: Array, correction: Correction, rng: np.random.Generator, gain: Callable[[Counts], Array]
) -> Counts:
    """The tests that the correction allows, with counts on trials that did not choose them."""
    if isinstance(correction, Fixed):
        above = [np.array([(scores > correction.threshold).sum()]) for scores in (inside, outside)]
        return Counts(above[0], above[1], inside.size, outside.size, 1.0)
    ranks = _fair_ranks(np.concatenate([inside, outside]), rng).astype(np.float64)
    ranked_in, ranked_out = ranks[: inside.size], ranks[inside.size :]
    if isinstance(correction, Bonferroni):
        _, above_in, above_out = order_tests(ranked_in, ranked_out, correction.tests)
        return Counts(above_in, above_out, inside.size, outside.size, 1 / len(above_in))
    if not isinstance(correction, Split):
        raise InputError(f"correction {correction!r}: expected Split(), Bonferroni(tests) or Fixed(threshold)")
    pick_in, keep_in = np.array_split(rng.permutation(ranked_in), 2)
    pick_out, keep_out = np.array_split(rng.permutation(ranked_out), 2)
    cuts, above_in, above_out = order_tests(pick_in, pick_out, 2 * FINE)
    cut = cuts[int(np.argmax(gain(Counts(above_in, above_out, pick_in.size, pick_out.size, 1.0))))]
    picked = np.concatenate([pick_in, pick_out])
    if (picked > cut).any() and (picked <= cut).any():  # the middle of the gap: nearest to no trial of either half
        cut = (picked[picked > cut].min() + picked[picked <= cut].max()) / 2
    above = [np.array([(kept > cut).sum()]) for kept in (keep_in, keep_out)]
    return Counts(above[0], above[1], keep_in.size, keep_out.size, 1.0)


def _epsilons(counts: Counts, tail: float, delta: float) -> Array:
    """Both inequalities that (epsilon, delta) implies, from the same two limits (Kairouz, Oh and Viswanath 2015)."""
    tpr, fpr = counts.limits(tail)
    return np.maximum(_log_ratio(tpr, fpr, delta), _log_ratio(1 - fpr, 1 - tpr, delta))


def clopper_pearson(
    scores_in: Any,
    scores_out: Any,
    delta: float,
    rng: np.random.Generator,
    *,
    correction: Correction = Bonferroni(),  # noqa: B008 (immutable)
    confidence: float = 0.95,
    neighbours: Neighbours = "add-remove",
) -> Bound:
    """Clopper-Pearson limits on both rates, half of the error each (Jagielski et al. 2020; Nasr et al. 2021).

    One trial is one run, or one independent noise. Higher scores mean "in". Equal scores are put in random order.
    """
    inside, outside = checked(scores_in, scores_out, delta, confidence, neighbours)
    tail = (1 - confidence) / 2
    counts = count(inside, outside, correction, rng, lambda tests: _epsilons(tests, tail, delta))
    epsilon, ceiling = (float(_epsilons(one, tail, delta).max()) for one in (counts, counts.perfect()))
    return _bound(epsilon, ceiling, counts, "Clopper-Pearson", "confidence", delta, confidence, neighbours, correction)


def gdp(
    scores_in: Any,
    scores_out: Any,
    delta: float,
    rng: np.random.Generator,
    *,
    correction: Correction = Bonferroni(),  # noqa: B008
    confidence: float = 0.95,
    neighbours: Neighbours = "add-remove",
) -> Bound:
    """The same two limits, read as those of a mechanism that is exactly mu-Gaussian (Nasr et al. 2023). Parametric.

    mu >= Phi^-1(TPR) - Phi^-1(FPR); its epsilon at delta is the Gaussian mechanism's. If the trade-off is not
    Gaussian, this may exceed its true epsilon.
    """
    inside, outside = checked(scores_in, scores_out, delta, confidence, neighbours)
    tail = (1 - confidence) / 2
    counts = count(inside, outside, correction, rng, lambda tests: _mus(tests, tail))
    epsilon, ceiling = (_of_mu(float(_mus(one, tail).max()), delta) for one in (counts, counts.perfect()))
    return _bound(epsilon, ceiling, counts, "GDP", "parametric", delta, confidence, neighbours, correction)


def _mus(counts: Counts, tail: float) -> Array:
    from scipy.special import ndtri

    tpr, fpr = counts.limits(tail)
    known = (tpr > 0) & (fpr < 1)
    return np.where(known, ndtri(np.where(known, tpr, 0.5)) - ndtri(np.where(known, fpr, 0.5)), 0.0)


def _of_mu(mu: float, delta: float) -> float:
    """The epsilon of a mu-Gaussian mechanism."""
    if delta <= 0:
        raise InputError("delta is 0, expected more: a Gaussian mechanism has no finite epsilon at 0")
    return gaussian_epsilon(1.0, mu, delta) if mu > 0 else 0.0


def gaussian_fit(
    scores_in: Any,
    scores_out: Any,
    delta: float,
    *,
    confidence: float = 0.95,
    neighbours: Neighbours = "add-remove",
) -> Bound:
    """Scores taken for normal with one deviation: the standardised difference of means is mu. Parametric.

    The limit is that of Hedges and Olkin (1985): variance 1/n + 1/m + d^2 / (2 (n + m)). No test is chosen, so nothing
    has to be corrected. If the scores are not normal, or their spread differs, the number means little.
    """
    from scipy.special import ndtri

    inside, outside = checked(scores_in, scores_out, delta, confidence, neighbours)
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise InputError("a score is infinite, expected finite scores for a Gaussian fit")
    n, m = inside.size, outside.size
    spread = math.sqrt((inside.var() * n + outside.var() * m) / (n + m - 2))
    if spread == 0:
        raise InputError("all scores of a kind are equal, expected scores that vary for a Gaussian fit")
    mu = float(inside.mean() - outside.mean()) / spread
    error = math.sqrt(1 / n + 1 / m + mu**2 / (2 * (n + m)))
    epsilon = _of_mu(mu - float(ndtri(confidence)) * error, delta)
    counts = Counts(np.array([n]), np.array([0]), n, m, 1.0)
    return _bound(epsilon, math.inf, counts, "Gaussian fit", "parametric", delta, confidence, neighbours, None)


def credible(
    scores_in: Any,
    scores_out: Any,
    delta: float,
    rng: np.random.Generator,
    *,
    correction: Split | Fixed = Split(),  # noqa: B008
    confidence: float = 0.95,
    neighbours: Neighbours = "add-remove",
) -> Bound:
    """A Bayesian lower end: the posterior of both rates under Jeffreys' prior, carried over to epsilon. Credible.

    After Zanella-Béguelin et al. (2023). Tighter than Clopper-Pearson since the two rates are not both assumed at their
    worst; it is a statement about belief and does not promise to hold in 95% of audits.
    """
    if isinstance(correction, Bonferroni):
        raise InputError("a credible interval is about one test: expected Split() or Fixed(threshold)")
    inside, outside = checked(scores_in, scores_out, delta, confidence, neighbours)
    tail = (1 - confidence) / 2
    counts = count(inside, outside, correction, rng, lambda tests: _epsilons(tests, tail, delta))
    epsilon, ceiling = (_posterior_quantile(one, delta, 1 - confidence) for one in (counts, counts.perfect()))
    method = "Bayes (Jeffreys)"
    return _bound(epsilon, ceiling, counts, method, "credible", delta, confidence, neighbours, correction)


def _posterior_quantile(counts: Counts, delta: float, alpha: float) -> float:
    """The epsilon that the posterior leaves below with probability alpha; quadrature over the false positive rate."""
    from scipy.special import betainc, betaincinv

    hits, misses = counts.above_in[0] + 0.5, counts.n_in - counts.above_in[0] + 0.5
    alarms, quiet = counts.above_out[0] + 0.5, counts.n_out - counts.above_out[0] + 0.5
    fpr = betaincinv(alarms, quiet, (np.arange(NODES) + 0.5) / NODES)

    def below(epsilon: float) -> float:
        """P(TPR <= min(e^eps FPR + delta, 1 - (1 - FPR - delta) / e^eps)): neither inequality is violated."""
        most = np.minimum(math.exp(epsilon) * fpr + delta, 1 - (1 - fpr - delta) * math.exp(-epsilon))
        return float(betainc(hits, misses, np.clip(most, 0, 1)).mean())

    low, high = 0.0, 50.0
    if below(low) > alpha:
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if below(middle) > alpha else (middle, high)
    return low


def _bound(
    epsilon: float, ceiling: float, counts: Counts, method: str, kind: Kind, delta: float, confidence: float,
    neighbours: Neighbours, correction: Correction | None,
) -> Bound:  # fmt: skip
    return Bound(
        epsilon=max(epsilon, 0.0), ceiling=ceiling, delta=delta, confidence=confidence, method=method, kind=kind,
        neighbours=neighbours, correction=correction, trials_in=counts.n_in, trials_out=counts.n_out,
    )  # fmt: skip
