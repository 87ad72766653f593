"""The statistics agree with SciPy and scikit-learn where those have an answer, and with hand-made ones."""

from __future__ import annotations

import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats
from scipy.optimize import brentq
from sklearn.metrics import r2_score, roc_auc_score, roc_curve

from vflaudit.core import statistics as st
from vflaudit.errors import InputError


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng([20, *seed])


@some.composite
def scored(draw: some.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels with both classes, and whole scores: ties are common and monotone maps cannot merge values."""
    size = draw(some.integers(2, 40))
    labels = draw(some.lists(some.booleans(), min_size=size, max_size=size).filter(lambda b: 0 < sum(b) < len(b)))
    return np.array(labels), np.array(draw(some.lists(some.integers(-20, 20), min_size=size, max_size=size)))


# --- binomial and t -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 20), (3, 20), (20, 20), (517, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_clopper_pearson_is_scipys_exact_interval(hits: int, trials: int, confidence: float) -> None:
    expected = stats.binomtest(hits, trials).proportion_ci(confidence, "exact")
    assert st.clopper_pearson(hits, trials, confidence) == pytest.approx(tuple(expected), abs=1e-12)
    above = stats.binomtest(hits, trials, alternative="greater").proportion_ci(confidence, "exact")
    assert st.clopper_pearson_lower(hits, trials, confidence) == pytest.approx(above.low, abs=1e-12)
    below = stats.binomtest(hits, trials, alternative="less").proportion_ci(confidence, "exact")
    assert st.clopper_pearson_upper(hits, trials, confidence) == pytest.approx(below.high, abs=1e-12)


def test_no_trials_say_nothing() -> None:
    assert st.clopper_pearson(0, 0) == (0.0, 1.0)
    assert (st.clopper_pearson_lower(0, 0), st.clopper_pearson_upper(0, 0)) == (0.0, 1.0)


def test_all_hits_by_hand() -> None:
    assert st.clopper_pearson_lower(10, 10) == pytest.approx(0.05 ** (1 / 10))


def test_t_interval() -> None:
    values = [0.1, 0.4, 0.35, 0.8]
    expected = stats.t.interval(0.9, 3, np.mean(values), stats.sem(values))
    assert st.t_interval(values, 0.9) == pytest.approx(expected)
    assert st.t_interval([0.3]) == (-math.inf, math.inf)
    assert st.t_interval([0.1, 0.1, 0.1]) == (0.1, 0.1)


# --- AUC ----------------------------------------------------------------------------------------------------


def test_auc_by_hand() -> None:
    assert st.auc([True, False], [1, 0]) == 1.0
    assert st.auc([True, True, False, False], [2, 1, 1, 0]) == 3.5 / 4
    assert st.auc([True, False, True, False], [7, 7, 7, 7]) == 0.5  # sorted labels or not, a constant knows nothing
    assert st.auc([True, False, False], [np.inf, -np.inf, 0]) == 1.0


@settings(max_examples=80, deadline=None, derandomize=True)
@given(scored())
def test_auc_properties(case: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = case
    value, influence = st.auc_influence(labels, scores)
    assert value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    for image in (np.exp(scores / 5), scores**3 + 2.0 * scores, 1e6 * scores - 3):
        assert st.auc(labels, image) == value
    assert st.auc(labels, -scores) == pytest.approx(1 - value, abs=1e-12)
    order = generator(1).permutation(labels.size)
    shuffled, moved = st.auc_influence(labels[order], scores[order])
    assert shuffled == value
    np.testing.assert_allclose(moved, influence[order], atol=1e-12)
    assert abs(influence.mean()) < 1e-9
    twice = st.auc_influence(np.tile(labels, 2), np.tile(scores, 2))
    assert twice[0] == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(twice[1], np.tile(influence, 2), atol=1e-9)
    false, true = st.roc(labels, scores)
    assert np.trapezoid(true, false) == pytest.approx(value, abs=1e-12)
    low, high = st.auc_interval(value, influence, int(labels.sum()), int((~labels).sum()))
    assert 0 <= low <= value + 1e-12 and value - 1e-12 <= high <= 1


def test_influence_is_the_structural_component_pair_by_pair() -> None:
    labels, scores = np.array([1, 0, 1, 0, 0], bool), np.array([2, 1, 1, 0, 3])
    wins = np.array([[(p > n) + 0.5 * (p == n) for n in scores[~labels]] for p in scores[labels]])
    value, influence = st.auc_influence(labels, scores)
    assert value == pytest.approx(wins.mean())
    np.testing.assert_allclose(influence[labels], (wins.mean(axis=1) - value) / 0.4)
    np.testing.assert_allclose(influence[~labels], (wins.mean(axis=0) - value) / 0.6)


@pytest.mark.parametrize("tied", [False, True])
def test_influence_variance_is_that_of_a_brute_force_bootstrap(tied: bool) -> None:
    rng = generator(2)
    labels = rng.random(300) < 0.3
    scores = rng.normal(size=300) + labels
    scores = np.round(scores) if tied else scores
    _, influence = st.auc_influence(labels, scores)
    again = [st.auc(labels[rows], scores[rows]) for rows in rng.integers(300, size=(3000, 300))]
    # 3000 replicates know a standard deviation to 1.3%; DeLong and the bootstrap differ by order 1/N besides
    assert influence.std() / math.sqrt(300) == pytest.approx(np.std(again), rel=0.07)


def test_macro_auc_is_scikit_learns() -> None:
    rng = generator(3)
    labels, scores = rng.integers(3, size=90), rng.random((90, 3))
    scores /= scores.sum(axis=1, keepdims=True)
    value, influence = st.macro_auc_influence(labels, scores)
    assert value == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr", average="macro"))
    assert abs(influence.mean()) < 1e-12
    # a class that does not occur changes nothing; two classes with opposite columns are the binary AUC
    assert st.macro_auc_influence(labels, np.c_[scores, np.ones(90)])[0] == value
    binary, one = labels % 2, scores[:, 0]
    assert st.macro_auc_influence(binary, np.c_[-one, one])[0] == pytest.approx(st.auc(binary, one))


def test_auc_interval_at_perfect_separation_by_hand() -> None:
    labels = np.arange(60) < 20
    value, influence = st.auc_influence(labels, labels)
    assert st.auc_interval(value, influence, 20, 40) == pytest.approx((0.025 ** (1 / 20), 1.0), abs=1e-9)
    value, influence = st.auc_influence(labels, ~labels)
    assert st.auc_interval(value, influence, 20, 40) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)), abs=1e-9)


def test_difference_interval() -> None:
    rng = generator(4)
    labels = rng.random(400) < 0.5
    good, poor = labels + rng.normal(size=400), rng.normal(size=400)
    (a, move_a), (b, move_b) = st.auc_influence(labels, good), st.auc_influence(labels, poor)
    low, high = st.difference_interval(a - b, move_a - move_b)
    assert 0 < low < a - b < high < 1
    # a perfect attack against a constant baseline: no row moves the estimate, yet it is not known exactly
    perfect, none = st.auc_influence(labels, labels)
    for given_class, used in ((150, 150), (None, 200)):
        low, high = st.difference_interval(perfect - 0.5, none, smaller_class=given_class)
        assert (low, high) == pytest.approx((0.025 ** (1 / used) - 0.5, 1.5 - 0.025 ** (1 / used)))


def test_roc_is_scikit_learns() -> None:
    rng = generator(5)
    labels, scores = rng.random(200) < 0.4, rng.integers(30, size=200)
    expected = roc_curve(labels, scores, drop_intermediate=False)
    for ours, theirs in zip(st.roc(labels, scores), expected[:2], strict=True):
        np.testing.assert_allclose(ours, theirs)
    false, true = st.roc([True, False], [1, 1])
    assert false.tolist() == true.tolist() == [0.0, 1.0]


# --- R2 -----------------------------------------------------------------------------------------------------


def test_r2_is_scikit_learns_and_leaves_constants_out() -> None:
    rng = generator(6)
    truth = rng.normal(3.0, 2.0, (50, 4))
    guess = truth + rng.normal(size=(50, 4))
    np.testing.assert_allclose(st.r2_per_feature(truth, guess), r2_score(truth, guess, multioutput="raw_values"))
    truth[:, 1] = 0.1  # its mean is not exactly 0.1 in floating point, so its sum of squares is not zero
    values = st.r2_per_feature(truth, guess)
    assert np.isnan(values).tolist() == [False, True, False, False]
    assert st.mean_r2(truth, guess) == pytest.approx(np.mean(values[[0, 2, 3]]))
    low, high = st.bootstrap_r2_difference(truth, guess, None, rng)[0]
    assert low < st.mean_r2(truth, guess) < high
    order = rng.permutation(50)
    np.testing.assert_allclose(st.r2_per_feature(truth[order], guess[order]), values)
    np.testing.assert_allclose(st.r2_per_feature(np.tile(truth, (2, 1)), np.tile(guess, (2, 1))), values)


def test_bootstrap_replicates_are_plain_resampling() -> None:
    """The sums-and-weights shortcut has the spread of resampling rows for scikit-learn, pooled or not."""
    rng = generator(7)
    truth = rng.normal(size=(2000, 2))
    attack, base = 0.8 * truth + 0.3 * rng.normal(size=(2000, 2)), 0.4 * truth
    plain = []
    for rows in rng.integers(2000, size=(400, 2000)):
        plain.append(r2_score(truth[rows], attack[rows]) - r2_score(truth[rows], base[rows]))
    width = 2 * 1.96 * np.std(plain)
    for groups in (300, 5000):
        low, high = st.bootstrap_r2_difference(truth, attack, base, rng, groups=groups)[1]
        # 400 replicates know the spread to 3.5%, 300 pools to 4%; the hull of two intervals is a little wider
        assert 0.85 * width < high - low < 1.25 * width


def test_bootstrap_is_the_slow_oracle_to_the_last_digit() -> None:
    rng = generator(22)
    truth, attack, base = rng.normal(5.0, 1.0, (3, 12, 2))
    own, gap = st.bootstrap_r2_difference(truth, attack, base, generator(23), replicates=200)
    drawn = [np.repeat(np.arange(12), times) for times in st._weights(200, 12, generator(23)).astype(int)]
    left = [np.delete(np.arange(12), row) for row in range(12)]

    def scores(rows: np.ndarray) -> tuple[float, float]:
        score = r2_score(truth[rows], attack[rows])
        return score, score - r2_score(truth[rows], base[rows])

    point, again, without = (
        scores(np.arange(12)),
        np.array([*map(scores, drawn)]),
        np.array([*map(scores, left)]),
    )
    expected = [st._hull(point[k], again[:, k], without[:, k], 0.05) for k in range(2)]
    assert own == pytest.approx((expected[0][0], min(expected[0][1], 1.0)))
    assert gap == pytest.approx(expected[1])


def test_pools_are_random_whatever_the_order_of_the_rows() -> None:
    rng = generator(24)
    truth = np.sort(rng.normal(size=(3000, 1)), axis=0)
    guess = truth * (truth > 0)  # good in the upper half of the table, useless in the lower
    rows = rng.permutation(3000)
    low, high = st.bootstrap_r2_difference(truth, guess, None, rng, groups=200)[0]
    low_mixed, high_mixed = st.bootstrap_r2_difference(truth[rows], guess[rows], None, rng, groups=200)[0]
    assert high - low == pytest.approx(high_mixed - low_mixed, rel=0.3)  # 200 pools know a spread to 5%


@settings(max_examples=40, deadline=None, derandomize=True)
@given(some.integers(2, 30), some.integers(1, 4), some.integers(0, 10**6), some.booleans())
def test_bootstrap_interval_contains_the_estimate(rows: int, features: int, seed: int, binary: bool) -> None:
    rng = generator(seed)
    truth = (rng.random((rows, features)) < 0.2).astype(float) if binary else rng.normal(size=(rows, features))
    truth[0] += 1.0  # at least one row differs
    attack, base = truth + rng.normal(size=truth.shape), rng.normal(size=truth.shape)
    own, gap = st.bootstrap_r2_difference(truth, attack, base, rng, replicates=50, groups=10)
    score = st.mean_r2(truth, attack)
    assert own[0] - 1e-9 <= score <= own[1] + 1e-9 and own[1] <= 1
    assert gap[0] - 1e-9 <= score - st.mean_r2(truth, base) <= gap[1] + 1e-9
    assert np.isfinite([*own, *gap]).all()
    own, gap = st.bootstrap_r2_difference(truth, attack, None, generator(1), replicates=50)
    assert own == gap
    low, high = st.bootstrap_mean_interval(truth[:, 0], rng, replicates=50, groups=10)
    assert low <= truth[:, 0].mean() <= high


def test_bootstrap_is_a_function_of_the_generator() -> None:
    rng = generator(8)
    truth, attack = rng.normal(size=(2, 300, 3))
    once, again = (st.bootstrap_r2_difference(truth, attack, None, generator(9), groups=50) for _ in range(2))
    assert once == again


def test_a_perfect_reconstruction_is_certain_and_a_perfect_hit_rate_is_not() -> None:
    truth = generator(10).normal(size=(40, 2))
    assert st.bootstrap_r2_difference(truth, truth, None, generator(0)) == ((1.0, 1.0), (1.0, 1.0))
    assert st.bootstrap_mean_interval(np.ones(40), generator(0)) == (1.0, 1.0)
    low, high = st.bootstrap_mean_interval(np.ones(40), generator(0), bounds=(0, 1))
    assert (low, high) == st.clopper_pearson(40, 40)


def test_half_a_million_rows_fit_in_200_megabytes() -> None:
    rng = generator(11)
    column = rng.normal(size=500_000).astype(np.float32)
    truth, attack = (np.broadcast_to(c[:, None], (500_000, 60)) for c in (column, column + 0.5))
    tracemalloc.start()
    own, gap = st.bootstrap_r2_difference(truth, attack, np.broadcast_to(np.float32(0), truth.shape), rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert own[0] < 0.75 < own[1] and own[1] - own[0] < 0.01 and gap[0] < 0.75 < gap[1]


# --- thresholds ---------------------------------------------------------------------------------------------


def test_tpr_at_fpr_needs_enough_non_members() -> None:
    def at(non_members: int, fpr: float) -> st.RateAtThreshold | None:
        labels = np.arange(non_members + 50) < 50
        return st.tpr_at_fpr(labels, generator(12).normal(size=labels.size), fpr, generator(0))

    assert at(999, 0.01) is None and at(1000, 0.01) is not None
    assert at(9_999, 0.001) is None and at(10_000, 0.001) is not None


def test_tpr_at_fpr_on_scores_anyone_can_check() -> None:
    labels = np.arange(1200) < 200
    rate = st.tpr_at_fpr(labels, np.where(labels, 1.0, 0.0), 0.01, generator(0))
    assert rate is not None
    assert (rate.tpr, rate.members, rate.non_members) == (1.0, 200, 500)
    assert rate.tpr_interval == st.clopper_pearson(200, 200)
    assert rate.fpr_interval[0] <= rate.fpr <= rate.fpr_interval[1] < 0.05


def test_constant_scores_earn_the_target_rate_and_no_more() -> None:
    """Ties at the threshold are broken at random: neither all nor none of the members get through."""
    labels = np.arange(3000) < 1000
    rates = [st.tpr_at_fpr(labels, np.zeros(3000), 0.05, generator(13, k)) for k in range(60)]
    # mean of 60 rates, each with a standard deviation of about 0.0096 (threshold and sampling)
    assert np.mean([rate.tpr for rate in rates if rate]) == pytest.approx(0.05, abs=0.006)
    halves = [st.balanced_accuracy_split(labels, np.zeros(3000), generator(14, k)) for k in range(60)]
    assert np.mean([accuracy for accuracy, _ in halves]) == pytest.approx(0.5, abs=0.01)


def test_balanced_accuracy_of_a_clean_split() -> None:
    labels = np.arange(100) < 40
    accuracy, (low, high) = st.balanced_accuracy_split(labels, labels * 2.0, generator(15))
    # 20 members and 30 others are held out: misses of 0.168 and 0.116 are possible, joined by Pythagoras
    assert accuracy == high == 1.0 and low == pytest.approx(1 - math.hypot(0.16843, 0.11570) / 2, abs=1e-4)


# --- epsilon ------------------------------------------------------------------------------------------------


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of N(0, 1) against N(mu, 1) (Balle and Wang, ICML 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        return (
            stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta
        )

    return float(brentq(excess, 0.0, 60.0))


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.1), (2.0, 0.1), (0.5, 0.05)])
def test_gaussian_scores_give_a_bound_below_the_truth_and_close(mu: float, delta: float) -> None:
    truth = gaussian_epsilon(mu, delta)
    bounds = []
    for k in range(25):
        rng = generator(16, k)
        bounds.append(st.epsilon_lower_bound(rng.normal(mu, 1, 20_000), rng.normal(0, 1, 20_000), delta, rng))
    found = np.array([bound.epsilon for bound in bounds])
    # One bound may exceed the truth with probability at most 5%: more than 5 of 25 has probability 1.2e-3 at
    # most, and 0-2% were measured. Two 97.5% limits on 10,000 held-out trials cost a median 12-21%.
    assert (found > truth).sum() <= 5
    assert np.median(found) >= 0.75 * truth
    assert all(bound.epsilon <= bound.upper < math.inf and bound.epsilon <= bound.ceiling for bound in bounds)


def test_null_scores_give_a_positive_bound_no_more_often_than_promised() -> None:
    for ties in (False, True):
        hits = 0
        for k in range(1000):
            rng = generator(17, k)
            scores = rng.integers(4, size=(2, 100)) if ties else rng.normal(size=(2, 100))
            hits += st.epsilon_lower_bound(*scores, 0.0, rng).epsilon > 0
        assert stats.binomtest(hits, 1000, 0.05, alternative="greater").pvalue > 1e-4


def test_the_ceiling_is_what_perfect_scores_reach() -> None:
    bound = st.epsilon_lower_bound(np.ones(1000), np.zeros(1000), 1e-5, generator(18))
    rate = 0.025 ** (1 / 500)
    assert bound.epsilon == bound.ceiling == pytest.approx(math.log((rate - 1e-5) / (1 - rate)))
    assert (bound.trials_in, bound.trials_out, bound.threshold, bound.upper) == (
        500,
        500,
        0.0,
        st.EPSILON_CAP,
    )


def test_the_bound_looks_both_ways() -> None:
    """A tenth of the "out" trials give themselves away by a low score; no "in" trial ever scores low."""
    rng = generator(19)
    outside = np.where(rng.random(4000) < 0.1, -5.0, 0.0)
    assert st.epsilon_lower_bound(np.zeros(4000), outside, 0.0, rng).epsilon > 3


# --- cells and categories -----------------------------------------------------------------------------------


def test_errors_and_hits_by_hand() -> None:
    truth = np.array([[0.0, 5.0], [2.0, 5.0]])
    assert st.relative_error(truth, truth) == 0.0 and st.relative_error(truth, 0 * truth) == 1.0
    # the second column is constant and not counted; the first has standard deviation 1
    assert st.cells_within(truth, [[0.04, 0], [2.06, 5]]).tolist() == [1.0, 0.0]
    assert st.cells_within(truth, [[0.5, 0], [1.5, 5]], tolerance=0.5).tolist() == [1.0, 1.0]
    onehot = np.eye(3)
    assert st.category_accuracy(onehot, [[3, 1, 0], [1, 1, 0], [0, 0, -1]]).tolist() == [1.0, 0.5, 0.0]
    assert st.category_accuracy(onehot, np.zeros((3, 3))) == pytest.approx([1 / 3] * 3)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(some.integers(2, 20), some.integers(2, 5), some.integers(0, 10**6))
def test_cells_and_categories_follow_their_rows(rows: int, features: int, seed: int) -> None:
    rng = generator(seed)
    truth, guess = rng.normal(size=(2, rows, features))
    order = rng.permutation(rows)
    for score in (st.cells_within, st.category_accuracy):
        values = score(truth, guess)
        np.testing.assert_allclose(score(truth[order], guess[order]), values[order])
        np.testing.assert_allclose(score(np.tile(truth, (2, 1)), np.tile(guess, (2, 1))), np.tile(values, 2))
        assert ((values >= 0) & (values <= 1)).all()
    assert st.relative_error(truth[order], guess[order]) == pytest.approx(st.relative_error(truth, guess))


# --- bad input ----------------------------------------------------------------------------------------------

RNG = generator(20)
BAD = {
    "impossible count": lambda: st.clopper_pearson(3, 2),
    "confidence": lambda: st.clopper_pearson(1, 2, 95),
    "no values": lambda: st.t_interval([]),
    "one class": lambda: st.auc([True, True], [1, 2]),
    "lengths": lambda: st.auc([True, False], [1, 2, 3]),
    "nan score": lambda: st.auc([True, False], [1, math.nan]),
    "labels are not boolean": lambda: st.auc([2, 0], [1, 2]),
    "one class of many": lambda: st.macro_auc_influence([1, 1], [[0, 1], [0, 1]]),
    "unknown class": lambda: st.macro_auc_influence([0, 5], [[0, 1], [0, 1]]),
    "shapes": lambda: st.r2_per_feature([[1.0], [2.0]], [[1.0, 2.0]]),
    "nan guess": lambda: st.mean_r2([[1.0], [2.0]], [[1.0], [math.nan]]),
    "all constant": lambda: st.mean_r2([[1.0], [1.0]], [[1.0], [2.0]]),
    "all constant, bootstrap": lambda: st.bootstrap_r2_difference([[1.0], [1.0]], [[1.0], [2.0]], None, RNG),
    "empty matrix": lambda: st.r2_per_feature(np.empty((0, 2)), np.empty((0, 2))),
    "one dimension": lambda: st.r2_per_feature([1.0, 2.0], [1.0, 2.0]),
    "out of bounds": lambda: st.bootstrap_mean_interval([0.5, 2.0], RNG, bounds=(0, 1)),
    "groups": lambda: st.bootstrap_mean_interval([0.5, 2.0], RNG, groups=1),
    "fpr": lambda: st.tpr_at_fpr([True, False], [1, 2], 1.0, RNG),
    "single member": lambda: st.balanced_accuracy_split([True, False, False], [1, 2, 3], RNG),
    "delta": lambda: st.epsilon_lower_bound([1, 2], [1, 2], 1.0, RNG),
    "single trial": lambda: st.epsilon_lower_bound([1], [1, 2], 0.0, RNG),
    "zero truth": lambda: st.relative_error([0.0], [1.0]),
    "tolerance": lambda: st.cells_within([[0.0], [1.0]], [[0.0], [1.0]], -1),
    "two categories": lambda: st.category_accuracy([[1, 1]], [[1, 0]]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        BAD[name]()


def test_importing_is_light() -> None:
    code = "import sys, vflaudit.core.statistics; print('scipy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
