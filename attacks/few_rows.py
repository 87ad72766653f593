"""Solving a linear transformation from fewer known rows than columns, when second moments are known.

With T = X A, X'X/N = V D V' and T'T/N = E L E', the whitened tables U = X V D^-1/2 and W = T E L^-1/2 differ by an
orthogonal matrix, U = W Q. Each known row is one equation about Q. What n rows leave open is an orthogonal matrix P of
d = rank - n dimensions. If nothing more were known, its mean would be zero, and the best guess the solution of least
norm in whitened coordinates. But A has independent N(0, 1) entries (RAP 2.1), which makes some P more likely than
others: the logarithm of the density of Q is -1/2 sum_ij L_i Q_ij^2 / D_j. Large directions of the table belong to large
directions of the data. The guess is the posterior mean, by Gibbs sampling over plane rotations and reflections.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array

CHAINS, ANGLES = 48, 64  # samplers side by side, and angles that each draws from
WARM, KEEP = 25, 35  # sweeps over all planes: while the density is turned up, and after
MOST_STEPS = 6_000  # planes turned in all; wide tables get fewer sweeps
CLOSE = 0.1  # relative gap of inner products that exact moments may leave


@dataclass(frozen=True, eq=False)
class Axes:
    """Directions and sizes of a second moment: values @ forward are white, white @ back are values again."""

    sizes: Array  # (rank,)
    forward: Array  # (columns, rank)
    back: Array  # (rank, columns)

    @classmethod
    def of(cls, moment: Array, tolerance: float) -> Axes:
        """Eigenvalues above rounding, largest first."""
        sizes, vectors = np.linalg.eigh(moment)
        keep = sizes > max(sizes[-1], 1e-300) * tolerance**2
        sizes, vectors = sizes[keep][::-1], vectors[:, keep][:, ::-1]
        return cls(sizes, vectors / np.sqrt(sizes), (vectors * np.sqrt(sizes)).T)

    def first(self, rank: int) -> Axes:
        """The largest directions only."""
        return Axes(self.sizes[:rank], self.forward[:, :rank], self.back[:rank])


@dataclass(frozen=True, eq=False)
class Columns:
    """What is known about a party's columns besides known rows."""

    mean: Array
    mean_error: float  # variance of the mean as a share of the second moment; 0 if it is exact
    moment: Array | None  # X'X/N
    exact: bool  # whether the moment is


def shrunk_moment(rows: Array, mean: Array, deviation: Array | None) -> Array:
    """A second moment from some people: correlations shrunk as if as many people as columns had none.

    Means, and deviations if they are known, are taken as given.
    """
    centred, prior = rows - mean, len(mean)
    if deviation is None:
        deviation = np.sqrt((centred**2).mean(axis=0))
    centred = centred / np.maximum(deviation, 1e-300)
    moment = (centred.T @ centred + prior * np.eye(prior)) / (len(rows) + prior)
    scale = deviation / np.sqrt(np.diag(moment))
    return moment * np.outer(scale, scale) + np.outer(mean, mean)


def best_map(table: Array, sent: Array, known: Array, columns: Columns, rng: np.random.Generator) -> Array | None:
    """The mean of the linear map from messages to features, given known rows; None if the moments are not the table's.

    Known rows are reproduced exactly. A mean that is only estimated is an equation with an error. Without a moment
    every P is as likely as another.
    """
    tolerance = 1e-6 if table.dtype == np.float32 else 1e-9
    values = table.astype(np.float64)
    left = Axes.of(values.T @ values / len(values), tolerance)
    right = None if columns.moment is None else Axes.of(columns.moment, tolerance)
    if right is not None:
        rank = min(len(left.sizes), len(right.sizes))  # what rounding hides is the smallest in both
        left, right = left.first(rank), right.first(rank)
    middle = values.mean(axis=0)
    if np.linalg.norm(middle @ left.forward) > 1e-3:  # standardised columns have no mean to speak of
        sent, known = np.vstack([sent, middle]), np.vstack([known, columns.mean])
        error = np.append(np.zeros(len(sent) - 1), len(left.sizes) * columns.mean_error)
    else:
        error = np.zeros(len(sent))
    w = sent @ left.forward
    products = w @ w.T  # the same for the features behind them, in the metric of the right moments
    weights = w.T @ np.linalg.pinv(products + np.diag(error), rcond=1e-9, hermitian=True)
    made = weights @ known
    if right is None:
        return left.forward @ made
    u = known @ right.forward
    if columns.exact and np.linalg.norm(products - u @ u.T) > CLOSE * np.linalg.norm(products):
        return None
    inner, outer = _complement(w), _complement(u)
    free = min(len(inner), len(outer))
    if free == 0:
        return left.forward @ made
    inner, outer = inner[:free], outer[:free]
    quadratic = (inner * left.sizes) @ inner.T, (outer / right.sizes) @ outer.T
    linear = (inner * left.sizes) @ (weights @ u / right.sizes) @ outer.T
    turn = mean_rotation(*quadratic, linear, rng)
    return left.forward @ (made + inner.T @ turn @ outer @ right.back)


def _complement(rows: Array) -> Array:
    """An orthonormal basis, as rows, of what is orthogonal to all rows."""
    _, sizes, right = np.linalg.svd(rows, full_matrices=True)
    rank = int((sizes > max(sizes[0] if sizes.size else 0.0, 1e-300) * 1e-6).sum())
    return right[rank:]


def mean_rotation(left: Array, right: Array, linear: Array, rng: np.random.Generator) -> Array:
    """The mean of orthogonal P under the density exp(-tr(left P right P')/2 - tr(linear' P)), shape (d, d)."""
    size = len(left)
    p = np.linalg.qr(rng.standard_normal((CHAINS, size, size)))[0]
    planes = [(a, b) for a in range(size) for b in range(a)]
    share = min(1.0, MOST_STEPS / ((WARM + KEEP) * max(1, len(planes))))
    warm, keep = max(4, round(WARM * share)), max(4, round(KEEP * share))
    total = np.zeros((size, size))
    for sweep in range(warm + keep):
        heat = 10.0 ** (-4 * (1 - (sweep + 1) / warm)) if sweep < warm else 1.0
        gram = p @ right @ np.swapaxes(p, 1, 2)
        for at in rng.permutation(len(planes)):
            a, b = planes[at]
            _turn(p, gram, left, linear, a, b, heat, rng)
        for row in range(size):
            _reflect(p, gram, left, linear, row, heat, rng)
        if sweep >= warm:
            total += p.mean(axis=0)
    return total / keep


def _turn(
    p: Array, gram: Array, left: Array, linear: Array, a: int, b: int, heat: float, rng: np.random.Generator
) -> None:
    """Draw the angle of rows a and b of every chain anew, given all else. `gram` is p right p' and stays so."""
    angle = (np.arange(ANGLES) + rng.random((len(p), 1))) * (2 * np.pi / ANGLES)
    c, s = np.cos(angle), np.sin(angle)
    others = [f for f in range(len(left)) if f not in (a, b)]
    to_a, to_b = gram[:, a, others], gram[:, b, others]
    straight = p[:, a] @ linear[a] + p[:, b] @ linear[b] + to_a @ left[a, others] + to_b @ left[b, others]
    crossed = p[:, b] @ linear[a] - p[:, a] @ linear[b] + to_b @ left[a, others] - to_a @ left[b, others]
    aa, bb, ab = (gram[:, i, j][:, None] for i, j in ((a, a), (b, b), (a, b)))
    energy = c * straight[:, None] + s * crossed[:, None]
    energy += 0.5 * left[a, a] * (c * c * aa + 2 * c * s * ab + s * s * bb)
    energy += 0.5 * left[b, b] * (s * s * aa - 2 * c * s * ab + c * c * bb)
    energy += left[a, b] * (c * s * (bb - aa) + (c * c - s * s) * ab)
    chosen = (-heat * energy + rng.gumbel(size=angle.shape)).argmax(axis=1)[:, None]
    c, s = np.take_along_axis(c, chosen, 1), np.take_along_axis(s, chosen, 1)
    p[:, a], p[:, b] = c * p[:, a] + s * p[:, b], c * p[:, b] - s * p[:, a]
    gram[:, a], gram[:, b] = c * gram[:, a] + s * gram[:, b], c * gram[:, b] - s * gram[:, a]
    gram[:, :, a], gram[:, :, b] = c * gram[:, :, a] + s * gram[:, :, b], c * gram[:, :, b] - s * gram[:, :, a]


def _reflect(
    p: Array, gram: Array, left: Array, linear: Array, row: int, heat: float, rng: np.random.Generator
) -> None:
    """Turn the sign of one row, or not, given all else."""
    others = np.arange(len(left)) != row
    gain = 2 * (p[:, row] @ linear[row] + gram[:, row, others] @ left[row, others])
    flip = rng.random(len(p)) < 1 / (1 + np.exp(-np.clip(heat * gain, -500, 500)))
    p[flip, row] *= -1
    gram[flip, row] *= -1
    gram[flip, :, row] *= -1
