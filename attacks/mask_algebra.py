"""Solving z = b_t + sum_j k_ij x_ij a_tj for the rows x, where which cells are kept (k) is known in every step t.

The maps a_t, b_t may differ from step to step. For given rows every map is a small least-squares problem, for given
maps every row is one: alternating between them is exact in the end. A column is determined up to a factor, and its zero
is determined too, because a masked cell is a zero. Rows that only ever stand in the same steps share one factor; steps
without masks that all rows stand in tell the factors of different blocks of rows from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vflaudit.core.dataset import Array

RIDGE = 1e-9  # of a problem's own size: enough for cells that are never kept, too little to be seen elsewhere
ROUND = 20  # iterations between two attempts at linking
EXACT = 1e-12  # share of the variance left over at which equations in float32 hold


@dataclass(frozen=True, eq=False)
class Step:
    """One message: rows, which of their cells were kept (ones and zeros), and the numbers sent."""

    rows: Array
    kept: Array
    sent: Array


@dataclass(frozen=True, eq=False)
class Found:
    """Rows up to a factor per column, and the share of the messages' variance that they leave unexplained."""

    rows: Array
    values: Array
    residual: float
    iterations: int


def blocks_of(steps: Sequence[Step], count: int) -> Array:
    """A number for each row: the same for rows that are linked through steps that both stand in; -1 without a step."""
    rows = np.concatenate([step.rows for step in steps])
    owner = np.repeat(np.arange(len(steps)), [len(step.rows) for step in steps])
    size = count + len(steps)
    graph = coo_array((np.ones(len(rows)), (rows, count + owner)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1][:count]
    return np.where(np.isin(np.arange(count), rows), labels, -1)


def _solve(matrices: Array, targets: Array) -> Array:
    """Regularised solutions of many small symmetric systems."""
    size = np.trace(matrices, axis1=-2, axis2=-1)[..., None, None] / matrices.shape[-1]
    return np.linalg.solve(matrices + (RIDGE * size + 1e-30) * np.eye(matrices.shape[-1]), targets)


def start(steps: Sequence[Step], count: int) -> Array:
    """As if the map never changed: regress each row's messages on its masks; for each column that is a rank-one table.

    Needs about as many steps per row as columns; fewer give a poorer start.
    """
    width, outputs = steps[0].kept.shape[1], steps[0].sent.shape[1]
    matrices, targets = np.zeros((count, width + 1, width + 1)), np.zeros((count, width + 1, outputs))
    for step in steps:
        design = np.hstack([step.kept, np.ones((len(step.rows), 1))])
        matrices[step.rows] += design[:, :, None] * design[:, None, :]
        targets[step.rows] += design[:, :, None] * step.sent[:, None, :]
    products = np.linalg.solve(matrices + 1e-3 * np.eye(width + 1), targets)[:, :width]
    values = np.zeros((count, width))
    for column in range(width):
        left, sizes, _ = np.linalg.svd(products[:, column], full_matrices=False)
        values[:, column] = left[:, 0] * sizes[0]
    return values / np.maximum(np.sqrt((values**2).mean(axis=0)), 1e-300)


def fit_map(step: Step, values: Array) -> tuple[Array, float]:
    """The least-squares map of one step (the constant last), and the squared residual."""
    design = np.hstack([step.kept * values[step.rows], np.ones((len(step.rows), 1))])
    found = _solve(design.T @ design, design.T @ step.sent)
    return found, float(((step.sent - design @ found) ** 2).sum())


def fit_rows(steps: Sequence[Step], maps: Sequence[Array], count: int) -> Array:
    """The least-squares rows for given maps."""
    width = steps[0].kept.shape[1]
    matrices, targets = np.zeros((count, width, width)), np.zeros((count, width))
    for step, found in zip(steps, maps, strict=True):
        slopes = found[:width]
        matrices[step.rows] += step.kept[:, :, None] * step.kept[:, None, :] * (slopes @ slopes.T)
        targets[step.rows] += step.kept * ((step.sent - found[width]) @ slopes.T)
    return _solve(matrices, targets[..., None])[..., 0]


def alternate(steps: Sequence[Step], values: Array, iterations: int) -> tuple[Array, float, int]:
    """Rows and maps in turn, until the equations hold or nothing improves; also the residual and the iterations."""
    total = sum(float(((step.sent - step.sent.mean(axis=0)) ** 2).sum()) for step in steps) or 1.0
    previous = np.inf
    for done in range(iterations):
        fitted = [fit_map(step, values) for step in steps]
        residual = sum(error for _, error in fitted) / total
        if residual < EXACT or residual > previous * (1 - 1e-4):
            return values, residual, done
        values, previous = fit_rows(steps, [found for found, _ in fitted], len(values)), residual
    return values, previous, iterations


def link(steps: Sequence[Step], whole: Step, values: Array) -> Array:
    """One factor per column for all blocks of rows, by a step without masks that has all of them.

    Within a block the map of that step is found up to the block's own factors, so for each column the maps of all
    blocks are multiples of one vector, and the multiples are the factors.
    """
    width, block = values.shape[1], blocks_of(steps, len(values))
    usable = whole.rows[block[whole.rows] >= 0]
    names, sizes = np.unique(block[usable], return_counts=True)
    names = names[sizes > width + 1]
    if len(names) < 2:
        return values
    place = {int(row): at for at, row in enumerate(whole.rows)}
    maps = []
    for name in names:
        rows = usable[block[usable] == name]
        at = np.array([place[int(row)] for row in rows])
        maps.append(fit_map(Step(rows, whole.kept[at], whole.sent[at]), values)[0][:width])
    joined, linked = np.stack(maps), values.copy()  # (blocks, columns, numbers sent)
    for column in range(width):
        left, scale, _ = np.linalg.svd(joined[:, column], full_matrices=False)
        for name, factor in zip(names, left[:, 0] * scale[0], strict=True):
            linked[block == name, column] *= factor
    return linked / np.maximum(np.sqrt((linked**2).mean(axis=0)), 1e-300)


def spanned(steps: Sequence[Step], whole: Step, values: Array, iterations: int = 15) -> Array:
    """A better start, where a step without masks sends as many numbers as there are columns.

    Every column is then an affine function of what that step sent, the same for all rows: a few numbers instead of one
    per row. Alternating least squares with rows drawn into that span settles near the solution in a few rounds.
    """
    inside = np.isin(whole.rows, np.concatenate([step.rows for step in steps]))
    rows, best, least = whole.rows[inside], values, np.inf
    span = np.linalg.svd(np.hstack([whole.sent[inside], np.ones((len(rows), 1))]), full_matrices=False)[0]
    for _ in range(iterations):
        values[rows] = span @ (span.T @ values[rows])
        values /= np.maximum(np.sqrt((values[rows] ** 2).mean(axis=0)), 1e-300)
        fitted = [fit_map(step, values) for step in steps]
        residual = sum(error for _, error in fitted)
        if residual < least:
            best, least = values.copy(), residual
        values = fit_rows(steps, [found for found, _ in fitted], len(values))
    return best


def jointly(steps: Sequence[Step], whole: Step, values: Array, iterations: int) -> tuple[Array, float, int]:
    """Alternating least squares on all steps; blocks are linked anew between rounds, as long as that helps.

    Their factors are what alternating is slow to find, and what linking finds at once.
    """
    joint = [*steps, whole]
    values, residual, done = alternate(joint, values, min(ROUND, iterations))
    helps = True
    while residual > EXACT and done < iterations:
        begun = link(steps, whole, values) if helps else values
        tried, left, more = alternate(joint, begun, min(ROUND, iterations - done))
        done += more
        if left < residual:
            values, residual = tried, left
        elif helps:
            helps = False  # go on without linking
        else:
            break
    return values, residual, done


def solve(steps: Sequence[Step], whole: Step | None, count: int, iterations: int, begin: Array | None = None) -> Found:
    """Rows from masked steps and, if there is one, a step without masks, which also tells of rows never masked.

    A step with no more rows than columns explains whatever it is given, and is left out. `begin` is a table to start
    from, one line per row.
    """
    width = steps[0].kept.shape[1]
    steps = [step for step in steps if len(step.rows) > width + 1] or steps
    values = start(steps, count) if begin is None else begin.copy()
    rows, done = np.unique(np.concatenate([step.rows for step in steps])), 0
    if whole is None:
        values, residual, done = alternate(steps, values, iterations)
        return Found(rows, values[rows], residual, done)
    if begin is None and whole.sent.shape[1] >= width:
        values = spanned(steps, whole, values)
    elif begin is None:
        values, _, done = alternate(steps, values, iterations)
        values = link(steps, whole, values)
    inside = np.isin(whole.rows, rows)
    seen = Step(whole.rows[inside], whole.kept[inside], whole.sent[inside])
    values, residual, more = jointly(steps, seen, values, iterations)
    others = Step(whole.rows[~inside], whole.kept[~inside], whole.sent[~inside])
    values[others.rows] = read(fit_map(seen, values)[0], others.sent, values[rows])
    return Found(np.sort(whole.rows), values[np.sort(whole.rows)], residual, done + more)


def regress(steps: Sequence[Step], whole: Step | None, count: int) -> Found:
    """Rows as if the map never changed (`start`), and others by the map that a step without masks then has."""
    values, rows = start(steps, count), np.unique(np.concatenate([step.rows for step in steps]))
    fitted = sum(fit_map(step, values)[1] for step in steps)
    total = sum(float(((step.sent - step.sent.mean(axis=0)) ** 2).sum()) for step in steps) or 1.0
    if whole is None:
        return Found(rows, values[rows], fitted / total, 0)
    inside = np.isin(whole.rows, rows)
    seen = Step(whole.rows[inside], whole.kept[inside], whole.sent[inside])
    values[whole.rows[~inside]] = read(fit_map(seen, values)[0], whole.sent[~inside], values[rows])
    rows = np.union1d(rows, whole.rows)
    return Found(rows, values[rows], fitted / total, 0)


def read(found: Array, sent: Array, examples: Array) -> Array:
    """Rows from one map: the most likely ones that agree with it, if rows are normal with the examples' moments."""
    slopes, mean = found[:-1], examples.mean(axis=0)
    spread = np.atleast_2d(np.cov(examples.T))
    system = slopes.T @ spread @ slopes
    gain = _solve(system, slopes.T @ spread)
    return mean + (sent - found[-1] - mean @ slopes) @ gain
