"""What an audit says, and how it paid for choosing its test after seeing scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vflaudit.accounting.events import Neighbours, check_neighbours
from vflaudit.core.rates import alpha_of, finite
from vflaudit.errors import InputError

Kind = Literal["confidence", "parametric", "credible"]
Array = np.ndarray
LIMITED = 0.9  # a bound this close to its ceiling says more about the number of trials than about the mechanism


@dataclass(frozen=True)
class Split:
    """Choose the test on a random half of the trials, count on the other half only."""


@dataclass(frozen=True)
class Bonferroni:
    """Try so many tests that were fixed beforehand, each at its share of the error probability.

    Eight that are spread well prove more than halving the trials does: Gaussian scores lose little between two places.
    """

    tests: int = 8

    def __post_init__(self) -> None:
        if self.tests < 1:
            raise InputError(f"tests={self.tests}: expected at least 1")


@dataclass(frozen=True)
class Fixed:
    """One threshold, chosen before these scores were seen: scores above it are called "in"."""

    threshold: float


Correction = Split | Bonferroni | Fixed


@dataclass(frozen=True)
class Bound:
    """Epsilon is above `epsilon`, with `confidence`, for these neighbours.

    `ceiling` is the most that as many trials could show with this method: a bound near it is limited by the auditor.
    `kind` says what the confidence rests on: nothing but independent trials (`confidence`), also a Gaussian model
    (`parametric`), or a prior (`credible`).
    """

    epsilon: float
    ceiling: float
    delta: float
    confidence: float
    method: str
    kind: Kind
    neighbours: Neighbours
    correction: Correction | None
    trials_in: int
    trials_out: int

    @property
    def auditor_limited(self) -> bool:
        """Whether more trials would be the first thing to ask for."""
        return self.epsilon > LIMITED * self.ceiling

    def refutes(self, claimed: float, neighbours: Neighbours) -> bool:
        """Whether the claim of `claimed` epsilon at the same delta falls. Both must speak of the same neighbours."""
        check_neighbours(neighbours)
        if neighbours != self.neighbours:
            raise InputError(
                f"a bound for {self.neighbours} neighbours says nothing about a claim for {neighbours} neighbours: "
                "the same noise allows about twice as much under replace-one"
            )
        return self.epsilon > claimed

    def __str__(self) -> str:
        limit = ", auditor-limited" if self.auditor_limited else ""
        return (
            f"epsilon > {self.epsilon:.2f} at delta {self.delta:g} ({self.neighbours}; {self.method}, "
            f"{self.confidence:.0%} {self.kind}; at most {self.ceiling:.2f} from {self.trials_in} + {self.trials_out} "
            f"trials{limit})"
        )


def checked(
    scores_in: object, scores_out: object, delta: float, confidence: float, neighbours: str
) -> tuple[Array, Array]:
    """The scores as arrays, after checking everything that bounds have in common."""
    check_neighbours(neighbours)
    alpha_of(confidence)
    if not 0 <= delta < 1:
        raise InputError(f"delta is {delta!r}, expected a number from 0 up to but not including 1")
    inside = finite("scores_in", scores_in, 1, infinite=True)  # type: ignore[arg-type]
    outside = finite("scores_out", scores_out, 1, infinite=True)  # type: ignore[arg-type]
    if min(inside.size, outside.size) < 4:
        raise InputError("one kind has fewer than four trials, expected at least four with and four without")
    return inside, outside


def geometric(most: int, count: int) -> Array:
    """Whole numbers from 1 to `most`, about evenly in the logarithm, at most `count` of them."""
    return np.unique(np.round(np.geomspace(1, max(most, 1), count)).astype(np.int64))
