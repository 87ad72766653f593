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
