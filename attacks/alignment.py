"""Rotating one cloud of points onto another when nobody says which point is which.

After whitening, two samples of one population that differ by an unknown invertible matrix differ by an unknown
rotation. Several parties are several blocks of columns with one rotation each, and what a rotation must then respect is
not only the shape of its own cloud but also its correlations with the other blocks. The distance is the energy distance
(sliced Cramer distance over all directions); every update is a closed-form Procrustes solution.

Tried and left out: kernel likelihoods (coherent point drift) and a Gaussian kernel were no better than the energy
distance; a robust (Student) scatter instead of the covariance loses more on real data than it gains on heavy tails, and
so does drawing in far points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream

FLAT = 1e-6  # singular values below this share of the largest are rounding: messages are float32
STAY = 1e-3  # how much a start keeps of itself: directions that correlations say nothing about stay where they are
Rotations = list[Array]  # one (starts, width, width) array per block


@dataclass(frozen=True, eq=False)
class Whitening:
    """x -> (x - mean) inner, of unit covariance; `outer` leads back."""

    mean: Array
    inner: Array
    outer: Array

    @classmethod
    def of(cls, values: Array) -> Whitening:
        """From data, of the rank that the data have (one-hot columns add up to one)."""
        mean = values.mean(axis=0)
        _, size, right = np.linalg.svd(values - mean, full_matrices=False)
        keep = size > max(size[0] * FLAT, 1e-300) if size.size else np.zeros(0, dtype=bool)
        axes, scale = right[keep].T, size[keep] / np.sqrt(len(values))
        inner, outer = axes / scale, (axes * scale).T
        return cls(mean, inner, outer)

    def __call__(self, values: Array) -> Array:
        return (values - self.mean) @ self.inner


@dataclass(frozen=True, eq=False)
class Block:
    """One party in both clouds, whitened and of equal width; the origin's place too, as there is no intercept."""

    cloud: Array
    target: Array
    cloud_mean: Array
    target_mean: Array
    fixed: bool = False  # the rotation is known to be the identity

    @property
    def width(self) -> int:
        """Columns after whitening."""
        return self.cloud.shape[1]

    def take(self, rows: Array, targets: Array) -> Block:
        """Some rows of both clouds."""
        return Block(self.cloud[rows], self.target[targets], self.cloud_mean, self.target_mean, self.fixed)

    def white(self, rows: Array, targets: Array) -> Block:
        """Some rows of both clouds, each white by itself, turned as little as possible."""
        part = self.take(rows, targets)
        if self.fixed or min(len(rows), len(targets)) <= 2 * self.width:
            return part
        clouds = []
        for values in (part.cloud, part.target):
            side = Whitening.of(values)
            left, _, right = np.linalg.svd(side.inner)
            clouds.append(side(values) @ (left @ right).T if side.inner.shape[1] == self.width else values)
        return Block(clouds[0], clouds[1], self.cloud_mean, self.target_mean)


def padded(values: Array, width: int, rng: np.random.Generator) -> Array:
    """Missing directions as independent noise, which is what a pseudo feature is (RAP 2.3)."""
    return np.hstack([values, rng.standard_normal((len(values), width - values.shape[1]))])


def block(cloud: Array, target: Array, rng: np.random.Generator) -> tuple[Block, Whitening]:
    """Whiten both sides of a party; also how to go back from the target's whitened columns."""
    left, right = Whitening.of(cloud), Whitening.of(target)
    width = max(left.inner.shape[1], right.inner.shape[1])
    means = [
        np.pad(side.mean @ side.inner, (0, width - side.inner.shape[1])) if _one_to_one(side) else np.zeros(width)
        for side in (left, right)
    ]
    if not (_one_to_one(left) and _one_to_one(right)):
        means = [np.zeros(width), np.zeros(width)]
    return Block(padded(left(cloud), width, rng), padded(right(target), width, rng), means[0], means[1]), right


def _one_to_one(side: Whitening) -> bool:
    """The whitened place of the origin is meaningful only at full rank."""
    return side.inner.shape[0] == side.inner.shape[1]


def fixed_block(plain: Array, target: Array) -> Block:
    """A party whose columns the adversary holds in the clear: both sides in the same units, nothing to rotate."""
    side = Whitening.of(target)
    zero = np.zeros(side.inner.shape[1])
    return Block(side(plain), side(target), zero, zero, fixed=True)


def rotation(matrix: Array) -> Array:
    """The nearest orthogonal matrix (Procrustes), for a stack of matrices."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def random_rotations(blocks: Sequence[Block], count: int, rng: np.random.Generator) -> Rotations:
    """Uniform starts; the identity where it is known."""
    return [
        np.tile(np.eye(b.width), (count, 1, 1))
        if b.fixed
        else np.linalg.qr(rng.standard_normal((count, b.width, b.width)))[0]
        for b in blocks
    ]


def pick(rotations: Rotations, which: Array | list[int] | slice) -> Rotations:
    """Some of the starts."""
    return [q[which] for q in rotations]


def stack(*parts: Rotations) -> Rotations:
    """All starts of several sets."""
    return [np.concatenate(together) for together in zip(*parts, strict=True)]


def _anchor(b: Block) -> float:
    """Weight of the mean: its error grows with its length, because whitening is estimated too."""
    return 1.0 / (1.0 + 0.5 * float(b.target_mean @ b.target_mean))


def match_correlations(blocks: Sequence[Block], start: Rotations, steps: int) -> tuple[Rotations, Array]:
    """Rotate so that correlations between blocks, and the means, agree: alternating Procrustes, and what is left.

    This is second-order information across parties: it is there for Gaussian data too, up to signs.
    """
    cloud = [[a.cloud.T @ b.cloud / len(a.cloud) for b in blocks] for a in blocks]
    target = [[a.target.T @ b.target / len(a.target) for b in blocks] for a in blocks]
    turned = list(start)
    others = [[j for j in range(len(blocks)) if j != i] for i in range(len(blocks))]
    for _ in range(steps):
        for i, b in enumerate(blocks):
            if b.fixed:
                continue
            pull = STAY * turned[i] + _anchor(b) * np.outer(b.cloud_mean, b.target_mean)
            turned[i] = rotation(sum((cloud[i][j] @ turned[j] @ target[i][j].T for j in others[i]), pull))
    left = sum((_mean_error(b, q) for b, q in zip(blocks, turned, strict=True)), np.zeros(len(turned[0])))
    for i in range(len(blocks)):
        for j in range(i):
            gap = np.swapaxes(turned[i], 1, 2) @ cloud[i][j] @ turned[j] - target[i][j]
            left = left + (gap**2).sum(axis=(1, 2))
    return turned, left


def _mean_error(b: Block, q: Array) -> Array:
    return _anchor(b) * ((b.cloud_mean @ q - b.target_mean) ** 2).sum(axis=1)


def distances(blocks: Sequence[Block], q: Rotations) -> Array:
    """Between all rotated points and all targets, shape (starts, rows, targets)."""
    points = np.concatenate([b.cloud @ r for b, r in zip(blocks, q, strict=True)], axis=2)
    goals = np.hstack([b.target for b in blocks])
    square = points @ (-2 * goals.T)
    square += (points**2).sum(axis=2)[:, :, None]
    square += (goals**2).sum(axis=1)
    return np.sqrt(np.maximum(square, 1e-12, out=square), out=square)


def mean_penalty(blocks: Sequence[Block], q: Rotations) -> Array:
    """How far the origin is from where it should be, in units of the energy distance."""
    width = sum(b.width for b in blocks)
    return sum((_mean_error(b, r) for b, r in zip(blocks, q, strict=True)), np.zeros(len(q[0]))) / np.sqrt(8.0 * width)


def energy(blocks: Sequence[Block], q: Rotations) -> Array:
    """The part of the energy distance that depends on the rotation (distances within a cloud do not)."""
    return np.concatenate(
        [
            distances(blocks, part).mean(axis=(1, 2)) + mean_penalty(blocks, part)
            for part in (pick(q, slice(k, k + 1)) for k in range(len(q[0])))
        ]
    )


def refine(blocks: Sequence[Block], start: Rotations, steps: int) -> Rotations:
    """Minimise the energy distance: |d| lies below the parabola d^2 / 2|d0| + |d0| / 2, whose minimum is a Procrustes
    solution with weights 1 / |d0|. Every step lowers the distance."""
    width = sum(b.width for b in blocks)
    done = []
    for k in range(len(start[0])):
        turned = pick(start, slice(k, k + 1))
        for _ in range(steps):
            weights = 1.0 / distances(blocks, turned)
            weights /= weights.shape[1] * weights.shape[2]
            before = turned
            turned = [
                q
                if b.fixed
                else rotation(
                    b.cloud.T @ weights @ b.target
                    + _anchor(b) / np.sqrt(2.0 * width) * np.outer(b.cloud_mean, b.target_mean)
                )
                for b, q in zip(blocks, turned, strict=True)
            ]
            if max(float(np.abs(a - b).max()) for a, b in zip(before, turned, strict=True)) < 1e-4:
                break
        done.append(turned)
    return stack(*done)


def matched_components(blocks: Sequence[Block], seed: int) -> Rotations:
    """A start from independent components: FastICA on both clouds, components paired by their marginals.

    Right at once if the columns are independent and not Gaussian; signs come with the pairing.
    """
    return [np.eye(b.width)[None] if b.fixed or b.width < 2 else _paired(b, seed)[None] for b in blocks]


def _paired(b: Block, seed: int) -> Array:
    from scipy.optimize import linear_sum_assignment

    axes = [_components(values, seed) for values in (b.cloud, b.target)]
    levels = (np.arange(100) + 0.5) / 100
    left, right = (np.quantile(values @ a, levels, axis=0) for values, a in zip((b.cloud, b.target), axes, strict=True))
    straight = np.abs(left[:, :, None] - right[:, None, :]).mean(axis=0)
    mirrored = np.abs(-left[::-1][:, :, None] - right[:, None, :]).mean(axis=0)
    rows, columns = linear_sum_assignment(np.minimum(straight, mirrored))
    signs = np.where(straight[rows, columns] <= mirrored[rows, columns], 1.0, -1.0)
    return (axes[0][:, rows] * signs) @ axes[1][:, columns].T


def _components(values: Array, seed: int) -> Array:
    """An orthogonal matrix of FastICA directions of whitened rows."""
    import warnings

    from sklearn.decomposition import FastICA

    start = np.linalg.qr(stream(seed, "alignment", "components").standard_normal((values.shape[1],) * 2))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged is good enough for a start
        ica = FastICA(whiten=False, max_iter=200, w_init=start).fit(values)
    return rotation(ica.components_[None])[0].T
