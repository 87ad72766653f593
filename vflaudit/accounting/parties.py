"""Differential privacy of k parties that each train on the same people (FedOnce 4.1): what do they spend together?

`simple` gives each of the k parties delta/k and adds up the k epsilons; `moments` adds up what the accountant adds up
(Rényi divergences, distributions of the privacy loss) and converts once, with the whole delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from vflaudit.accounting.accountants import OutOfRange, available
from vflaudit.accounting.accountants import accountant as accountant_named
from vflaudit.accounting.events import Composed, Event, Repeated, SampledGaussian, relation
from vflaudit.accounting.validity import as_covered
from vflaudit.errors import InputError, unknown

MOST_PARTIES = 100_000
FEW = 8  # how many counts are worth a numerical accountant, or a line on the screen
FAST = ("rdp-classic", "rdp")
Division = Literal["simple", "moments"]
DELTA_SPLIT = "simple: each of k parties gets delta/k, the epsilons add up; moments: one conversion at delta"


@dataclass(frozen=True)
class Training:
    """One party's DP-SGD in a paper's words; `event()` is what accountants read."""

    people: int
    batch: int
    epochs: float
    sigma: float

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.people:
            raise InputError(f"batch={self.batch}: expected 1 to n={self.people}")
        if not (self.epochs > 0 and self.sigma > 0):
            raise InputError(f"epochs={self.epochs}, sigma={self.sigma}: expected numbers above 0")

    def event(self, scheme: str = "poisson", **conditions: object) -> SampledGaussian:
        """The training as an event; `conditions` are its other fields (neighbours, sensitivity, hidden_state).

        Shuffled epochs have whole numbers of batches, and a person is in one of them.
        """
        batches = self.people / self.batch if scheme == "poisson" else math.ceil(self.people / self.batch)
        values: dict[str, Any] = {"scheme": scheme, **conditions}
        return SampledGaussian(1 / batches, self.sigma, math.ceil(self.epochs * batches), **values)


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
        return 1 - self.moments / self.simple if self.simple else 0.0


def divide(events: Sequence[Event], delta: float, accountant: str = "rdp", division: Division = "moments") -> float:
    """Total epsilon of parties that did these events to the same people, one event per party."""
    if division not in get_args(Division):
        raise unknown("division", division, get_args(Division))
    judge = accountant_named(accountant)
    if division == "moments":
        return judge.epsilon(Composed(events), delta)
    return sum(judge.epsilon(event, delta / len(events)) for event in events)


def few(counts: Sequence[int]) -> list[int]:
    """First, last and some counts between, evenly in the logarithm."""
    if len(counts) <= FEW:
        return list(counts)
    ordered = sorted(counts)
    ideal = [ordered[0] * (ordered[-1] / ordered[0]) ** (step / (FEW - 1)) for step in range(FEW)]
    return sorted({min(ordered, key=lambda count: abs(count - at)) for at in ideal})


def account(event: Event, delta: float, parties: Sequence[int], accountants: Iterable[str] | None = None) -> list[Row]:
    """The table: epsilon of k parties that each do `event`, by simple division and by moments.

    The numerical accountants (prv, pld) take a second for a large k: of many counts they do the `few`. If no
    accountants are named, all that are installed answer, as far as their range goes (without prv for replace-one,
    where group privacy would ask it dozens of times).
    """
    rows = []
    slow = {"prv"} if relation(event) == "replace-one" else set()
    for name in (name for name in available() if name not in slow) if accountants is None else accountants:
        judge = accountant_named(name)
        for count in parties if name in FAST else few(parties):
            try:
                simple = count * judge.epsilon(event, delta / count)
                rows.append(Row(count, name, simple, judge.epsilon(Repeated(event, count), delta)))
            except OutOfRange:
                if accountants is not None:
                    raise
    return rows


def calibrate(
    events: Sequence[SampledGaussian],
    epsilon: float,
    delta: float,
    *,
    accountant: str = "rdp",
    division: Division = "moments",
) -> tuple[float, ...]:
    """The smallest sigmas (to 0.1%), one per party, that keep all parties together within epsilon.

    Parties may differ in rate and steps. By moments all get the same sigma; by simple division each gets epsilon/k and
    delta/k and so a sigma of its own (the paper's Priv-Baseline). The events' own sigmas do not matter. What no theorem
    covers is paid for with more noise; give `as_claimed(event)` to calibrate as a paper does that overlooks it.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"epsilon={epsilon}: expected a finite number above 0")
    if not events:
        raise InputError("there are no parties, expected at least one event")
    if division == "simple":
        share, part = epsilon / len(events), delta / len(events)
        found = {event: _least_sigma([event], share, part, accountant) for event in set(events)}
        return tuple(found[event] for event in events)
    return (_least_sigma(events, epsilon, delta, accountant),) * len(events)


def _least_sigma(events: Sequence[SampledGaussian], epsilon: float, delta: float, accountant: str) -> float:
    """Bisection between a sigma that is too small and one that is enough."""
    first, last = 0.05, 1e5

    def enough(sigma: float) -> bool:
        return divide([as_covered(replace(event, sigma=sigma)) for event in events], delta, accountant) <= epsilon

    high = 1.0
    while not enough(high):
        high *= 2
        if high > last:
            raise InputError(f"no sigma below {last:g} reaches epsilon={epsilon} with {len(events)} parties")
    low = high / 2
    while low > first and enough(low):
        high, low = low, low / 2
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
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
