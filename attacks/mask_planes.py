"""Rows whose cell j is masked lie in a hyperplane, and the distance from it is the cell: z = b + sum_j k_ij x_ij a_j.

In one message, z is an affine function of the cells that were kept (k_ij = 1). If as many numbers are sent as there are
columns, rows without cell j lie in a hyperplane with some normal n_j, and n_j z tells x_ij, up to a factor and a shift.
It needs one message, and no names of rows. The layer hardly changes from one message to the next, so the normals also
read messages nearby, in which no cell is masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attacks.mask_algebra import Step
from vflaudit.core.dataset import Array
from vflaudit.core.wire import Message

MARGIN = 2  # masked rows per number sent, so that chance does not flatten another direction
FLAT = 1e-6  # float32: directions below this share of the largest are rounding


def window(steps: Sequence[Step], last: int) -> Sequence[Step]:
    """The fewest messages up to number `last` that have enough masked rows for every column."""
    width, outputs = steps[0].kept.shape[1], steps[0].sent.shape[1]
    count = np.zeros(width)
    for first in range(last, -1, -1):
        count += np.maximum((steps[first].kept == 0).sum(axis=0) - 1, 0)  # one goes into the shift
        if count.min() >= MARGIN * outputs:
            return steps[first : last + 1]
    return steps[: last + 1]


def scatter(values: Array) -> Array:
    """Sums of squares and products around the mean."""
    centred = values - values.mean(axis=0) if len(values) else values
    return centred.T @ centred


def normals(steps: Sequence[Step]) -> Array:
    """The normal of every column's hyperplane, as columns: where rows without the cell spread least, all others most.

    Rows are compared within a message only, because every message has a shift of its own.
    """
    size, axes = np.linalg.eigh(sum(scatter(step.sent) for step in steps))
    keep = size > FLAT**2 * size[-1]
    inner = axes[:, keep] / np.sqrt(size[keep])
    found = []
    for column in range(steps[0].kept.shape[1]):
        without = sum(scatter(step.sent[step.kept[:, column] == 0]) for step in steps)
        found.append(inner @ np.linalg.eigh(inner.T @ without @ inner)[1][:, 0])
    return np.stack(found, axis=1)


def readings(step: Step, normal: Array) -> Array:
    """All cells of a message up to a factor per column; zero where a cell is masked."""
    turned = step.sent @ normal
    masked = 1 - step.kept
    shift = (turned * masked).sum(axis=0) / np.maximum(masked.sum(axis=0), 1)
    return (turned - shift) * step.kept


def carried(normal: Array, near: Message | None, served: Message) -> tuple[Array, Array]:
    """Rows and cells of what was served, up to a factor and a shift per column.

    `near` is a message right after those that the normals are of. Both it and what was served are affine functions of
    the same cells, so the one is an affine function of the other, and least squares on rows in both find it.
    """
    values = np.asarray(served.arrays["values"], dtype=np.float64)
    assert served.rows is not None
    if near is None or near.rows is None or near is served:
        return served.rows, values @ normal
    order = np.argsort(served.rows)
    at = order[np.searchsorted(served.rows, near.rows, sorter=order).clip(max=len(order) - 1)]
    both = served.rows[at] == near.rows
    if both.sum() < values.shape[1] + 2:
        return served.rows, values @ normal
    design = values[at[both]] - values[at[both]].mean(axis=0)
    target = np.asarray(near.arrays["values"], dtype=np.float64)[both]
    bridge = np.linalg.lstsq(design, target - target.mean(axis=0), rcond=FLAT)[0]
    return served.rows, values @ (bridge @ normal)


def shifted(values: Array, scale: Array, cells: Array, kept: Array) -> Array:
    """Give columns the mean and deviation that kept cells have in the messages with masks, where zero is known."""
    count = np.maximum(kept.sum(axis=0), 1)
    centre = cells.sum(axis=0) / count
    spread = np.sqrt(np.maximum((cells**2).sum(axis=0) / count - centre**2, 0.0))
    found = values - values[scale].mean(axis=0)
    return found * spread / np.maximum(found[scale].std(axis=0), 1e-300) + centre


def filled(cells: Array, kept: Array) -> Array:
    """Masked cells by their expectation given the row's other cells, if rows are normal around zero."""
    moments = cells.T @ cells / np.maximum(kept.T @ kept, 1)
    size, axes = np.linalg.eigh(moments)  # pairs come from different rows: the table may not be a covariance
    moments = (axes * np.maximum(size, 1e-3 * size[-1])) @ axes.T
    both = kept[:, :, None] * kept[:, None, :]
    system = both * moments + (1 - kept)[:, :, None] * np.eye(kept.shape[1])
    weights = np.linalg.solve(system, cells[..., None])[..., 0]
    return np.where(kept == 1, cells, weights @ moments)
