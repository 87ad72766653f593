"""Scores and their uncertainty: AUC, R2, cell recovery, and intervals over seeds or rows.

Rates at a threshold and epsilon bounds live in `rates.py`, cell recovery in `cells.py`; both are offered here too,
so that games import one module. Nothing here draws randomness of its own: what needs it takes a generator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from vflaudit.core.cells import (
    _BLOCK,
    _blocks,
    _hull,
    _matrices,
    _moments,
    _pools,
    _t_quantile,
    _weights,
    bootstrap_mean_interval,
    category_accuracy,
    cells_within,
    relative_error,
)
from vflaudit.core.rates import (
    EPSILON_CAP,
    Array,
    EpsilonBound,
    Interval,
    RateAtThreshold,
    alpha_of,
    balanced_accuracy_split,
    chernoff_limits,
    clopper_pearson,
    clopper_pearson_lower,
    clopper_pearson_upper,
    epsilon_lower_bound,
    finite,
    roc,
    tpr_at_fpr,
    two_classes,
)
from vflaudit.errors import InputError

__all__ = [
    "EPSILON_CAP",
    "Array",
    "EpsilonBound",
    "Interval",
    "RateAtThreshold",
    "auc",
    "auc_influence",
    "auc_interval",
    "balanced_accuracy_split",
    "bootstrap_mean_interval",
    "bootstrap_r2_difference",
    "category_accuracy",
    "cells_within",
    "clopper_pearson",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "difference_interval",
    "epsilon_lower_bound",
    "macro_auc_influence",
    "mean_r2",
    "r2_per_feature",
    "relative_error",
    "roc",
    "t_interval",
    "tpr_at_fpr",
]


def t_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Student's t interval for the mean of a few independent values, such as one score per seed.

    Assumes roughly normal values. One value says nothing about its spread, so it gives (-inf, inf).
    """
    sample, alpha = finite("values", values, 1), alpha_of(confidence)
    if sample.size == 1:
        return -math.inf, math.inf
    if np.ptp(sample) == 0.0:
        return float(sample[0]), float(sample[0])
    mean, error = float(sample.mean()), float(sample.std(ddof=1)) / math.sqrt(sample.size)
    half = _t_quantile(alpha, sample.size - 1) * error
    return mean - half, mean + half


# --- AUC ----------------------------------------------------------------------------------------------------


def auc(positive: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve: the chance that a positive row outscores a negative one, a tie being half.

    This is the Mann-Whitney statistic with mid-ranks, whatever the order of the rows.
    """
    return auc_influence(positive, scores)[0]


def auc_influence(positive: ArrayLike, scores: ArrayLike) -> tuple[float, Array]:
    """AUC, and the influence of each row on it: mean zero, and Var(AUC) ~ var(influence) / N.

    These are the structural components of DeLong, DeLong and Clarke-Pearson (Biometrics 1988), centred and
    divided by the share of their class. Influences of several AUCs on the same rows can be added, subtracted
    and averaged, which gives the variance of paired differences and of macro averages at no cost. Assumes
    independent rows.
    """
    mask, array = two_classes(positive, scores)
    high, low = np.sort(array[mask]), np.sort(array[~mask])

    def share_below(reference: Array, points: Array) -> Array:
        ends = np.searchsorted(reference, points, "left") + np.searchsorted(reference, points, "right")
        return ends / (2.0 * reference.size)

    beaten, beats = share_below(low, array[mask]), 1.0 - share_below(high, array[~mask])
    value = float(share_below(low, high).mean())  # over sorted scores: the order of the rows leaves no trace
    influence = np.empty(array.size)
    influence[mask] = (beaten - value) * (array.size / high.size)
    influence[~mask] = (beats - value) * (array.size / low.size)
    return value, influence


def macro_auc_influence(labels: ArrayLike, scores: ArrayLike) -> tuple[float, Array]:
    """Mean one-versus-rest AUC over the classes that occur, and the influence of each row on it.

    `scores` has one column per class 0..C-1; a class without rows has no AUC and is left out of the mean.
    """
    matrix, truth = finite("scores", scores, 2, infinite=True), np.asarray(labels)
    if truth.shape != (matrix.shape[0],):
        raise InputError(f"there are {truth.size} labels and {matrix.shape[0]} rows of scores, expected as many")
    if not bool(np.isin(truth, np.arange(matrix.shape[1])).all()):
        raise InputError(f"a label has no column of scores, expected whole numbers below {matrix.shape[1]}")
    classes = np.unique(truth).astype(np.int64)
    if classes.size < 2:
        raise InputError("all rows belong to one class, expected at least two classes")
    value, influence = 0.0, np.zeros(truth.size)
    for label in classes:
        one, moves = auc_influence(truth == label, matrix[:, label])
        value += one / classes.size
        influence += moves / classes.size
    return value, influence


def auc_interval(
    value: float, influence: ArrayLike, positives: int, negatives: int, confidence: float = 0.95
) -> Interval:
    """Interval for one AUC: DeLong's variance on the logit scale (Qin and Hotilovac 2008), within [0, 1].

    With k = min(positives, negatives), the quantile is Student's with k - 1 degrees of freedom, as the
    smaller class decides how well the variance is known. Where k min(AUC, 1 - AUC) < 1 the variance estimate
    collapses; there the limits are Hoeffding's (1963, section 5a): an AUC is an average of means of k
    independent pairs, so a Chernoff bound with k draws holds for every distribution. At perfect separation
    that is exactly [(alpha/2)^(1/k), 1]. For a macro AUC give the rows of its rarest class and the rest.
    Coverage is measured in tests/test_coverage.py.
    """
    from scipy.special import expit, logit

    alpha, moves = alpha_of(confidence), finite("influence", influence, 1)
    least = min(positives, negatives)
    if least < 1 or not 0.0 <= value <= 1.0:
        raise InputError(f"AUC {value!r} of {positives} against {negatives} rows, expected 0..1 and both present")
    spread = float(moves.std())
    if spread == 0.0 or least < 2 or least * min(value, 1.0 - value) < 1.0:
        return chernoff_limits(value, least, alpha)
    error = spread / math.sqrt(moves.size) * math.sqrt(least / (least - 1))
    half = _t_quantile(alpha, least - 1) * error / (value * (1.0 - value))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))


def difference_interval(
    estimate: float,
    influence_difference: ArrayLike,
    confidence: float = 0.95,
    *,
    smaller_class: int | None = None,
) -> Interval:
    """Normal interval for the difference of two AUCs on the same rows (DeLong et al. 1988), within [-1, 1].

    `influence_difference` is the influence of one minus that of the other, so their correlation is accounted
    for. A perfect attack against a constant baseline moves no row and would get zero width. So where the
    standard error is below 1/k, the weight of a single row, the interval reaches at least as far as perfect
    separation leaves open, 1 - (alpha/2)^(1/k), with k = `smaller_class`, the rows of the rarer class (if not
    given, half of the rows: the best case). Assumes independent rows.
    """
    from scipy.special import ndtri

    alpha, moves = alpha_of(confidence), finite("influence_difference", influence_difference, 1)
    if moves.size < 2:
        raise InputError("there is one row, expected at least two, one of each class")
    error = float(moves.std(ddof=1)) / math.sqrt(moves.size)
    half, least = float(ndtri(1.0 - alpha / 2)) * error, smaller_class or moves.size // 2
    if error * least < 1.0:
        half = max(half, 1.0 - (alpha / 2) ** (1.0 / least))
    return max(estimate - half, -1.0), min(estimate + half, 1.0)


# --- reconstruction -----------------------------------------------------------------------------------------


def r2_per_feature(truth: ArrayLike, guess: ArrayLike) -> Array:
    """1 - SSE / SST for each column, SST about the mean of the true column; nan where that is constant."""
    true, other = _matrices(truth, guess=guess)
    out = np.full(true.shape[1], np.nan)
    for block in _blocks(*true.shape):
        (_, _, errors), varies = _moments(true, [other], block)
        out[block] = np.where(varies, 1.0 - errors.sum(axis=0), np.nan)
    return out


def mean_r2(truth: ArrayLike, guess: ArrayLike) -> float:
    """Mean R2 over the features that vary."""
    values = r2_per_feature(truth, guess)
    if bool(np.isnan(values).all()):
        raise InputError("every true feature is constant, expected at least one that varies")
    return float(np.nanmean(values))


def bootstrap_r2_difference(
    truth: ArrayLike,
    attack: ArrayLike,
    baseline: ArrayLike | None,
    rng: np.random.Generator,
    *,
    replicates: int = 1000,
    groups: int = 1000,
    confidence: float = 0.95,
) -> tuple[Interval, Interval]:
    """Intervals over rows for the attack's mean R2 and its excess over the baseline's (None: R2 = 0).

    R2 depends on the rows only through sums, so a replicate is one product of multinomial weights with those
    sums (Efron and Tibshirani 1993). Many rows are first pooled at random into `groups` pools that are drawn
    whole. Random pools of b independent rows are independent with b times the variance, so the variance
    between `groups` pools estimates the same variance of the total; it is only known to a relative sqrt(2 /
    groups), 4.5% for 1000. `_hull` says which interval is taken. Assumes independent rows, keeps the guesses
    fixed. A column that is constant in a replicate is left out of it.
    """
    guesses = {"attack": attack} if baseline is None else {"attack": attack, "baseline": baseline}
    true, *others = _matrices(truth, **guesses)
    alpha, rows = alpha_of(confidence), true.shape[0]
    order, starts = _pools(rows, groups, rng)
    sizes = np.diff(np.append(starts, rows)).astype(np.float64)
    weights = _weights(replicates, starts.size, rng)
    # one stack of samples: the rows as they are, the replicates, and each pool deleted in turn
    count = np.concatenate([[rows], weights @ sizes, rows - sizes])[:, None]
    sums = np.zeros((3, count.size))  # over features: attack R2, excess, features that vary
    width = min(_BLOCK // count.size, _BLOCK // rows) or 1
    for start in range(0, true.shape[1], width):
        parts, varies = _moments(true, others, slice(start, start + width))
        pooled = [np.add.reduceat(part[order], starts, axis=0) if rows > groups else part for part in parts]
        whole = [part.sum(axis=0) for part in pooled]
        centre, square, *errors = (
            np.concatenate([total[None], weights @ part, total - part])
            for total, part in zip(whole, pooled, strict=True)
        )
        spread = square - centre**2 / np.maximum(count, 1.0)
        valid = varies & (spread > 1e-10)
        inverse = np.where(valid, 1.0 / np.where(valid, spread, 1.0), 0.0)
        scores = np.where(valid, 1.0 - errors[0] * inverse, 0.0)
        excess = scores if baseline is None else (errors[1] - errors[0]) * inverse
        sums += np.stack([scores.sum(axis=1), excess.sum(axis=1), valid.sum(axis=1)])
    if sums[2, 0] == 0:
        raise InputError("every true feature is constant, expected at least one that varies")
    means = np.where(sums[2] > 0, sums[:2] / np.maximum(sums[2], 1.0), np.nan)
    (low, high), gap = (_hull(float(m[0]), m[1 : replicates + 1], m[replicates + 1 :], alpha) for m in means)
    own = (low, min(high, 1.0))
    return own, (own if baseline is None else gap)
