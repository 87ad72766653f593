"""Finding the hyperplanes of `mask_planes` without the masks: a masked cell is exactly zero, whoever knows it.

Half of the rows of a message lie in each hyperplane to the last digit, and no other hyperplane has more than a few rows
beyond those that define it. So: draw hyperplanes through random rows, keep those near which many rows lie, let each
settle by reweighted least squares (the logarithm of the distances as the cost), and count the rows that are exactly on
it. The sparsest independent ones are the columns, in an unknown order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attacks.mask_planes import FLAT
from vflaudit.core.dataset import Array

ON = 1e-4  # distance, in deviations of the message, below which a row is on a hyperplane: messages are float32
BLUR = (1e-3, 0.03)  # distances at which draws are judged: exact hits, and near ones that can settle
ROUNDS = 40  # of reweighting, while the blur shrinks to a tenth of ON
SAME = 0.99  # cosine of two normals above which they are one
SPARE = 3  # rows on a hyperplane beyond those that define it, so that it is no chance
APART = 0.05  # length that a normal must have outside the span of the others


@dataclass(frozen=True, eq=False)
class Whitened:
    """A message with unit covariance: rows, and the matrix that makes them from the message."""

    rows: Array
    inner: Array

    @classmethod
    def of(cls, sent: Array) -> Whitened:
        """Of the rank that the message has."""
        centred = sent - sent.mean(axis=0)
        size, axes = np.linalg.eigh(centred.T @ centred / len(sent))
        keep = size > FLAT**2 * size[-1]
        inner = axes[:, keep] / np.sqrt(size[keep])
        return cls(centred @ inner, inner)


def settle(rows: Array, normal: Array, shift: Array, blur: float) -> tuple[Array, Array]:
    """Many hyperplanes at once: minimise the sum of log(distance^2 + blur^2) while the blur shrinks."""
    shrink = (ON / 10 / blur) ** (1 / ROUNDS)
    for _ in range(ROUNDS):
        weights = 1 / ((normal @ rows.T - shift[:, None]) ** 2 + blur**2)
        total = weights.sum(axis=1)
        middle = weights @ rows / total[:, None]
        moments = (rows.T * weights[:, None, :]) @ rows
        moments -= total[:, None, None] * middle[:, :, None] * middle[:, None, :]
        normal = np.linalg.eigh(moments)[1][:, :, 0]
        shift, blur = (middle * normal).sum(axis=1), blur * shrink
    return normal, shift


def drawn(rows: Array, rng: np.random.Generator, draws: int, keep: int) -> tuple[Array, Array]:
    """Hyperplanes through random rows: those that most rows are near, no two alike."""
    count, width = rows.shape
    picks = rng.random((draws, count)).argpartition(width - 1, axis=1)[:, :width]
    corners = rows[picks] + 1e-9 * rng.standard_normal((draws, width, width))  # equal rows must not be singular
    normal = np.linalg.solve(corners, np.ones((draws, width, 1)))[..., 0]
    length = np.linalg.norm(normal, axis=1)
    normal, shift = normal / length[:, None], 1 / length
    gap = (normal @ rows.T - shift[:, None]) ** 2
    chosen: list[int] = []
    for blur in BLUR:
        best = np.argsort(np.log(gap + blur**2).sum(axis=1), kind="stable")
        for place in best[: 20 * keep]:
            if len(chosen) and np.abs(normal[chosen] @ normal[place]).max() > SAME:
                continue
            chosen.append(int(place))
            if len(chosen) >= keep * (1 + BLUR.index(blur)) // len(BLUR):
                break
    return normal[chosen], shift[chosen]


def on_planes(rows: Array, normal: Array, shift: Array) -> Array:
    """How many rows are on each hyperplane."""
    return (np.abs(normal @ rows.T - shift[:, None]) < ON).sum(axis=1)


def independent(normal: Array, counts: Array, width: int) -> list[int]:
    """The hyperplanes with most rows, leaving out any that is nearly a combination of those before: at most `width`."""
    chosen: list[int] = []
    basis = np.zeros((0, normal.shape[1]))
    for place in np.argsort(-counts, kind="stable"):
        rest = normal[place] - basis.T @ (basis @ normal[place])
        length = float(np.linalg.norm(rest))
        if length > APART and len(chosen) < width:
            basis = np.vstack([basis, rest / length])
            chosen.append(int(place))
    return chosen


def find(sent: Sequence[Array], rng: np.random.Generator, *, draws: int, keep: int) -> Array:
    """Normals as columns, as they are in the last of these messages; fewer than there are columns may be found.

    What is found in one message is a start for the one after it, as the layer moves slowly.
    """
    known = np.zeros((sent[0].shape[1], 0))
    for message in sent:
        white = Whitened.of(message)
        rows, width = white.rows, white.rows.shape[1]
        if len(rows) < width + 1 + SPARE:
            continue
        old = np.linalg.lstsq(white.inner, known, rcond=None)[0].T
        old /= np.maximum(np.linalg.norm(old, axis=1, keepdims=True), 1e-300)
        normal, shift = settle(rows, old, np.array([_mode(column) for column in (rows @ old.T).T]), BLUR[1])
        moved = (np.abs((normal * old).sum(axis=1)) < SAME) | (on_planes(rows, normal, shift) < width + SPARE)
        normal[moved] = old[moved]  # too few masked cells in this message: as it was
        counts = np.full(len(old), len(rows))  # what was found before goes first
        if len(old) < width:
            fresh, place = settle(rows, *drawn(rows, rng, draws, keep), blur=2 * BLUR[1])
            count = on_planes(rows, fresh, place)
            sure = count >= width + SPARE
            normal, counts = np.vstack([normal, fresh[sure]]), np.concatenate([counts, count[sure]])
        known = white.inner @ normal[independent(normal, counts, width)].T
    return known


def _mode(values: Array) -> float:
    """Where values crowd: the middle of the shortest interval with a fifth of them."""
    ordered, span = np.sort(values), max(2, len(values) // 5)
    start = int((ordered[span - 1 :] - ordered[: len(ordered) - span + 1]).argmin())
    return float(ordered[start + span // 2])
