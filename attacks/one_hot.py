"""Solving z = W x for rows x of numbers and one-hot groups, many rows at a time, also when x is wider than z.

Numbers are free; every group has exactly one 1. First a convex relaxation (shares of at least zero that sum to one,
by ADMM), rounded; rows that the rounded answer does not explain to the last digit are searched exactly by meeting in
the middle: all combinations of half of the groups are looked up among all combinations of the other half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array

TABLE = 20_000  # combinations of half of the groups that are listed
LOOKUPS = 4_000_000  # combinations looked up at a time (memory)
DEVIATIONS = 3.0  # root mean square residual, in deviations of the noise, up to which a row counts as explained
CHANCE = 1e-3  # expected number of wrong answers that would explain a row as well


@dataclass(frozen=True, eq=False)
class Solved:
    """Rows, and which of them the equations confirm: exact to the noise, where a wrong answer would not be."""

    values: Array
    explained: Array


def solve_rows(weights: Array, targets: Array, groups: Sequence[Array], noise: float, scale: float = 1.0) -> Solved:
    """Rows x with weights @ x = target up to noise. `groups` are positions of one-hot columns; numbers have `scale`.

    Numbers are the most likely ones under a normal prior, which only matters where equations are too few.
    """
    width = weights.shape[1]
    if not groups:
        values = _numbers(weights, targets, noise, scale)
        return Solved(values, explained(targets - values @ weights.T, width, 0.0, targets, noise))
    marks = np.concatenate(groups)
    numbers = np.setdiff1d(np.arange(width), marks)
    bits = float(sum(math.log2(len(group)) for group in groups))
    shares = _relaxed(weights, targets, groups, marks, numbers, noise, scale)
    codes = np.stack([shares[:, group].argmax(axis=1) for group in groups], axis=1)
    values, good = _completed(weights, targets, groups, codes, numbers, bits, noise, scale)
    if not good.all() and decisive(len(weights) - len(numbers), bits, targets, noise):
        left = np.flatnonzero(~good)
        met = _meet(weights, targets[left], groups, numbers, noise)
        if met is not None:
            values[left], good[left] = _completed(weights, targets[left], groups, met, numbers, bits, noise, scale)
    return Solved(np.where(good[:, None], values, shares), good)  # shares are a better guess than a wrong choice


def explained(residual: Array, unknown: int, bits: float, targets: Array, noise: float) -> Array:
    """Rows whose residual is noise although chance would not make it so: more equations than numbers, few choices."""
    spare = residual.shape[1] - unknown
    if not decisive(spare, bits, targets, noise):
        return np.zeros(len(residual), dtype=bool)
    return np.sqrt((residual**2).sum(axis=1) / spare) <= DEVIATIONS * noise


def decisive(spare: int, bits: float, targets: Array, noise: float) -> bool:
    """Whether so many spare equations tell the right one of 2^bits answers: hardly a wrong one fits to the noise."""
    spread = max(float(targets.std()), noise)
    return spare > 0 and bits + spare * math.log2(min(DEVIATIONS * noise / spread, 1.0)) < math.log2(CHANCE)


def _numbers(weights: Array, targets: Array, noise: float, scale: float) -> Array:
    """The most likely numbers: least squares with a normal prior, in the better conditioned of its two forms."""
    if weights.shape[1] == 0:
        return np.zeros((len(targets), 0))
    u, s, v = np.linalg.svd(weights, full_matrices=False)
    return (targets @ u) * (s / (s**2 + (noise / scale) ** 2)) @ v


def _completed(
    weights: Array,
    targets: Array,
    groups: Sequence[Array],
    codes: Array,
    numbers: Array,
    bits: float,
    noise: float,
    scale: float,
) -> tuple[Array, Array]:
    """Rows with these categories and the numbers that fit them best, and whether they are explained."""
    values = np.zeros((len(targets), weights.shape[1]))
    for group, code in zip(groups, codes.T, strict=True):
        values[np.arange(len(values)), group[code]] = 1.0
    values[:, numbers] = _numbers(weights[:, numbers], targets - values @ weights.T, noise, scale)
    return values, explained(targets - values @ weights.T, len(numbers), bits, targets, noise)


def _relaxed(
    weights: Array,
    targets: Array,
    groups: Sequence[Array],
    marks: Array,
    numbers: Array,
    noise: float,
    scale: float,
    steps: int = 300,
) -> Array:
    """Least squares over shares >= 0 that sum to one in each group: ADMM, factorised once.

    Numbers are drawn to zero, and shares to equal ones by as much as the noise makes likely.
    """
    width = weights.shape[1]
    sums = np.zeros((len(groups), width))
    for row, group in zip(sums, groups, strict=True):
        row[group] = 1.0
    gram = weights.T @ weights
    unit = float(np.trace(gram)) / width
    prior, centre = np.zeros(width), np.zeros(width)
    prior[numbers] = max(1e-3 * unit, noise**2) / scale**2
    for group in groups:
        prior[group], centre[group] = noise**2 * len(group), 1.0 / len(group)
    penalty = np.zeros(width)
    penalty[marks] = 0.02 * unit
    inverse = np.linalg.inv(gram + unit * sums.T @ sums + np.diag(prior + penalty))
    constant = targets @ weights + unit * sums.sum(axis=0) + prior * centre
    kept = np.zeros((len(targets), width))
    dual = np.zeros_like(kept)
    for _ in range(steps):
        moved = (constant + penalty * (kept - dual)) @ inverse
        kept = moved + dual
        kept[:, marks] = np.maximum(kept[:, marks], 0.0)
        dual += moved - kept
        dual[:, numbers] = 0.0
    kept[:, numbers] = moved[:, numbers]
    for group in groups:
        total = kept[:, group].sum(axis=1, keepdims=True)
        kept[:, group] = np.where(total > 0, kept[:, group] / np.where(total > 0, total, 1.0), 1.0 / len(group))
    return kept


def _halves(groups: Sequence[Array]) -> tuple[list[int], list[int]]:
    """The groups in two parts with about as many combinations each, the larger part second."""
    parts: tuple[list[int], list[int]] = ([], [])
    sizes = [1, 1]
    for place in sorted(range(len(groups)), key=lambda place: -len(groups[place])):
        smaller = int(sizes[1] < sizes[0])
        parts[smaller].append(place)
        sizes[smaller] *= len(groups[place])
    return parts if sizes[0] <= sizes[1] else (parts[1], parts[0])


def _combinations(groups: Sequence[Array], places: Sequence[int], images: Array) -> tuple[Array, Array]:
    """All choices of these groups, (count, groups), and the sum of their columns' images, (count, dimensions)."""
    sizes = [len(groups[place]) for place in places]
    codes = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes or (1,)), axis=1)[:, : len(sizes)]
    total = np.zeros((len(codes), len(images)))
    for place, code in zip(places, codes.T, strict=True):
        total += images[:, groups[place][code]].T
    return codes, total


def _meet(weights: Array, targets: Array, groups: Sequence[Array], numbers: Array, noise: float) -> Array | None:
    """The categories of each row by meeting in the middle, after projecting the numbers away; none if too many.

    Two half choices belong together if their images add up to the row's. Candidates are found by sorting along one
    direction, then compared along all of them. A row without any match keeps zeros, which its residual gives away.
    """
    first, second = _halves(groups)
    if max(math.prod(len(groups[p]) for p in part) for part in (first, second)) > TABLE:
        return None
    basis = np.linalg.qr(weights[:, numbers], mode="complete")[0][:, len(numbers) :]
    images, wanted = basis.T @ weights, targets @ basis
    codes, left = _combinations(groups, first, images)
    others, right = _combinations(groups, second, images)
    axis = int(right.std(axis=0).argmax())
    order = np.argsort(right[:, axis], kind="stable")
    right, others = right[order], others[order]
    reach = 2 * DEVIATIONS * noise
    best, found = np.full(len(targets), np.inf), np.zeros((len(targets), len(groups)), dtype=np.int64)
    step = max(1, LOOKUPS // len(left))
    for start in range(0, len(targets), step):
        part = wanted[start : start + step]
        along = part[:, None, axis] - left[None, :, axis]
        low = np.searchsorted(right[:, axis], along - reach)
        count = np.searchsorted(right[:, axis], along + reach) - low
        row, side = np.nonzero(count)
        low, count = low[row, side], count[row, side]
        while len(row):
            near = np.ones(len(row), dtype=bool)
            for other in range(min(right.shape[1], 4)):  # a few directions leave hardly any wrong pair
                gap = part[row[near], other] - left[side[near], other] - right[low[near], other]
                near[near] = np.abs(gap) <= reach
            gap = ((part[row[near]] - left[side[near]] - right[low[near]]) ** 2).sum(axis=1)
            for place in np.argsort(-gap, kind="stable"):  # the best comes last
                person, a, b = start + row[near][place], side[near][place], low[near][place]
                if gap[place] < best[person]:
                    best[person] = gap[place]
                    found[person, first], found[person, second] = codes[a], others[b]
            more = count > 1
            row, side, low, count = row[more], side[more], low[more] + 1, count[more] - 1
    return found
