"""Rates at a threshold, and what they prove: binomial intervals, TPR at a fixed FPR, epsilon lower bounds.

Two habits hold throughout. A threshold is never reported on the rows it was picked on, and equal scores are
put in random order by the caller's generator, so an attack cannot win by the order of its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflaudit.errors import InputError

Interval = tuple[float, float]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

EPSILON_CAP = 50.0  # far beyond what any number of trials can certify; it only keeps intervals finite


# --- checks shared with statistics.py -----------------------------------------------------------------------


def alpha_of(confidence: float) -> float:
    """The error probability 1 - confidence, after checking that it is one."""
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence is {confidence!r}, expected a number strictly between 0 and 1")
    return 1.0 - confidence


def finite(name: str, values: ArrayLike, ndim: int | None = None, *, infinite: bool = False) -> Array:
    """`values` as float64, not empty and without NaN (nor infinities, unless `infinite`)."""
    array = np.asarray(values, dtype=np.float64)
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} has {array.ndim} dimensions, expected {ndim}")
    if array.size == 0:
        raise InputError(f"{name} is empty, expected at least one value")
    if bool(np.isnan(array).any()) or not (infinite or bool(np.isfinite(array).all())):
        raise InputError(f"{name} holds NaN or infinite values, expected finite numbers")
    return array


def two_classes(positive: ArrayLike, scores: ArrayLike) -> tuple[Mask, Array]:
    """A boolean mask with both classes present, and one score per row (infinite ones have an order too)."""
    mask, array = np.asarray(positive), finite("scores", scores, 1, infinite=True)
    if mask.shape != array.shape:
        raise InputError(f"there are {mask.size} labels and {array.size} scores, expected as many")
    if mask.dtype != np.bool_:
        if not bool(np.isin(mask, (0, 1)).all()):
            raise InputError("the labels hold values other than true and false, expected a boolean array")
        mask = mask.astype(np.bool_)
    if bool(mask.all()) or not bool(mask.any()):
        raise InputError("all rows belong to one class, expected at least one row of each")
    return mask, array


# --- binomial proportions -----------------------------------------------------------------------------------


def beta_limits(successes: ArrayLike, trials: ArrayLike, tail: float) -> tuple[Array, Array]:
    """Clopper-Pearson limits, each missing with probability at most `tail`, elementwise.

    Fractional counts are accepted. For a mean of values in [0, 1] they give a conservative limit, since a 0/1
    variable has the greatest variance of all variables on [0, 1] with that mean.
    """
    from scipy.special import betaincinv

    hits, total = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    misses = total - hits
    some, lack = hits > 0, misses > 0
    lower = np.where(some, betaincinv(np.where(some, hits, 1.0), misses + 1.0, tail), 0.0)
    upper = np.where(lack, betaincinv(hits + 1.0, np.where(lack, misses, 1.0), 1.0 - tail), 1.0)
    return lower, upper


def _counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise InputError(f"{successes} successes in {trials} trials is impossible, expected at most as many")


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Exact two-sided interval for a binomial proportion (Clopper and Pearson 1934); (0, 1) without trials.

    Assumes independent trials with one success probability. Covers at least `confidence`, always.
    """
    _counts(successes, trials)
    lower, upper = beta_limits(successes, trials, alpha_of(confidence) / 2)
    return float(lower), float(upper)


def clopper_pearson_lower(successes: int, trials: int, confidence: float = 0.95) -> float:
    """Exact one-sided lower limit: the proportion is above it with at least `confidence`."""
    _counts(successes, trials)
    return float(beta_limits(successes, trials, alpha_of(confidence))[0])


def clopper_pearson_upper(successes: int, trials: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper limit: the proportion is below it with at least `confidence`."""
    _counts(successes, trials)
    return float(beta_limits(successes, trials, alpha_of(confidence))[1])


def chernoff_limits(mean: float, count: int, alpha: float) -> Interval:
    """All p with count * KL(mean || p) <= log(2 / alpha): holds for means of `count` draws from [0, 1]."""

    def spend(p: float) -> float:
        left = mean * math.log(mean / p) if mean > 0 else 0.0
        right = (1 - mean) * math.log((1 - mean) / (1 - p)) if mean < 1 else 0.0
        return count * (left + right) - math.log(2 / alpha)

    def edge(inside: float, outside: float) -> float:
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if 0 < middle < 1 and spend(middle) <= 0 else (inside, middle)
        return outside

    return (0.0 if mean <= 0 else edge(mean, 0.0)), (1.0 if mean >= 1 else edge(mean, 1.0))


# --- ROC and thresholds -------------------------------------------------------------------------------------


def roc(positive: ArrayLike, scores: ArrayLike) -> tuple[Array, Array]:
    """False and true positive rates from (0, 0) to (1, 1), one point per distinct score, highest first.

    Equal scores make one sloped segment, so the area under the polyline is the mid-rank AUC (Fawcett 2006,
    section 5).
    """
    mask, array = two_classes(positive, scores)
    order = np.argsort(-array, kind="stable")
    ordered, hits = array[order], np.cumsum(mask[order])
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), array.size - 1)
    tpr = hits[last] / hits[-1]
    fpr = (last + 1 - hits[last]) / (array.size - hits[-1])
    return np.append(0.0, fpr), np.append(0.0, tpr)


def _fair_ranks(scores: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ranks 0..N-1 in increasing score, equal scores in random order."""
    order = np.lexsort((rng.random(scores.size), scores))
    ranks = np.empty(scores.size, np.int64)
    ranks[order] = np.arange(scores.size)
    return ranks


def _halves(rows: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random half to choose on, and the rest (the larger, if odd) to report on."""
    shuffled = rng.permutation(rows)
    return shuffled[: rows.size // 2], shuffled[rows.size // 2 :]


@dataclass(frozen=True)
class RateAtThreshold:
    """A true positive rate at a threshold that was set for `fpr_target` on non-members not counted here.

    `threshold` is a score: rows above it are called members. `members` and `non_members` are the rows behind
    `tpr` and `fpr`. Both intervals are exact given the threshold; how far the threshold itself missed its
    target is what `fpr` says. `target_interval` is for the true positive rate where the false positive rate
    is the target exactly: it allows for that miss too.
    """

    fpr_target: float
    threshold: float
    tpr: float
    tpr_interval: Interval
    fpr: float
    fpr_interval: Interval
    members: int
    non_members: int
    target_interval: Interval


def _at_target(ranks: NDArray[np.int64], mask: Mask, fpr: float, alpha: float) -> Interval:
    """Limits of the true positive rate at a false positive rate of `fpr`, each missing with at most alpha / 2.

    Of n non-members, binomially many exceed the unknown threshold of that rate. With probability 1 - alpha/4
    it is below the a-th greatest of their scores, and as surely above the b-th; Clopper-Pearson limits of the
    members above the one and above the other take the rest of the error.
    """
    from scipy.stats import binom

    outside, members = np.sort(ranks[~mask])[::-1], int(mask.sum())
    few = int(binom.ppf(alpha / 4, outside.size, fpr))  # P(fewer exceed it) <= alpha / 4
    many = int(binom.isf(alpha / 4, outside.size, fpr)) + 1  # P(so many exceed it) <= alpha / 4
    strict = int((ranks[mask] > outside[few - 1]).sum()) if few else 0
    loose = int((ranks[mask] > outside[many - 1]).sum()) if many <= outside.size else members
    return float(beta_limits(strict, members, alpha / 4)[0]), float(beta_limits(loose, members, alpha / 4)[1])


def tpr_at_fpr(
    member: ArrayLike, scores: ArrayLike, fpr: float, rng: np.random.Generator, confidence: float = 0.95
) -> RateAtThreshold | None:
    """True positive rate at a small false positive rate (Carlini et al., S&P 2022), threshold held out.

    The threshold is the k-th greatest score of a random half of the n non-members, k = floor(fpr (n/2 + 1)):
    a fresh non-member exceeds it with mean probability k / (n/2 + 1) <= fpr, as in split conformal
    prediction. The rates are those of all members and of the other half of the non-members. None if there are
    fewer than 10/fpr non-members: then about five calibration scores or fewer would decide everything.
    Assumes independent rows.
    """
    mask, array = two_classes(member, scores)
    alpha = alpha_of(confidence)
    if not 0.0 < fpr < 1.0:
        raise InputError(f"the false positive rate is {fpr!r}, expected a number strictly between 0 and 1")
    outside = np.flatnonzero(~mask)
    if outside.size < 10.0 / fpr - 1e-6:
        return None
    ranks = _fair_ranks(array, rng)
    chosen, kept = _halves(outside, rng)
    above = math.floor(fpr * (chosen.size + 1) + 1e-9)
    pivot = chosen[np.argsort(ranks[chosen])[-above]]
    hits, alarms = int((ranks[mask] > ranks[pivot]).sum()), int((ranks[kept] > ranks[pivot]).sum())
    members = int(mask.sum())
    low, high = _at_target(ranks, mask, fpr, alpha)
    return RateAtThreshold(
        fpr_target=float(fpr),
        threshold=float(array[pivot]),
        tpr=hits / members,
        tpr_interval=clopper_pearson(hits, members, confidence),
        fpr=alarms / kept.size,
        fpr_interval=clopper_pearson(alarms, kept.size, confidence),
        members=members,
        non_members=int(kept.size),
        target_interval=(min(low, hits / members), max(high, hits / members)),
    )


def _tails(inside: Array, outside: Array) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Every cut between distinct ranks, and how many of each class lie above it (ranks have no ties)."""
    cuts = np.append(-1.0, np.sort(np.concatenate([inside, outside])))
    above_in = inside.size - np.searchsorted(np.sort(inside), cuts, side="right")
    above_out = outside.size - np.searchsorted(np.sort(outside), cuts, side="right")
    return cuts, above_in, above_out


def _score_at(cut: float, ranks: Array, scores: Array) -> float:
    """The score that a cut between ranks stands for: rows above it are called positive."""
    below = ranks <= cut
    return float(scores[below].max() if below.any() else np.nextafter(scores.min(), -np.inf))


def _split_accuracy(mask: Mask, scores: Array, rng: np.random.Generator, alpha: float) -> tuple[float, Interval, float]:
    """Held-out balanced accuracy, its interval, and the threshold (a score) it belongs to."""
    ranks = _fair_ranks(scores, rng).astype(np.float64)
    pick_in, keep_in = _halves(np.flatnonzero(mask), rng)
    pick_out, keep_out = _halves(np.flatnonzero(~mask), rng)
    cuts, above_in, above_out = _tails(ranks[pick_in], ranks[pick_out])
    cut = float(cuts[np.argmax(above_in / pick_in.size - above_out / pick_out.size)])
    hits = np.array([(ranks[keep_in] > cut).sum(), (ranks[keep_out] <= cut).sum()])
    trials = np.array([keep_in.size, keep_out.size])
    rates = hits / trials
    lower, upper = beta_limits(hits, trials, alpha / 2)
    value = float(rates.mean())
    down, up = float(np.hypot(*(rates - lower))) / 2, float(np.hypot(*(upper - rates))) / 2
    return value, (max(value - down, 0.0), min(value + up, 1.0)), _score_at(cut, ranks, scores)


def balanced_accuracy_split(
    member: ArrayLike, scores: ArrayLike, rng: np.random.Generator, confidence: float = 0.95
) -> tuple[float, Interval]:
    """Balanced accuracy (TPR + TNR) / 2 of the best threshold on a random half, measured on the other half.

    The interval joins the two exact intervals by the square-and-add rule (Zou and Donner 2008), which stays
    honest near 0 and 1. It is for the chosen threshold. Assumes independent rows; each class needs two.
    """
    mask, array = two_classes(member, scores)
    if min(int(mask.sum()), int((~mask).sum())) < 2:
        raise InputError("a class has a single row, expected two or more, half of them to pick a threshold")
    return _split_accuracy(mask, array, rng, alpha_of(confidence))[:2]


# --- epsilon ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpsilonBound:
    """What a set of distinguishing trials proves about epsilon.

    `epsilon` is below the true value with the asked confidence. `ceiling` is the most that this many held-out
    trials could ever prove: a bound near it is limited by the auditor, not by the mechanism. `upper` is the
    optimistic end, at the same confidence, for the tested threshold: another test may prove more, so it
    bounds this test, not the mechanism. `trials_in` and `trials_out` are the held-out trials behind the
    bound; `threshold` is a score.
    """

    epsilon: float
    ceiling: float
    delta: float
    trials_in: int
    trials_out: int
    threshold: float
    upper: float


def _log_ratio(power: ArrayLike, error: ArrayLike, delta: float) -> Array:
    """log((power - delta) / error) within [0, EPSILON_CAP], elementwise."""
    gain = np.asarray(power, np.float64) - delta
    logs = np.log(np.maximum(gain, 1e-300)) - np.log(np.maximum(error, 1e-300))
    return np.where(gain > 0, np.clip(logs, 0.0, EPSILON_CAP), 0.0)


def _bounds(above_in: Any, n_in: int, above_out: Any, n_out: int, delta: float, tail: float) -> tuple[Array, Array]:
    """Pessimistic and optimistic epsilon in both directions: calling "in" above the cut, "out" below it."""
    tpr_low, tpr_high = beta_limits(above_in, n_in, tail)
    fpr_low, fpr_high = beta_limits(above_out, n_out, tail)
    low = np.stack([_log_ratio(tpr_low, fpr_high, delta), _log_ratio(1 - fpr_high, 1 - tpr_low, delta)])
    high = np.stack([_log_ratio(tpr_high, fpr_low, delta), _log_ratio(1 - fpr_low, 1 - tpr_high, delta)])
    return low, high


def epsilon_lower_bound(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
) -> EpsilonBound:
    """Lower bound on epsilon from scores of trials with and without the target (higher means "with").

    (epsilon, delta)-DP forces TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta at every
    threshold (Kairouz, Oh and Viswanath, ICML 2015). Clopper-Pearson limits on both rates, half of the error
    each, make it a bound (Jagielski, Ullman and Oprea, NeurIPS 2020; Nasr et al., S&P 2021). Threshold and
    direction are those of the best such bound on a random half of the trials (a plain ratio of frequencies
    would run to the empty tails, where it is infinite); only the other half is then counted, so nothing has
    to be corrected for the search. Assumes independent trials.
    """
    inside = finite("scores_in", scores_in, 1, infinite=True)
    outside = finite("scores_out", scores_out, 1, infinite=True)
    if not 0.0 <= delta < 1.0:
        raise InputError(f"delta is {delta!r}, expected a number from 0 up to but not including 1")
    if min(inside.size, outside.size) < 2:
        raise InputError("one kind has a single trial, expected two or more, half of them to pick a threshold")
    tail = alpha_of(confidence) / 2
    scores = np.concatenate([inside, outside])
    ranks = _fair_ranks(scores, rng).astype(np.float64)
    pick_in, keep_in = _halves(np.arange(inside.size), rng)
    pick_out, keep_out = _halves(np.arange(inside.size, scores.size), rng)

    cuts, above_in, above_out = _tails(ranks[pick_in], ranks[pick_out])
    if cuts.size > 4000:  # all cuts in both tails, a grid between: the bound moves little from one cut to the next
        ends = np.arange(1000)
        grid = np.linspace(0, cuts.size - 1, 2000).astype(np.int64)
        few = np.unique(np.concatenate([ends, grid, cuts.size - 1 - ends]))
        cuts, above_in, above_out = cuts[few], above_in[few], above_out[few]
    found, _ = _bounds(above_in, pick_in.size, above_out, pick_out.size, delta, tail)
    if not found.any():  # too few trials to certify anything on half of them: choose by the median estimate instead
        found, _ = _bounds(above_in, pick_in.size, above_out, pick_out.size, delta, 0.5)
    way, at = np.unravel_index(int(np.argmax(found)), found.shape)
    cut = cuts[at]

    n_in, n_out = int(keep_in.size), int(keep_out.size)
    low, high = _bounds((ranks[keep_in] > cut).sum(), n_in, (ranks[keep_out] > cut).sum(), n_out, delta, tail)
    best, _ = _bounds(np.array([n_in]), n_in, np.array([0]), n_out, delta, tail)
    return EpsilonBound(
        epsilon=float(low[way]),
        ceiling=float(best.max()),
        delta=float(delta),
        trials_in=n_in,
        trials_out=n_out,
        threshold=_score_at(float(cut), ranks, scores),
        upper=float(max(high[way], low[way])),
    )
