"""Intervals that promise 95% contain the truth in 95% of simulated worlds, or more.

Each check counts hits over many worlds with fixed seeds, and fails if so few would have a probability below
1e-4 were the promise true. With 1000 worlds that happens at 92.4%, so an interval with a true coverage of 90%
is caught with 99% probability. The docstrings give the coverages measured when the method was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from vflaudit.core import rates
from vflaudit.core import statistics as st

WORLDS = 1000


def covers(intervals_and_truths: Iterable[tuple[st.Interval, float]]) -> tuple[int, int]:
    hits = [low <= truth <= high for (low, high), truth in intervals_and_truths]
    return sum(hits), len(hits)


def assert_coverage(outcome: tuple[int, int], promise: float = 0.95, at_most: float = 1.0) -> None:
    """Not too few hits for `promise`, nor too many for `at_most` (a needlessly wide interval is no use)."""
    hits, worlds = outcome
    assert binomtest(hits, worlds, promise, alternative="less").pvalue > 1e-4, f"covered {hits / worlds:.1%}"
    if at_most < 1:
        assert binomtest(hits, worlds, at_most, alternative="greater").pvalue > 1e-4, f"covered {hits / worlds:.1%}"


def generators(*seed: int, worlds: int = WORLDS) -> Iterable[np.random.Generator]:
    return (np.random.default_rng([21, *seed, world]) for world in range(worlds))


def test_the_check_itself_catches_90_percent() -> None:
    outcome = covers((st.t_interval(rng.normal(size=5), 0.90), 0.0) for rng in generators(1))
    with pytest.raises(AssertionError, match="covered"):
        assert_coverage(outcome)


@pytest.mark.parametrize(("chance", "trials"), [(0.5, 10), (0.01, 100), (0.3, 1000)])
def test_clopper_pearson(chance: float, trials: int) -> None:
    """Exact, so never below; measured 95.5-99.3%, above the promise as counts are discrete."""
    assert_coverage(
        covers((st.clopper_pearson(int(rng.binomial(trials, chance)), trials), chance) for rng in generators(2))
    )
    lower = covers(
        ((st.clopper_pearson_lower(int(rng.binomial(trials, chance)), trials), 1.0), chance) for rng in generators(3)
    )
    assert_coverage(lower)


@pytest.mark.parametrize("seeds", [2, 5, 30])
def test_t(seeds: int) -> None:
    outcome = covers((st.t_interval(rng.normal(1.0, 3.0, seeds)), 1.0) for rng in generators(4, seeds))
    assert_coverage(outcome, at_most=0.95)


def binormal(value: float, spread: float) -> Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]:
    """Normal scores with this AUC, the positive ones `spread` times as wide."""
    shift = np.hypot(1.0, spread) * ndtri(value)

    def draw(rng: np.random.Generator, positives: int, negatives: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(shift, spread, positives), rng.normal(size=negatives)

    return draw


def outliers(value: float) -> Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]:
    """Perfect separation, but for a few positives below everything: hard for a variance estimate."""

    def draw(rng: np.random.Generator, positives: int, negatives: int) -> tuple[np.ndarray, np.ndarray]:
        return np.where(rng.random(positives) < value, 2.0, -2.0) + rng.random(positives), rng.random(negatives)

    return draw


# value, scores, positives, negatives, the most that the coverage may be (tiny samples are conservative)
AUC_CASES = [
    (0.5, binormal(0.5, 1), 100, 100, 0.98),
    (0.5, binormal(0.5, 1), 5, 5, 1.0),
    (0.8, binormal(0.8, 1), 100, 100, 0.98),
    (0.8, binormal(0.8, 1), 10, 100, 1.0),
    (0.8, binormal(0.8, 1), 30, 1000, 0.98),
    (0.99, binormal(0.99, 1), 300, 300, 0.98),
    (0.99, binormal(0.99, 3), 100, 100, 1.0),
    (0.99, binormal(0.99, 3), 30, 1000, 1.0),
    (0.99, binormal(0.99, 1), 5, 5, 1.0),
    (0.95, outliers(0.95), 30, 1000, 1.0),
    (0.99, outliers(0.99), 10, 10, 1.0),
]


@pytest.mark.parametrize(("value", "draw", "positives", "negatives", "at_most"), AUC_CASES)
def test_auc(value: float, draw: Callable, positives: int, negatives: int, at_most: float) -> None:
    """Measured 93.8-97.3% with 30 rows or more in each class, 97-100% below that or near perfect separation.

    Without the fall-back, the logit interval covers 66% at AUC 0.99 (spread 3) with 30 against 1000 rows.
    """
    labels = np.arange(positives + negatives) < positives

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        found, influence = st.auc_influence(labels, np.concatenate(draw(rng, positives, negatives)))
        return st.auc_interval(found, influence, positives, negatives), value

    assert_coverage(covers(map(world, generators(5, positives, negatives))), at_most=at_most)


@pytest.mark.parametrize(("positives", "negatives"), [(20, 20), (30, 1000), (200, 200)])
@pytest.mark.parametrize("shifts", [(1.5, 0.5), (2.5, 0.0)])
def test_auc_difference(positives: int, negatives: int, shifts: tuple[float, float]) -> None:
    """Two scores that share half of their noise, on the same rows; measured 94.2-95.9%."""
    labels = np.arange(positives + negatives) < positives
    truth = float(ndtr(shifts[0] / np.sqrt(2)) - ndtr(shifts[1] / np.sqrt(2)))

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        shared, *own = rng.normal(size=(3, labels.size))
        scores = [shift * labels + np.sqrt(0.5) * (shared + noise) for shift, noise in zip(shifts, own, strict=True)]
        (one, moves), (two, others) = (st.auc_influence(labels, score) for score in scores)
        return st.difference_interval(one - two, moves - others, smaller_class=positives), truth

    assert_coverage(covers(map(world, generators(6, positives))), at_most=0.98)


def test_macro_auc() -> None:
    """Three classes, each scored by its indicator plus noise: all AUCs are that of a unit shift (95.1%)."""
    truth = float(ndtr(1 / np.sqrt(2)))

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        labels = rng.permutation(np.arange(150) % 3)
        value, influence = st.macro_auc_influence(labels, np.eye(3)[labels] + rng.normal(size=(150, 3)))
        return st.auc_interval(value, influence, 50, 100), truth

    assert_coverage(covers(map(world, generators(7))), at_most=0.98)


def features(kind: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth t of mean 0 and variance 1, attack 0.7 t + 0.4 noise, baseline 0.3 t + 0.8 noise."""
    if kind == "normal":
        truth = rng.normal(size=(rows, 2))
    elif kind == "heavy":
        truth = rng.standard_t(5, size=(rows, 2)) / np.sqrt(5 / 3)
    elif kind == "skewed":
        truth = rng.exponential(size=(rows, 2)) - 1.0
    else:  # log-normal: kurtosis 18, so that a few rows decide SST
        squared = 0.7**2
        truth = rng.lognormal(-squared / 2, 0.7, (rows, 2)) - 1.0
        truth /= np.sqrt(np.expm1(squared))
    return (
        truth,
        0.7 * truth + 0.4 * rng.normal(size=truth.shape),
        0.3 * truth + 0.8 * rng.normal(size=truth.shape),
    )


ATTACK, BASELINE = 1 - (0.3**2 + 0.4**2), 1 - (0.7**2 + 0.8**2)


@pytest.mark.parametrize(
    ("kind", "rows", "groups", "promise"),
    [
        ("normal", 50, 1000, 0.95),
        ("normal", 200, 1000, 0.95),
        ("heavy", 200, 1000, 0.95),
        ("skewed", 200, 1000, 0.95),
        ("log-normal", 200, 1000, 0.94),
        ("normal", 2000, 200, 0.95),
        ("heavy", 2000, 200, 0.95),
    ],
)
def test_r2_bootstrap(kind: str, rows: int, groups: int, promise: float) -> None:
    """Measured 94.7-97.9%, but 93.5-94.8% for log-normal features at 200 rows: 94% is promised there.

    The methods compared there: percentile 87-90%, basic 87-88%, BCa 87-88%, jackknife-t 92%; for normal
    features at 200 rows, 93-95% for all. Built is the hull of the percentile and jackknife-t intervals.
    """
    own, gap = [], []
    for rng in generators(8, rows):
        attack, difference = st.bootstrap_r2_difference(*features(kind, rows, rng), rng, replicates=400, groups=groups)
        own.append((attack, ATTACK))
        gap.append((difference, ATTACK - BASELINE))
    assert_coverage(covers(own), promise)
    assert_coverage(covers(gap), promise, at_most=0.98)


@pytest.mark.parametrize(("rows", "groups"), [(50, 1000), (200, 1000), (3000, 200)])
@pytest.mark.parametrize("cells", [1, 10])
@pytest.mark.parametrize("chance", [0.3, 0.98])
def test_mean_of_shares(rows: int, groups: int, cells: int, chance: float) -> None:
    """Shares of hit cells by row, from single cells to ten; measured 94.7-100%."""

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        shares = rng.binomial(cells, chance, rows) / cells
        return st.bootstrap_mean_interval(shares, rng, replicates=300, groups=groups, bounds=(0, 1)), chance

    assert_coverage(covers(map(world, generators(9, rows, cells))))


@pytest.mark.parametrize(("fpr", "non_members", "worlds"), [(0.01, 1000, WORLDS), (0.001, 10_000, 400)])
def test_tpr_at_fpr(fpr: float, non_members: int, worlds: int) -> None:
    """Both rates at the chosen threshold (measured 95.5-98.5%), which meets its target on average."""
    labels = np.arange(200 + non_members) < 200
    true, false, realised = [], [], []
    for rng in generators(10, non_members, worlds=worlds):
        found = st.tpr_at_fpr(labels, rng.normal(size=labels.size) + 1.5 * labels, fpr, rng)
        assert found is not None
        true.append((found.tpr_interval, float(ndtr(1.5 - found.threshold))))
        false.append((found.fpr_interval, float(ndtr(-found.threshold))))
        realised.append(false[-1][1])
    assert_coverage(covers(true))
    assert_coverage(covers(false))
    # five calibration scores at or above the threshold: a relative standard deviation of 1 / sqrt(5)
    assert np.mean(realised) == pytest.approx(fpr, rel=4 / np.sqrt(5 * worlds))


@pytest.mark.parametrize(("shift", "rows"), [(0.0, 40), (0.0, 400), (1.5, 40), (1.5, 400), (5.0, 40)])
def test_balanced_accuracy(shift: float, rows: int) -> None:
    """For the threshold that was chosen; measured 95.1-98.7%, as exact limits are joined."""
    labels = np.arange(rows) < rows // 2

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        scores = rng.normal(size=rows) + shift * labels
        _, interval, threshold = rates._split_accuracy(labels, scores, rng, 0.05)
        return interval, float(ndtr(shift - threshold) + ndtr(threshold)) / 2

    assert_coverage(covers(map(world, generators(11, rows))))


def test_balanced_accuracy_is_not_inflated_by_the_search_for_a_threshold() -> None:
    labels = np.arange(40) < 20
    found = [st.balanced_accuracy_split(labels, rng.normal(size=40), rng)[0] for rng in generators(12)]
    # the standard deviation of one is 0.11; picking and reporting on the same rows would give about 0.6
    assert np.mean(found) == pytest.approx(0.5, abs=4 * 0.11 / np.sqrt(WORLDS))


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.1), (3.0, 0.3)])
def test_epsilon_is_below_the_best_test_of_all(mu: float, delta: float) -> None:
    """One-sided: the bound stays below the exact epsilon of N(0, 1) against N(mu, 1); measured 98-100%."""
    truth = brentq(
        lambda e: ndtr(mu / 2 - e / mu) - np.exp(e) * ndtr(-mu / 2 - e / mu) - delta, 0.0, 60.0
    )  # Balle and Wang, ICML 2018, theorem 8

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        inside, outside = rng.normal(mu, 1, 1000), rng.normal(0, 1, 1000)
        return (st.epsilon_lower_bound(inside, outside, delta, rng).epsilon, np.inf), truth

    assert_coverage(covers(map(world, generators(13, worlds=500))))


def test_epsilon_interval_is_for_the_tested_threshold() -> None:
    """Randomised response with e^epsilon = 3 has one threshold, so both ends must hold; measured 99%."""

    def world(rng: np.random.Generator) -> tuple[st.Interval, float]:
        bound = st.epsilon_lower_bound(rng.random(1000) < 0.75, rng.random(1000) < 0.25, 0.0, rng)
        return (bound.epsilon, bound.upper), float(np.log(3))

    assert_coverage(covers(map(world, generators(14))))
