"""What differential privacy allows an attack: the most members it can find at a rate of false alarms."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflaudit.errors import InputError


def one_sided(epsilon: ArrayLike, delta: float, fpr: float) -> NDArray[np.float64]:
    """e^epsilon FPR + delta: the inequality of differential privacy as it is written, which may exceed 1."""
    budget = _checked(epsilon, delta, fpr)
    with np.errstate(over="ignore"):
        return np.exp(budget) * fpr + delta if fpr else np.full(budget.shape, delta)


def most_found(epsilon: ArrayLike, delta: float, fpr: float) -> NDArray[np.float64]:
    """The greatest true positive rate that (epsilon, delta)-differential privacy allows at a false positive rate.

    min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR)): the second part is the same inequality about those
    whom the test calls non-members (Kairouz, Oh and Viswanath, ICML 2015). An infinite epsilon allows everything.
    """
    budget = _checked(epsilon, delta, fpr)
    other = 1 - np.exp(-budget) * max(1 - delta - fpr, 0.0)
    return np.where(np.isinf(budget), 1.0, np.minimum(one_sided(budget, delta, fpr), other))


def _checked(epsilon: ArrayLike, delta: float, fpr: float) -> NDArray[np.float64]:
    budget = np.asarray(epsilon, dtype=np.float64)
    if not (budget >= 0).all():
        raise InputError(f"epsilon is {epsilon!r}, expected numbers from 0 up")
    for name, value in (("delta", delta), ("the false positive rate", fpr)):
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value!r}, expected a number from 0 to 1")
    return budget
