"""Does a theorem cover this event? Typed answers, and two readings: as it was claimed, and as it is covered.

The moments accountant (Abadi et al. 2016; FedOnce 4.1, lemma 1 and theorem 4) speaks of Poisson-sampled batches, of a
sum that one person changes by at most the clip, and of steps that depend on the data and on released values only.
Accountants refuse an event with a gap; whoever accounts for it chooses a reading in the open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from vflaudit.accounting.events import Composed, Event, Fitted, Gaussian, NonPrivate, Repeated, SampledGaussian, leaves


class GapKind(StrEnum):
    """What a theorem about sampled Gaussian noise does not cover."""

    SHUFFLED = "shuffled-as-poisson"
    SENSITIVITY = "sensitivity-above-clip"
    HIDDEN_STATE = "hidden-state"
    FITTED = "fitted-preprocessing"


@dataclass(frozen=True)
class Gap:
    """One way in which an event is not what the theorem is about."""

    kind: GapKind
    says: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.says}"


def gaps(event: object) -> tuple[Gap, ...]:
    """Every gap of an event, each once."""
    found: dict[Gap, None] = {}
    for leaf, _ in leaves(event):
        if isinstance(leaf, Fitted):
            found[Gap(GapKind.FITTED, f"{leaf} was released without noise")] = None
        if isinstance(leaf, Gaussian | SampledGaussian) and leaf.sensitivity > 1:
            says = f"one person changes the sum by {leaf.sensitivity:g} clips, not by 1"
            found[Gap(GapKind.SENSITIVITY, says)] = None
        if isinstance(leaf, SampledGaussian) and leaf.hidden_state:
            says = f"{leaf.hidden_state}: one person also changes batches that do not hold that person"
            found[Gap(GapKind.HIDDEN_STATE, says)] = None
        if isinstance(leaf, SampledGaussian) and leaf.scheme == "shuffled" and leaf.rate < 1:
            says = "amplification by sampling is proved for Poisson batches, not for shuffled ones"
            found[Gap(GapKind.SHUFFLED, says)] = None
    return tuple(found)


def as_claimed(event: Event) -> Event:
    """The event with its gaps ignored: what a paper that overlooks them accounts for. No guarantee follows from it."""
    match event:
        case Repeated():
            return Repeated(as_claimed(event.event), event.count)
        case Composed():
            return Composed(as_claimed(part) for part in event.events if not isinstance(part, Fitted))
        case Fitted():
            return Composed()
        case Gaussian():
            return replace(event, sensitivity=1.0)
        case SampledGaussian():
            return replace(event, sensitivity=1.0, scheme="poisson", hidden_state=None)
    return event


def as_covered(event: Event) -> Event:
    """The least private event without gaps that covers this one: its epsilon is a guarantee.

    - a larger sensitivity divides sigma;
    - shuffled batches hold a person once per epoch, so an epoch counts as one unsampled release (n is public, and
      under add-remove a missing person leaves an empty place in its batch);
    - with hidden state every batch may differ, so every step counts as an unsampled release;
    - fitted preprocessing is not private.
    """
    match event:
        case Repeated():
            return Repeated(as_covered(event.event), event.count)
        case Composed():
            return Composed(as_covered(part) for part in event.events)
        case Fitted():
            return NonPrivate(str(event))
        case Gaussian():
            return replace(event, sigma=event.sigma / max(event.sensitivity, 1.0), sensitivity=1.0)
        case SampledGaussian():
            sigma = event.sigma / max(event.sensitivity, 1.0)
            once = Gaussian(sigma, event.neighbours)
            if event.hidden_state:
                return Repeated(once, event.steps)
            if event.scheme == "shuffled":
                return Repeated(once, math.ceil(event.steps * event.rate - 1e-9))
            return replace(event, sigma=sigma, sensitivity=1.0)
    return event
