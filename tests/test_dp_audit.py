"""Lower bounds on epsilon: seldom above the truth, close to it with many trials, nothing from nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats
from scipy.special import ndtri
from sklearn.datasets import load_digits

import vflaudit as va
from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.audit import (
    Bonferroni,
    Bound,
    Fixed,
    Split,
    clopper_pearson,
    credible,
    gaussian_fit,
    gdp,
    one_run,
)
from vflaudit.accounting.audit.dpsgd import Recipe, audit_dpsgd, random_features
from vflaudit.accounting.audit.one_run import _greatest, dp_refuted, gdp_refuted, p_value
from vflaudit.accounting.audit.two_rates import order_tests
from vflaudit.accounting.events import Gaussian
from vflaudit.accounting.gaussian import gaussian_epsilon
from vflaudit.accounting.parties import calibrate
from vflaudit.errors import InputError

Method = Callable[..., Bound]
METHODS: dict[str, Method] = {
    "Clopper-Pearson, split": lambda a, b, d, rng: clopper_pearson(a, b, d, rng, correction=Split()),
    "Clopper-Pearson, Bonferroni": clopper_pearson,
    "Clopper-Pearson, fixed": lambda a, b, d, rng: clopper_pearson(a, b, d, rng, correction=Fixed(0.5)),
    "one run, split": lambda a, b, d, rng: one_run(a, b, d, rng, correction=Split()),
    "one run, Bonferroni": one_run,
    "one run, high": lambda a, b, d, rng: one_run(a, b, d, rng, sides="high"),
    "one run, fixed": lambda a, b, d, rng: one_run(a, b, d, rng, correction=Fixed(0.5)),
    "one run, Gaussian": lambda a, b, d, rng: one_run(a, b, d, rng, form="gdp"),
    "GDP": gdp,
    "GDP, split": lambda a, b, d, rng: gdp(a, b, d, rng, correction=Split()),
    "Gaussian fit": lambda a, b, d, rng: gaussian_fit(a, b, d),
    "Bayes": credible,
}
EXACT = [name for name in METHODS if name.startswith(("Clopper", "one run")) and "Gaussian" not in name]
WORLDS = 300


def generator(*words: int) -> np.random.Generator:
    return np.random.default_rng([5, *words])


def assert_rare(hits: int, worlds: int, rate: float = 0.05) -> None:
    """So many misses are not a matter of luck if their chance is below 1e-4."""
    assert stats.binomtest(hits, worlds, rate, alternative="greater").pvalue > 1e-4


def flips(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.random(count) < 0.5


# --- the promise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_gaussian_scores_give_a_bound_below_the_truth(name: str) -> None:
    for mu, delta in ((1.0, 1e-5), (1.0, 0.05)):
        truth, hits = gaussian_epsilon(1.0, mu, delta), 0
        for world in range(WORLDS // 2):
            rng = generator(1, world)
            inside = flips(rng, 400)
            scores = rng.standard_normal(400) + mu * inside
            hits += METHODS[name](scores[inside], scores[~inside], delta, rng).epsilon > truth
        assert_rare(hits, WORLDS // 2)


@pytest.mark.parametrize("name", EXACT)
def test_the_promise_holds_where_it_is_tight(name: str) -> None:
    """Randomised response is the mechanism that one-run auditing's theorem is tight for; e^epsilon = 3, delta = 0."""
    hits = 0
    for world in range(WORLDS):
        rng = generator(2, world)
        inside = flips(rng, 300)
        answers = np.where(rng.random(300) < 0.75, inside, ~inside).astype(float)
        hits += METHODS[name](answers[inside], answers[~inside], 0.0, rng).epsilon > math.log(3)
    assert_rare(hits, WORLDS)
    assert name != "one run, fixed" or hits >= 5  # the exact binomial tail: about one in twenty must miss


@pytest.mark.parametrize(
    ("name", "ties"), [(name, ties) for name in METHODS for ties in (False, True) if name != "Gaussian fit" or not ties]
)
def test_null_scores_seldom_give_anything(name: str, ties: bool) -> None:
    hits, worlds = 0, 200 if name == "Bayes" else 1000  # a credible bound promises nothing here; it is not far off
    for world in range(worlds):
        rng = generator(3, world)
        inside = flips(rng, 120)
        scores = rng.integers(3, size=120).astype(float) if ties else rng.standard_normal(120)
        hits += METHODS[name](scores[inside], scores[~inside], 1e-5, rng).epsilon > 1e-3
    assert_rare(hits, worlds)


def test_the_gaussian_fit_misses_as_often_as_it_says() -> None:
    truth, hits = gaussian_epsilon(1.0, 1.5, 1e-5), 0
    for world in range(1000):
        rng = generator(4, world)
        hits += gaussian_fit(rng.normal(1.5, 1, 60), rng.normal(0, 1, 90), 1e-5).epsilon > truth
    assert stats.binomtest(hits, 1000, 0.05).pvalue > 1e-4  # neither more nor less


# --- closeness ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("Clopper-Pearson, split", 0.75),
        ("Clopper-Pearson, Bonferroni", 0.75),
        ("Bayes", 0.8),
        ("GDP", 0.9),
        ("Gaussian fit", 0.97),
    ],
)
def test_the_bound_comes_close_as_trials_grow(name: str, share: float) -> None:
    mu, delta = 2.0, 0.1
    truth = gaussian_epsilon(1.0, mu, delta)
    middle = []
    for trials in (100, 1000, 20_000):
        found = []
        for world in range(9):
            rng = generator(6, world)
            found.append(METHODS[name](rng.normal(mu, 1, trials), rng.normal(0, 1, trials), delta, rng).epsilon)
        middle.append(float(np.median(found)))
    assert middle[0] < middle[1] < middle[2] <= truth and middle[2] >= share * truth


def test_one_run_comes_close_to_randomised_response() -> None:
    rng = generator(7)
    inside = flips(rng, 20_000)
    answers = np.where(rng.random(20_000) < 0.75, inside, ~inside).astype(float)
    bound = one_run(answers[inside], answers[~inside], 0.0, rng, correction=Fixed(0.5))
    assert 0.95 * math.log(3) < bound.epsilon < math.log(3)


def corners(inside: np.ndarray, outside: np.ndarray) -> list[tuple[int, int]]:
    """Guesses made and right at every corner of the concave ROC curve."""
    cuts = np.append(np.sort(np.concatenate([inside, outside])), np.inf)
    points = zip(np.searchsorted(np.sort(inside), cuts), np.searchsorted(np.sort(outside), cuts), strict=True)
    hull: list[tuple[int, int]] = []
    for x, y in ((int(x), int(y)) for x, y in points):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-1][0]) <= (y - hull[-1][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return [(inside.size - x + outside.size - y, inside.size - x) for x, y in hull]


@pytest.mark.parametrize(("mu", "dp", "gaussian"), [(2.0, 2.311945, 4.7218075), (4.0, 4.395568, 9.133752)])
def test_one_run_agrees_with_an_independent_implementation(mu: float, dp: float, gaussian: float) -> None:
    """jax_privacy's values for 10,000 + 10,000 normal quantiles, delta 1e-6, alpha 0.05 over the corners of the ROC."""
    quantiles = ndtri((np.arange(10_000) + 0.5) / 10_000)
    made = corners(quantiles + mu, quantiles)
    alpha = 0.05 / len(made)
    for test, expected in ((dp_refuted, dp), (gdp_refuted, gaussian)):
        found = _greatest(made, lambda one, e, test=test: test(20_000, *one, e, 1e-6, alpha))  # type: ignore[misc]
        assert found == pytest.approx(expected, abs=2e-4)
    rng = generator(8)  # fewer tests cost less
    assert one_run(quantiles + mu, quantiles, 1e-6, rng).epsilon > dp
    assert one_run(quantiles + mu, quantiles, 1e-6, rng, form="gdp").epsilon > gaussian


# --- the parts ----------------------------------------------------------------------------------------------


@given(some.integers(1, 30), some.data())
def test_p_value_against_the_sum_it_stands_for(guesses: int, data: some.DataObject) -> None:
    right, canaries = data.draw(some.integers(0, guesses)), guesses + data.draw(some.integers(0, 20))
    epsilon, delta = data.draw(some.floats(0, 4)), data.draw(some.sampled_from([0.0, 1e-3, 0.2]))
    binomial = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = sum(binomial.pmf(k) for k in range(right, guesses + 1))
    steps = [sum(binomial.pmf(k) for k in range(right - i, right)) / i for i in range(1, right + 1)]
    expected = min(1.0, tail + 2 * canaries * delta * max(steps, default=0.0))
    assert p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(expected, abs=1e-9)


def test_places_among_ordered_scores_are_honest_tests() -> None:
    """The limits hold for a cut at the k-th score: here the true rates above every cut are known."""
    misses = np.zeros(2)
    for world in range(400):
        rng = generator(9, world)
        inside, outside = rng.normal(1, 1, 50), rng.normal(0, 1, 50)
        cuts, above_in, above_out = order_tests(inside, outside, 8)
        assert above_in[0] == (inside > cuts[0]).sum() and above_out[0] == 0 and above_in[4] == 50
        low = stats.beta.ppf(0.05, above_in, 51 - above_in)
        high = stats.beta.ppf(0.95, above_out + 1, np.maximum(50 - above_out, 1e-9))
        misses += [(stats.norm.sf(cuts - 1) < low)[2], (stats.norm.sf(cuts) > high)[2]]
    for count in misses:
        assert_rare(int(count), 400)


@settings(max_examples=25, deadline=None)
@given(some.integers(0, 10**6))
def test_only_the_order_of_scores_counts(seed: int) -> None:
    rng = generator(seed)
    inside, outside = np.round(rng.normal(1, 1, 40), 1), np.round(rng.normal(0, 1, 30), 1)
    for name in set(METHODS) - {"Gaussian fit"}:
        if "fixed" in name:
            continue
        plain = METHODS[name](inside, outside, 1e-3, generator(seed, 1))
        assert METHODS[name](np.exp(inside), np.exp(outside), 1e-3, generator(seed, 1)) == plain
    untied = inside + rng.random(40) * 1e-3, outside + rng.random(30) * 1e-3
    for method in (clopper_pearson, gdp, METHODS["one run, Bonferroni"]):
        moved = method(rng.permutation(untied[0]), rng.permutation(untied[1]), 1e-3, generator(2))
        assert moved == method(*untied, 1e-3, generator(3))


def test_perfect_scores_reach_the_ceiling() -> None:
    rng = generator(10)
    for name in ("Clopper-Pearson, split", "Clopper-Pearson, Bonferroni", "one run, Bonferroni", "GDP", "Bayes"):
        bound = METHODS[name](np.ones(300) + 1e-3 * rng.random(300), np.zeros(300), 1e-5, rng)
        assert bound.epsilon == pytest.approx(bound.ceiling, rel=0.02) and bound.auditor_limited, name
    assert "auditor-limited" in str(bound)
    weak = clopper_pearson(rng.normal(1, 1, 500), rng.normal(0, 1, 500), 1e-5, rng)
    assert 0 < weak.epsilon < weak.ceiling and not weak.auditor_limited


def test_kinds_are_told_apart() -> None:
    rng = generator(11)
    scores = rng.normal(1, 1, 200), rng.normal(0, 1, 200)
    kinds = {name: METHODS[name](*scores, 1e-5, rng).kind for name in METHODS}
    assert kinds == {
        name: "credible" if name == "Bayes" else "parametric" if "G" in name else "confidence" for name in METHODS
    }
    assert "parametric" in str(gdp(*scores, 1e-5, rng))


def test_a_bound_and_a_claim_speak_of_the_same_neighbours() -> None:
    rng = generator(12)
    bound = clopper_pearson(np.ones(500), np.zeros(500), 1e-5, rng, neighbours="replace-one")
    assert bound.refutes(1.0, "replace-one") and not bound.refutes(10.0, "replace-one")
    with pytest.raises(InputError, match="says nothing about a claim for add-remove"):
        bound.refutes(1.0, "add-remove")


def test_the_same_noise_allows_more_to_whoever_swaps_a_person() -> None:
    """Clipped contributions +1 and -1 are two apart: that refutes nothing but a claim about adding one person."""
    rng, sigma = generator(16), 2.0
    bound = gaussian_fit(rng.normal(1, sigma, 5000), rng.normal(-1, sigma, 5000), 1e-5, neighbours="replace-one")
    swapped = accountant("exact").epsilon(Gaussian(sigma, "replace-one"), 1e-5)
    added = accountant("exact").epsilon(Gaussian(sigma, "add-remove"), 1e-5)
    assert not bound.refutes(swapped, "replace-one") and added < bound.epsilon


BAD = {
    "delta": lambda r: clopper_pearson(np.ones(9), np.zeros(9), 1.0, r),
    "few": lambda r: one_run(np.ones(3), np.zeros(9), 1e-5, r),
    "nan": lambda r: gdp(np.full(9, np.nan), np.zeros(9), 1e-5, r),
    "relation": lambda r: credible(np.ones(9), np.zeros(9), 1e-5, r, neighbours="swap"),
    "confidence": lambda r: clopper_pearson(np.ones(9), np.zeros(9), 1e-5, r, confidence=95),
    "sides": lambda r: one_run(np.ones(9), np.zeros(9), 1e-5, r, sides="low"),
    "form": lambda r: one_run(np.ones(9), np.zeros(9), 1e-5, r, form="fdp"),
    "no delta": lambda r: gdp(np.arange(9.0) + 4, np.arange(9.0), 0.0, r),
    "no spread": lambda r: gaussian_fit(np.ones(9), np.zeros(9), 1e-5),
    "correction": lambda r: clopper_pearson(np.ones(9), np.zeros(9), 1e-5, r, correction="split"),
    "tests": lambda r: Bonferroni(0),
    "many tests": lambda r: credible(np.ones(9), np.zeros(9), 1e-5, r, correction=Bonferroni()),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str) -> None:
    with pytest.raises(InputError) as caught:
        BAD[case](generator(13))
    assert "\n" not in str(caught.value)


def test_the_game_takes_any_bound() -> None:
    rng, adversary = generator(14), va.Adversary(corrupts={"server"})
    bound = one_run(rng.normal(2, 1, 300), rng.normal(0, 1, 300), 1e-5, rng)
    score = va.Distinguishing().score_bound(bound, attack="canaries", adversary=adversary)
    assert score.score == bound.epsilon <= score.interval[1] and score.metrics["neighbours"] == "add-remove"
    assert score.metrics["method"] == "one run" and score.rows == 600
    with pytest.raises(InputError, match="add-remove"):
        va.Distinguishing(neighbours="replace-one").score_bound(bound, attack="canaries", adversary=adversary)
    fit = gaussian_fit(rng.normal(2, 1, 300), rng.normal(0, 1, 300), 1e-5)
    assert math.isfinite(va.Distinguishing().score_bound(fit, attack="fit", adversary=adversary).interval[1])


# --- DP-SGD on digits ---------------------------------------------------------------------------------------

FEATURES, LABELS = load_digits(return_X_y=True)


def audited(recipe: Recipe, seed: int, canaries: int = 1000, kind: str = "gradient"):
    rng = generator(15, seed)
    lifted = random_features(FEATURES / 16, 120, rng)
    return audit_dpsgd(lifted, LABELS, recipe, rng, canaries=canaries, kind=kind), rng  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gradient", "input"])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_dpsgd_keeps_its_promise(kind: str, rate: float) -> None:
    """Calibrated to epsilon 4: no adversary refutes it, and the model learns."""
    asked = Recipe(rate=rate, steps=60)
    sigma = calibrate([asked.event()], 4.0, 1e-5)[0]
    found, rng = audited(Recipe(rate, sigma, 60), 0, kind=kind, canaries=1000 if kind == "gradient" else 300)
    assert found.accuracy > 0.6
    for adversary in ("iterates", "final"):
        for method in (one_run, clopper_pearson):
            assert not method(*found.of(adversary), 1e-5, rng).refutes(4.0, "add-remove")  # type: ignore[arg-type]


def test_gradient_canaries_see_most_of_what_full_batches_spend() -> None:
    """Without sampling the mechanism is Gaussian: the fit must come near the accounted epsilon, one run below it."""
    recipe = Recipe(rate=1.0, sigma=4.0, steps=16)  # mu = sqrt(16) / 4 = 1
    truth = accountant("exact").epsilon(recipe.event(), 1e-5)
    found, rng = audited(recipe, 1)
    fit = gaussian_fit(*found.of("iterates"), 1e-5)
    assert 0.75 * truth < fit.epsilon < truth * 1.05
    assert 0.8 < one_run(*found.of("iterates"), 1e-5, rng).epsilon < truth


def test_noise_that_is_too_small_is_caught() -> None:
    """Positive control: a training that claims eight times its noise is refuted by one run; an honest one is not."""
    claimed = accountant("rdp").epsilon(Recipe(0.2, 4.0, 50).event(), 1e-5)
    for applied, caught in ((0.5, True), (4.0, False)):
        for seed in range(5):
            found, rng = audited(Recipe(0.2, applied, 50), seed)
            assert one_run(*found.of("iterates"), 1e-5, rng).refutes(claimed, "add-remove") is caught


def test_impossible_canaries_are_refused() -> None:
    for kind, canaries in (("gradient", 10**5), ("input", 5000), ("loss", 10)):
        with pytest.raises(InputError):
            audited(Recipe(steps=1), 3, canaries, kind)
