"""Differential privacy of k parties that each run DP-SGD on the same people (FedOnce 4.3): what do they spend together?

Every party releases T steps of the Poisson-subsampled Gaussian mechanism (add/remove neighbours). `simple` gives each
party delta/k and adds up the k epsilons; `moments` adds up Rényi divergences and converts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vflaudit.errors import InputError, unknown

ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024])
MOST_PARTIES = 100_000
ACCOUNTANTS = ("rdp-classic", "rdp")
NEIGHBOURS = "add/remove of one person, Poisson-sampled batches"


@dataclass(frozen=True)
class Training:
    """One party's DP-SGD."""

    people: int
    batch: int
    epochs: float
    sigma: float
    delta: float

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.people:
            raise InputError(f"batch={self.batch}: expected 1 to n={self.people}")
        if not (self.epochs > 0 and self.sigma > 0 and 0 < self.delta < 1):
            raise InputError(
                f"epochs={self.epochs}, sigma={self.sigma}, delta={self.delta}: "
                "expected epochs and sigma above 0 and delta in 0..1"
            )

    @property
    def rate(self) -> float:
        """Probability that a person is in a batch."""
        return self.batch / self.people

    @property
    def steps(self) -> int:
        """Gradient steps."""
        return math.ceil(self.epochs * self.people / self.batch)


@dataclass(frozen=True)
class Row:
    """Total epsilon of k parties, both ways."""

    parties: int
    accountant: str
    simple: float
    moments: float

    @property
    def reduction(self) -> float:
        """Share of epsilon that joint accounting saves."""
        return 1 - self.moments / self.simple


def _convert(divergence: np.ndarray, delta: float, accountant: str) -> float:
    """From Rényi divergences to epsilon: classic (Mironov 2017) or improved (Balle et al. 2020)."""
    if accountant == "rdp-classic":
        epsilon = divergence + math.log(1 / delta) / (ORDERS - 1)
    else:
        epsilon = divergence - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1) + np.log((ORDERS - 1) / ORDERS)
    return max(0.0, float(epsilon.min()))


def _divergence(training: Training) -> np.ndarray:
    """Rényi divergence of one party's whole training at every order (Opacus)."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return np.asarray(
        compute_rdp(q=training.rate, noise_multiplier=training.sigma, steps=training.steps, orders=ORDERS.tolist())
    )


def account(training: Training, parties: Sequence[int], accountants: Sequence[str] = ACCOUNTANTS) -> list[Row]:
    """The table: epsilon of k parties by simple division and by moments."""
    for name in accountants:
        if name not in ACCOUNTANTS:
            raise unknown("accountant", name, ACCOUNTANTS)
    divergence = _divergence(training)
    return [
        Row(
            parties=count,
            accountant=name,
            simple=count * _convert(divergence, training.delta / count, name),
            moments=_convert(count * divergence, training.delta, name),
        )
        for name in accountants
        for count in parties
    ]


def calibrate(training: Training, parties: int, epsilon: float, accountant: str = "rdp") -> float:
    """The smallest sigma (to 0.1%) with which k parties together stay within epsilon, by moments."""
    if not epsilon > 0:
        raise InputError(f"epsilon={epsilon}: expected a number above 0")

    def spent(sigma: float) -> float:
        return account(replace(training, sigma=sigma), [parties], [accountant])[0].moments

    low, high = 0.3, 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e5:
            raise InputError(f"no sigma below {high:.0f} reaches epsilon={epsilon} with {parties} parties")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def parse_parties(text: str) -> list[int]:
    """`4`, `1:100` (every count) or `1,2,8`."""
    try:
        if ":" in text:
            first, last = (int(part) for part in text.split(":"))
            counts = list(range(first, min(last, MOST_PARTIES + 1) + 1))
        else:
            counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"parties {text!r}: expected a number, a range as 1:100, or a list as 1,2,8") from None
    if not counts or min(counts) < 1 or max(counts) > MOST_PARTIES:
        raise InputError(f"parties {text!r}: expected counts from 1 to {MOST_PARTIES}, first before last")
    return counts
