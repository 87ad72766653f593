"""Which unnamed component is which column, and with which sign: from known people, or from others of the population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from attacks.mask_columns import known_pairs
from vflaudit.core.dataset import Array
from vflaudit.core.view import View

LEVELS = (np.arange(50) + 0.5) / 50
NOISE = 0.1  # variance that a component may leave of its column, when known people are compared
SIGNS = np.array([1.0, -1.0])


@dataclass(frozen=True, eq=False)
class Match:
    """For each column the component (-1: none is left) and its sign."""

    component: Array
    sign: Array

    def columns(self, components: Array) -> Array:
        """Components in the columns' order, zero where there is none."""
        return np.where(self.component >= 0, components[:, self.component] * self.sign, 0.0)


def centre_and_spread(view: View, party: str) -> tuple[Array, Array]:
    """Mean and deviation of each column: public where it was standardised, else of the people that are known."""
    people = [rows.features[party] for rows in (view.knowledge.distribution, view.knowledge.samples) if rows]
    joined = np.vstack(people)
    mean, spread = joined.mean(axis=0), joined.std(axis=0)
    if view.spec.standardised:
        numeric = np.array([column.kind == "numeric" for column in view.spec.columns[party]])
        mean, spread = np.where(numeric, 0.0, mean), np.where(numeric, 1.0, spread)
    return mean, spread


def from_pairs(view: View, party: str, rows: Array, components: Array) -> Array:
    """Minus the log-likelihood of each (component, column, sign) by known people: zero without any."""
    at, truth = known_pairs(view, party, rows)
    mean, spread = centre_and_spread(view, party)
    wanted = (truth - mean) / np.maximum(spread, 1e-12)
    gaps = components[at][:, :, None, None] * SIGNS - wanted[:, None, :, None]
    return (gaps**2).sum(axis=0) / (2 * NOISE)


def from_shapes(people: Array, components: Array) -> Array:
    """The same by the distance between quantiles; `people` are columns of zero mean and unit deviation."""
    wanted = np.quantile(people, LEVELS, axis=0)
    seen = np.stack([np.quantile(components * sign, LEVELS, axis=0) for sign in SIGNS], axis=-1)
    return len(people) / 2 * ((seen[:, :, None, :] - wanted[:, None, :, None]) ** 2).mean(axis=0)


def match(cost: Array, seen: Array | None, wanted: Array | None, people: int) -> Match:
    """The cheapest assignment; with correlations of components (`seen`) and columns (`wanted`), the cheapest of both.

    The second is a quadratic assignment: from the best assignment without correlations, columns change their signs and
    swap their components as long as that is cheaper.
    """
    rows, columns = linear_sum_assignment(cost.min(axis=2))
    component = np.full(cost.shape[1], -1)
    component[columns] = rows
    sign = np.where(component >= 0, SIGNS[cost[component, np.arange(len(component))].argmin(axis=1)], 1.0)
    if seen is None or wanted is None:
        return Match(component, sign)

    def price(component: Array, sign: Array) -> float:
        there = np.flatnonzero(component >= 0)
        used, turn = component[there], sign[there]
        gap = seen[np.ix_(used, used)] * np.outer(turn, turn) - wanted[np.ix_(there, there)]
        return float(cost[used, there, (turn < 0).astype(int)].sum() + people / 4 * (gap**2).sum())

    return Match(*_descend(component, sign, price))


def _descend(component: Array, sign: Array, price: Callable[[Array, Array], float]) -> tuple[Array, Array]:
    """Swap and turn, taking whatever is cheaper, until nothing is."""
    width, best, better = len(component), price(component, sign), True
    while better:
        better = False
        for first in range(width):
            for second in range(first, width):
                for turns in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
                    tried, turned = component.copy(), sign.copy()
                    tried[[first, second]] = component[[second, first]]
                    turned[[first, second]] = sign[[second, first]] * np.array(turns)
                    cost = price(tried, turned)
                    if cost < best - 1e-9:
                        component, sign, best, better = tried, turned, cost, True
    return component, sign


def named(view: View, party: str, rows: Array, components: Array, rng: np.random.Generator, resamples: int) -> Array:
    """The columns: components (of zero mean and unit deviation) put in order, turned, and in the columns' unit.

    With people of the population, the mean over matches with resampled people: what is undecided is drawn to the mean.
    """
    mean, spread = centre_and_spread(view, party)
    told, pool = from_pairs(view, party, rows, components), view.knowledge.distribution
    if not components.shape[1]:
        return np.tile(mean, (len(rows), 1))
    if pool is None:
        return mean + spread * match(told, None, None, 0).columns(components)
    people = pool.features[party]
    people = (people - people.mean(axis=0)) / np.maximum(people.std(axis=0), 1e-12)
    seen, total = np.atleast_2d(np.corrcoef(components.T)), np.zeros((len(rows), len(mean)))
    for _ in range(resamples):
        some = people[rng.integers(len(people), size=len(people))]
        cost = told + from_shapes(some, components)
        wanted = np.nan_to_num(np.atleast_2d(np.cov(some.T)))
        total += match(cost, seen, wanted, len(people)).columns(components)
    return mean + spread * total / resamples
