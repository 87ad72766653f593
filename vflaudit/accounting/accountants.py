"""Accountants: how much epsilon does an event cost at a delta, at most? One interface, five answers.

All of them interpret the same events, refuse what they do not know, and give upper bounds. `rdp-classic` is what
FedOnce and the first moments accountants print; the others are tighter on the same mechanism.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vflaudit.accounting.events import Gaussian, Neighbours, NonPrivate, SampledGaussian, leaves, relation
from vflaudit.accounting.gaussian import gaussian_epsilon
from vflaudit.accounting.validity import gaps
from vflaudit.errors import InputError, unknown

ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024])
Part = tuple[float, float, int]  # rate, sigma, releases


class OutOfRange(InputError):
    """The numbers are beyond what a numerical accountant can compute."""


def parts_of(event: object) -> tuple[Part, ...]:
    """Sampled releases by rate and sigma, equal ones added up.

    All unsampled releases together are one: k of deviation sigma are as private as one of sigma / sqrt(k) (Dong, Roth
    and Su 2022, corollary 3.3).
    """
    counts: Counter[tuple[float, float]] = Counter()
    precision = 0.0
    for leaf, times in leaves(event):
        if isinstance(leaf, SampledGaussian) and leaf.rate < 1:
            counts[leaf.rate, leaf.sigma] += leaf.steps * times
        elif isinstance(leaf, SampledGaussian | Gaussian):
            precision += times * (leaf.steps if isinstance(leaf, SampledGaussian) else 1) / leaf.sigma**2
    whole = ((1.0, precision**-0.5, 1),) if precision else ()
    return (*((rate, sigma, count) for (rate, sigma), count in counts.items()), *whole)


class Accountant(ABC):
    """Upper bounds on epsilon. Subclasses add up sampled Gaussian releases; everything else is decided here."""

    name: ClassVar[str]
    summary: ClassVar[str]
    replaces: ClassVar[bool] = False  # can it add up sampled releases for replace-one neighbours by itself?

    @abstractmethod
    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        """Epsilon of sampled Gaussian releases, at least one, for these neighbours (add-remove unless `replaces`)."""

    def problem(self, event: object) -> str | None:
        """Why this accountant cannot account for an event; None if it can."""
        for leaf, _ in leaves(event):
            if not isinstance(leaf, Gaussian | SampledGaussian | NonPrivate) and not gaps(leaf):
                return f"it does not know the event {type(leaf).__name__}"
        found = gaps(event)
        if found:
            return f"no theorem covers it ({'; '.join(map(str, found))}); see as_covered and as_claimed"
        try:
            relation(event)
        except InputError as error:
            return str(error)
        return None

    def supports(self, event: object) -> bool:
        """Whether `epsilon` will give a guarantee for this event."""
        return self.problem(event) is None

    def epsilon(self, event: object, delta: float) -> float:
        """At most so much epsilon at this delta; infinite if something is not private. Refuses unknown events."""
        if not 0 < delta < 1:
            raise InputError(f"delta={delta}: expected a number strictly between 0 and 1")
        problem = self.problem(event)
        if problem:
            raise InputError(f"accountant {self.name!r} cannot account for this: {problem}")
        if any(isinstance(leaf, NonPrivate) for leaf, _ in leaves(event)):
            return math.inf
        parts, neighbours = parts_of(event), relation(event)
        if not parts:
            return 0.0
        if neighbours == "replace-one" and not self.replaces:
            if all(rate == 1 for rate, _, _ in parts):  # the sum moves by two clips: from one person's to the other's
                parts, neighbours = tuple((rate, sigma / 2, count) for rate, sigma, count in parts), "add-remove"
            else:
                return _of_two_steps(lambda part: self._epsilon(parts, part, "add-remove"), delta)
        return max(0.0, self._epsilon(parts, delta, neighbours or "add-remove"))


def _of_two_steps(epsilon: Callable[[float], float], delta: float) -> float:
    """Replace is remove, then add: twice (e, d) gives (2e, (1 + exp(e)) d), by group privacy. The best d to take."""

    def enough(log_part: float) -> bool:
        return float(np.logaddexp(0.0, epsilon(math.exp(log_part)))) + log_part <= math.log(delta)

    high = math.log(delta / 2)
    low = high - 1
    while not enough(low):
        high, low = low, low - 2
        if low < math.log(delta) - 600:
            return math.inf
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return 2 * epsilon(math.exp(low))


@lru_cache(maxsize=4096)
def step_divergence(rate: float, sigma: float) -> NDArray[np.float64]:
    """Rényi divergence of one sampled release at every order (Mironov, Talwar and Zhang 2019; Opacus)."""
    from opacus.accountants.analysis.rdp import compute_rdp

    with np.errstate(all="ignore"):
        found = np.empty(len(ORDERS))
        for index, order in enumerate(ORDERS.tolist()):
            try:
                value = float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order))
            except (ArithmeticError, ValueError):  # far too little noise for this order
                value = math.inf
            found[index] = value if value >= 0 else math.inf  # also if it is not a number
    found.flags.writeable = False
    return found


def divergence(parts: tuple[Part, ...]) -> NDArray[np.float64]:
    """Rényi divergences add up (FedOnce, lemma 4)."""
    return np.asarray(sum(count * step_divergence(rate, sigma) for rate, sigma, count in parts))


class ClassicRDP(Accountant):
    """The moments accountant as papers print it: whole moments (FedOnce, lemma 1) and their tail bound (lemma 3)."""

    name = "rdp-classic"
    summary = "Rényi divergences of whole orders, classic conversion (Abadi et al. 2016): the paper's"

    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        epsilon = divergence(parts) + math.log(1 / delta) / (ORDERS - 1)
        return float(epsilon[ORDERS % 1 == 0].min())  # the moment lambda is the order lambda + 1


class RDP(Accountant):
    """Rényi divergences with the improved conversion."""

    name = "rdp"
    summary = "Rényi divergences, improved conversion (Balle et al. 2020)"

    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        shift = np.log((ORDERS - 1) / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        return float((divergence(parts) + shift).min())


class PRV(Accountant):
    """The distribution of the privacy loss, added up by Fourier transform (Gopi, Lee and Wutschitz 2021; Opacus).

    The error bound that is part of its answer is 0.01, or more where the grid would exceed `GRID` points.
    """

    name = "prv"
    summary = "distribution of the privacy loss, by Fourier transform (Gopi et al. 2021)"
    GRID: ClassVar[float] = 4e6
    LARGEST: ClassVar[float] = 300.0  # beyond it, exponentials of the loss leave the range of a double

    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        from opacus.accountants import PRVAccountant

        scale = RDP()._epsilon(parts, delta / 4000, neighbours) + 3
        steps = sum(count for _, _, count in parts)
        error = max(0.01, 2 * scale * math.sqrt(steps * math.log(12000 / delta) / 2) / self.GRID)
        if not scale < self.LARGEST or error > 0.5:
            raise OutOfRange(f"accountant {self.name!r}: epsilon or steps are beyond its range; use 'rdp'")
        opacus = PRVAccountant()
        opacus.history = [(sigma, rate, count) for rate, sigma, count in parts]
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about orders that only decide the width of its grid
                found = float(opacus.get_epsilon(delta, eps_error=error))
        except (RuntimeError, ValueError, ArithmeticError) as failure:
            raise OutOfRange(f"accountant {self.name!r} cannot compute this ({failure}); use 'rdp'") from None
        if math.isnan(found):
            raise OutOfRange(f"accountant {self.name!r} lost its precision here; use 'rdp'")
        return found


class PLD(Accountant):
    """The same distribution, rounded pessimistically on a grid (Doroshenko et al. 2022; dp-accounting)."""

    name = "pld"
    summary = "distribution of the privacy loss, pessimistic grid (Doroshenko et al. 2022); extra 'accounting'"
    replaces = True
    GRID: ClassVar[float] = 2e5
    LARGEST: ClassVar[float] = 5000.0

    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        return float(_pld(parts, neighbours, self._interval(parts, delta, neighbours)).get_epsilon_for_delta(delta))

    def _interval(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        """Width of the grid: 1e-4, doubled until the points are not too many; so grids are shared."""
        scale = RDP()._epsilon(parts, delta, neighbours) * (4 if neighbours == "replace-one" else 1)
        if not scale < self.LARGEST:
            raise OutOfRange(f"accountant {self.name!r}: epsilon is beyond its range; use 'rdp'")
        return float(1e-4 * 2 ** max(0, math.ceil(math.log2(max(scale, 1e-9) / self.GRID / 1e-4))))


@lru_cache(maxsize=64)
def _pld(parts: tuple[Part, ...], neighbours: Neighbours, interval: float):  # type: ignore[no-untyped-def]
    try:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution as library
    except ImportError:
        raise InputError("accountant 'pld' needs dp-accounting: pip install 'vflaudit[accounting]'") from None
    relations = {"add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
    total = library.identity(value_discretization_interval=interval)
    for rate, sigma, count in parts:
        one = library.from_gaussian_mechanism(
            sigma,
            value_discretization_interval=interval,
            sampling_prob=rate,
            neighboring_relation=relations[neighbours],
        )
        total = total.compose(one.self_compose(count))
    return total


class Exact(Accountant):
    """Closed form (Balle and Wang 2018): exact, but for unsampled releases only."""

    name = "exact"
    summary = "closed form of the Gaussian mechanism (Balle and Wang 2018), where nothing is sampled"

    def problem(self, event: object) -> str | None:
        if any(isinstance(leaf, SampledGaussian) and leaf.rate < 1 for leaf, _ in leaves(event)):
            return "there is no closed form for sampled batches"
        return super().problem(event)

    def _epsilon(self, parts: tuple[Part, ...], delta: float, neighbours: Neighbours) -> float:
        ((_, sigma, _),) = parts
        return gaussian_epsilon(sigma, 1.0, delta)


ACCOUNTANTS: dict[str, type[Accountant]] = {kind.name: kind for kind in (ClassicRDP, RDP, PRV, PLD, Exact)}


def accountant(name: str) -> Accountant:
    """The accountant of this name."""
    if name not in ACCOUNTANTS:
        raise unknown("accountant", name, ACCOUNTANTS)
    return ACCOUNTANTS[name]()


def available() -> tuple[str, ...]:
    """Accountants of sampled releases that are installed here, the paper's first."""
    from importlib.util import find_spec

    return tuple(name for name in ("rdp-classic", "rdp", "prv", "pld") if name != "pld" or find_spec("dp_accounting"))
