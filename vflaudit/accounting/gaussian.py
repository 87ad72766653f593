"""The Gaussian mechanism, exactly: how private is this noise, how much noise for this privacy."""

from __future__ import annotations

import numpy as np


def gaussian_delta(deviation: float, sensitivity: float, epsilon: float) -> float:
    """The exact delta of the Gaussian mechanism (Balle and Wang 2018, theorem 8)."""
    from scipy.special import log_ndtr

    half, rest = sensitivity / (2 * deviation), epsilon * deviation / sensitivity
    first, second = float(log_ndtr(half - rest)), epsilon + float(log_ndtr(-half - rest))
    return float(np.exp(first) * -np.expm1(min(second - first, 0.0)))


def gaussian_deviation(sensitivity: float, epsilon: float, delta: float) -> float:
    """The least deviation with (epsilon, delta): the analytic calibration of Balle and Wang (2018), by root finding."""
    from scipy.optimize import brentq

    def excess(log_deviation: float) -> float:
        return gaussian_delta(float(np.exp(log_deviation)) * sensitivity, sensitivity, epsilon) - delta

    root = brentq(excess, np.log(1e-6), np.log(1e12), xtol=1e-12)
    return float(np.exp(root + 1e-11)) * sensitivity  # a hair above: never less private than asked for


def gaussian_epsilon(deviation: float, sensitivity: float, delta: float) -> float:
    """The least epsilon that the Gaussian mechanism has at this delta, from the same exact formula."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return gaussian_delta(deviation, sensitivity, epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    ratio = sensitivity / deviation
    high = ratio**2 / 2 + ratio * np.sqrt(2 * np.log(1 / delta))  # zero-concentrated privacy: always enough
    return float(brentq(excess, 0.0, high, xtol=1e-12 * max(high, 1.0)))
