"""Auditing with one training run: m canaries, each in the data by a coin flip of its own; guess which are in."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from vflaudit.accounting.audit.bounds import Array, Bonferroni, Bound, Correction, Fixed, Split, checked, geometric
from vflaudit.accounting.events import Neighbours
from vflaudit.accounting.gaussian import gaussian_deviation
from vflaudit.core.rates import EPSILON_CAP, _fair_ranks
from vflaudit.errors import InputError, unknown

Sides = Literal["both", "high"]
Form = Literal["dp", "gdp"]
Guesses = tuple[int, int]  # made, and right
FINE = 40  # numbers of guesses among which half of the canaries choose one


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance of at least so many right guesses, were the mechanism (epsilon, delta)-private.

    Steinke, Nasr, Jagielski (2023), theorem 5.2: right guesses are dominated by Binomial(guesses, e^eps/(1 + e^eps)),
    up to 2 m delta times the greatest mean step of its tail below `right`.
    """
    from scipy.special import bdtrc, expit

    truth = float(expit(epsilon))
    tail = bdtrc(right - 1, guesses, truth) if right > 0 else 1.0
    if delta == 0 or right == 0:
        return float(tail)
    steps = np.arange(1, right + 1)
    reached = np.where(steps < right, bdtrc(np.maximum(right - steps - 1, 0), guesses, truth), 1.0)
    return float(min(tail + 2 * canaries * delta * ((reached - tail) / steps).max(), 1.0))


def dp_refuted(canaries: int, guesses: int, right: int, epsilon: float, delta: float, alpha: float) -> bool:
    """Whether so many right guesses refute (epsilon, delta)."""
    if p_value(canaries, guesses, right, epsilon, 0.0) > alpha:  # cheap, and more delta only helps the mechanism
        return False
    return p_value(canaries, guesses, right, epsilon, delta) <= alpha


@lru_cache(maxsize=4096)
def _mu_of(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that has this epsilon at delta."""
    return 1 / gaussian_deviation(1.0, max(epsilon, 1e-9), delta)


def gdp_refuted(canaries: int, guesses: int, right: int, epsilon: float, delta: float, alpha: float) -> bool:
    """Whether so many right guesses refute that the mechanism is Gaussian with this epsilon at delta.

    The recursion of Mahloujifar, Melis and Chaudhuri (2024), algorithm 3, for the Gaussian trade-off: from the tail
    probability alpha of `right` or more, bound those of fewer, until they cannot all be true.
    """
    from scipy.special import ndtr, ndtri

    mu = _mu_of(epsilon, delta)
    hit, miss = alpha * right / canaries, alpha * (guesses - right) / canaries
    for left in range(right - 1, -1, -1):
        worse = max(miss, float(ndtr(ndtri(min(hit, 1.0)) - mu)))
        if worse == miss:
            break  # then nothing changes any more
        hit, miss = hit + left / (guesses - left) * (worse - miss), worse
        if hit + miss > guesses / canaries:
            return True
    return hit + miss > guesses / canaries


def one_run(
    scores_in: Any,
    scores_out: Any,
    delta: float,
    rng: np.random.Generator,
    *,
    correction: Correction = Bonferroni(),  # noqa: B008
    sides: Sides = "both",
    form: Form = "dp",
    confidence: float = 0.95,
    neighbours: Neighbours = "add-remove",
) -> Bound:
    """Scores of canaries that were in and of canaries that were out of one run; a bound on epsilon.

    `sides="high"` guesses "in" for the greatest scores and abstains from the rest; `both` also guesses "out" for as
    many of the least. `form="gdp"` tests a Gaussian trade-off instead of (epsilon, delta): much tighter where the
    mechanism is Gaussian, and parametric. Each canary must have been in with probability 1/2, independently.
    """
    inside, outside = checked(scores_in, scores_out, delta, confidence, neighbours)
    for value, kind, names in ((sides, "sides", get_args(Sides)), (form, "form", get_args(Form))):
        if value not in names:
            raise unknown(kind, value, names)
    if form == "gdp" and delta == 0:
        raise InputError("delta is 0, expected more: a Gaussian mechanism has no finite epsilon at 0")
    alpha = 1 - confidence
    guesses, places, canaries, share = _guesses(inside, outside, correction, sides, rng, delta, alpha)

    test = gdp_refuted if form == "gdp" else dp_refuted

    def refuted(made: Guesses, epsilon: float) -> bool:
        return test(canaries, *made, epsilon, delta, alpha * share)

    return Bound(
        epsilon=_greatest(guesses, refuted),
        ceiling=_greatest([(made, made) for made in places], refuted),
        delta=delta,
        confidence=confidence,
        method="one run" if form == "dp" else "one run, Gaussian trade-off",
        kind="confidence" if form == "dp" else "parametric",
        neighbours=neighbours,
        correction=correction,
        trials_in=inside.size,
        trials_out=outside.size,
    )


def _guesses(
    inside: Array, outside: Array, correction: Correction, sides: Sides, rng: np.random.Generator, delta: float,
    alpha: float,
) -> tuple[list[Guesses], list[int], int, float]:  # fmt: skip
    """The tests' guesses; how many guesses a test might have made; the canaries; each test's share of alpha."""
    scores = np.concatenate([inside, outside])
    truth = np.arange(scores.size) < inside.size
    if isinstance(correction, Fixed):
        called = scores > correction.threshold
        right = (called == truth) if sides == "both" else called & truth
        made = scores.size if sides == "both" else int(called.sum())
        return [(made, int(right.sum()))], [made], scores.size, 1.0
    if isinstance(correction, Bonferroni):
        tests = _ranked(scores, truth, geometric(scores.size // 2, correction.tests), sides, rng)
        return tests, [made for made, _ in tests], scores.size, 1 / len(tests)
    if not isinstance(correction, Split):
        raise InputError(f"correction {correction!r}: expected Split(), Bonferroni(tests) or Fixed(threshold)")
    pick, keep = np.array_split(rng.permutation(scores.size), 2)
    places = geometric(min(pick.size, keep.size) // 2, FINE)

    def worth(one: Guesses) -> tuple[float, float]:  # the bound, and the surprise where there is no bound
        bound = _greatest([one], lambda made, epsilon: dp_refuted(pick.size, *made, epsilon, delta, alpha))
        return bound, (one[1] - one[0] / 2) / one[0] ** 0.5

    tried = _ranked(scores[pick], truth[pick], places, sides, rng)
    best = max(range(len(places)), key=lambda at: worth(tried[at]))
    counted = _ranked(scores[keep], truth[keep], places, sides, rng)
    return [counted[best]], [made for made, _ in counted], keep.size, 1.0


def _ranked(scores: Array, truth: Array, places: Array, sides: Sides, rng: np.random.Generator) -> list[Guesses]:
    """Guess "in" for the k greatest scores, and with `both` "out" for the k least; equal scores in random order."""
    ordered = truth[np.argsort(_fair_ranks(scores, rng))]
    high, low = np.cumsum(ordered[::-1])[places - 1], np.cumsum(~ordered)[places - 1]
    if sides == "high":
        return list(zip(places.tolist(), high.tolist(), strict=True))
    return list(zip((2 * places).tolist(), (high + low).tolist(), strict=True))


def _greatest(guesses: list[Guesses], refuted: Callable[[Guesses, float], bool]) -> float:
    """The greatest epsilon that one of the tests refutes; 0 if none refutes anything."""
    best = 0.0
    for made in sorted(guesses, key=lambda one: -one[1] / max(one[0], 1) * one[0] ** 0.5):
        if not made[0] or not refuted(made, best):
            continue
        low, high = best, EPSILON_CAP
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(made, middle) else (low, middle)
        best = low
    return best
