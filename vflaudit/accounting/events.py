"""What a party does with its people's data, as immutable records; accountants interpret them.

Every noisy event says which neighbours it hides (`add-remove`: one person more or less; `replace-one`: one person
swapped for another) and how batches were drawn. `sigma` is the noise's deviation in clips. `sensitivity` is the most
that one person's presence changes the sum that is released, in clips: 1 if every person's own gradient is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from vflaudit.errors import InputError, unknown

Neighbours = Literal["add-remove", "replace-one"]
Scheme = Literal["poisson", "shuffled"]


def check_neighbours(name: str) -> None:
    """Refuse a neighbouring relation that does not exist."""
    if name not in get_args(Neighbours):
        raise unknown("neighbouring relation", name, get_args(Neighbours))


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name}={value}: expected a finite number above 0")


@dataclass(frozen=True)
class Gaussian:
    """One sum over everybody, released with Gaussian noise."""

    sigma: float
    neighbours: Neighbours = "add-remove"
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _positive(sigma=self.sigma, sensitivity=self.sensitivity)
        check_neighbours(self.neighbours)

    def __str__(self) -> str:
        return f"Gaussian noise {self.sigma:g} ({self.neighbours}, sensitivity {self.sensitivity:g})"


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD: `steps` sums over batches, a person being in a batch with probability `rate`, each with Gaussian noise.

    `hidden_state` names what a step takes over from earlier ones besides the released values and was computed from
    people's data without noise, such as targets that were reassigned within earlier batches.
    """

    rate: float
    sigma: float
    steps: int = 1
    scheme: Scheme = "poisson"
    neighbours: Neighbours = "add-remove"
    sensitivity: float = 1.0
    hidden_state: str | None = None

    def __post_init__(self) -> None:
        _positive(sigma=self.sigma, sensitivity=self.sensitivity)
        if not 0 < self.rate <= 1:
            raise InputError(f"rate={self.rate}: expected a probability above 0 and up to 1")
        if self.steps < 0 or int(self.steps) != self.steps:
            raise InputError(f"steps={self.steps}: expected a whole number from 0")
        if self.scheme not in get_args(Scheme):
            raise unknown("sampling scheme", self.scheme, get_args(Scheme))
        check_neighbours(self.neighbours)

    def __str__(self) -> str:
        hidden = f", hidden state: {self.hidden_state}" if self.hidden_state else ""
        return (
            f"{self.steps} steps of Gaussian noise {self.sigma:g} on {self.scheme} batches of rate {self.rate:.4g} "
            f"({self.neighbours}, sensitivity {self.sensitivity:g}{hidden})"
        )


@dataclass(frozen=True)
class NonPrivate:
    """Something computed from people's data and released without noise."""

    reason: str = "released as it is"

    def __str__(self) -> str:
        return f"not private: {self.reason}"


@dataclass(frozen=True)
class Fitted:
    """Preprocessing whose parameters were fitted on the private data, such as means and deviations."""

    what: str = "standardisation"

    def __str__(self) -> str:
        return f"{self.what} fitted on private data"


@dataclass(frozen=True)
class Repeated:
    """The same event several times."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        if self.count < 0 or int(self.count) != self.count:
            raise InputError(f"count={self.count}: expected a whole number from 0")

    def __str__(self) -> str:
        return f"{self.count} times [{self.event}]"


@dataclass(frozen=True)
class Composed:
    """Events one after another, each free to depend on what the earlier ones released. None at all is private."""

    events: tuple[Event, ...] = ()

    def __init__(self, events: Iterable[Event] = ()) -> None:
        object.__setattr__(self, "events", tuple(events))

    def __str__(self) -> str:
        return "; ".join(map(str, self.events)) or "nothing"


Event = Gaussian | SampledGaussian | NonPrivate | Fitted | Repeated | Composed


def leaves(event: object, times: int = 1) -> Iterator[tuple[object, int]]:
    """The events that are not made of others, and how often each happens. An unknown event is its own leaf."""
    if isinstance(event, Repeated):
        yield from leaves(event.event, times * event.count)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from leaves(part, times)
    elif isinstance(event, SampledGaussian):
        if event.steps * times:
            yield event, times
    elif times:
        yield event, times


def relation(event: object) -> Neighbours | None:
    """The one neighbouring relation of all noisy events; None if there are none. Two relations do not compose."""
    found = {leaf.neighbours for leaf, _ in leaves(event) if isinstance(leaf, Gaussian | SampledGaussian)}
    if len(found) > 1:
        raise InputError("events about add-remove and about replace-one neighbours cannot be added up")
    return found.pop() if found else None
