"""Finding known people in a linearly transformed table by inner products that no invertible matrix can change.

With T = X A and second moments S = X'X/N, the numbers x_i' S^-1 x_j equal t_i (T'T/N)^-1 t_j'. In whitened coordinates
the table is therefore the data up to a rotation, about an origin that is common to both: there is no intercept.
What an adversary knows about S is exact, or an estimate from a sample; the search weighs every residual by the sampling
error that such an estimate has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array

CHUNK = 2_000_000  # numbers in one block of work
SAME = 1e-9  # share of a row's squared length below which it adds no direction
SURROGATES = 2000  # pool rows that stand for strangers when an order is planned
BLOCK = 256  # tuples that are extended together
GENEROUS, SLACK = 2.0, 30.0  # a tuple may misfit this many times its number of residuals, and this much more
NEIGHBOURS = 100  # rows from which a dimension is estimated
ROUNDS, CLEAR = 5, 0.3  # of refinement; a match is clear if it is this much closer than the next row
SHRINK = 20.0  # pool rows that the Gaussian formula for a sampling variance is worth


@dataclass(frozen=True, eq=False)
class Whitening:
    """Coordinates in which second moments are the identity: values @ forward, shape (columns, rank)."""

    forward: Array

    @property
    def rank(self) -> int:
        """Directions in which the data varies about the origin."""
        return self.forward.shape[1]

    @classmethod
    def of(cls, moment: Array, tolerance: float, rank: int | None = None) -> Whitening:
        """From a second moment; directions below `tolerance` (a ratio of standard deviations) are left out."""
        scale = np.sqrt(np.diag(moment))
        scale = np.where(scale > 0, scale, 1.0)
        values, vectors = np.linalg.eigh(moment / np.outer(scale, scale))
        keep = values > max(values[-1], 0.0) * tolerance**2
        if rank is not None:
            keep &= np.arange(len(values)) >= len(values) - rank
        return cls(vectors[:, keep] / np.sqrt(values[keep]) / scale[:, None])


def blocks(values: Array, rows: int = 50_000) -> Iterator[Array]:
    """A long table in float64, some rows at a time."""
    for start in range(0, len(values), rows):
        yield values[start : start + rows].astype(np.float64)


def second_moment(values: Array) -> Array:
    """X'X/N."""
    return sum((block.T @ block for block in blocks(values)), np.zeros((values.shape[1],) * 2)) / len(values)


def generic(width: int) -> Array:
    """A direction to which nothing is orthogonal but by chance."""
    return np.cos(np.arange(1, width + 1) ** 1.5)


def groups(rows: Array, tolerance: float) -> tuple[Array, Array]:
    """The first of each group of rows that are equal up to `tolerance`, and how many the group has.

    Equal rows are neighbours in the order of a generic projection; only neighbours are compared.
    """
    order = np.argsort(rows @ generic(rows.shape[1]), kind="stable")
    new = np.ones(len(rows), dtype=bool)
    for start in range(1, len(rows), 50_000):
        at = order[start - 1 : start + 50_000]
        new[start : start + 50_000] = (np.abs(np.diff(rows[at], axis=0)) > tolerance).any(axis=1)
    number = np.cumsum(new) - 1
    first = np.full(number[-1] + 1, len(rows))
    np.minimum.at(first, number, order)
    place = np.argsort(first, kind="stable")
    return first[place], np.bincount(number)[place]


def nearest(points: Array, rows: Array, excluding: Array | None = None) -> tuple[Array, Array]:
    """For each point the nearest row, and the distance to it; `excluding` has rows to leave out for each point."""
    best, found = np.full(len(points), np.inf), np.zeros(len(points), dtype=np.int64)
    size = max(1, CHUNK // max(1, len(points)))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        squares = np.einsum("ij,ij->i", part, part) - 2 * points @ part.T
        for left in [] if excluding is None else np.atleast_2d(excluding):
            inside = np.flatnonzero((left >= start) & (left < start + len(part)))
            squares[inside, left[inside] - start] = np.inf
        at = squares.argmin(axis=1)
        # the short formula finds the row, the long one measures the distance: rounding would hide a near hit
        distance = np.linalg.norm(points - part[at], axis=1)
        distance[~np.isfinite(squares[np.arange(len(points)), at])] = np.inf
        closer = distance < best
        best[closer], found[closer] = distance[closer], at[closer] + start
    return found, best


def fit(x: Array, y: Array, blur: Array | None = None) -> Array:
    """The linear map from x to y, of least norm; directions in which x is hardly more than its blur are left out."""
    left, values, right = _directions(x, blur)
    return right.T @ ((left.T @ y) / values[:, None])


def left_out(x: Array, y: Array, blur: Array | None = None) -> tuple[Array, Array, int]:
    """Errors of each row of y as predicted linearly from the others, which rows these can predict, the rank of x."""
    left = _directions(x, blur)[0]
    slack = 1 - (left**2).sum(axis=1)
    proven = slack > 1e-6
    return (y - left @ (left.T @ y)) / np.where(proven, slack, 1.0)[:, None], proven, left.shape[1]


def _directions(x: Array, blur: Array | None) -> tuple[Array, Array, Array]:
    """The singular value decomposition, as far as it is more than the blur (a deviation per row) of x."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    keep = values > max(values[0] * 1e-10, 0.0 if blur is None else 10 * float(np.linalg.norm(blur)))
    return left[:, keep], values[keep], right[keep]


def dimension(rows: Array) -> float:
    """The dimension in which distinct rows are spread out, from their two nearest neighbours (Facco et al. 2017).

    At least 1, and at most the number of columns.
    """
    sample = np.unique(np.linspace(0, len(rows) - 1, NEIGHBOURS).astype(int))
    if len(rows) < 4:
        return 1.0
    first, near = nearest(rows[sample], rows, excluding=sample)
    far = nearest(rows[sample], rows, excluding=np.stack([sample, first]))[1]
    ratio = np.clip(near, 1e-300, None) / np.clip(far, 1e-300, None)
    return float(np.clip(1 / max(-np.log(ratio).mean(), 1e-9), 1.0, rows.shape[1]))


def refine(known: Array, table: Array, seeds: Array, rows: Array, blur: Array) -> Array:
    """Where every known row stands (-1: nowhere) if `seeds` among them stand at `rows`: fit, match, fit again."""
    placed = np.full(len(known), -1)
    placed[seeds] = rows
    for _ in range(ROUNDS):
        at = np.flatnonzero(placed >= 0)
        mapped = table @ fit(table[placed[at]], known[at], blur[placed[at]])
        found, near = nearest(known, mapped)
        far = nearest(known, mapped, excluding=found)[1]
        again = np.where(near < CLEAR * far, found, -1)
        if np.array_equal(again, placed) or not (again >= 0).any():
            break
        placed = again
    return placed


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the search compares: the table and the known rows, both whitened, and how far off they may be."""

    table: Array  # (N, r)
    known: Array  # (n, r)
    pool: Array  # (M, r): the sample behind the estimated moments; empty if these are exact
    spread: float  # variance of an estimated moment per unit variance of a product: 1/M + 1/N, 0 if exact
    noise: Array  # (r, r): covariance of noise in known values, in whitened coordinates
    rounding: float  # variance of rounding on the wire per coordinate, for a row of average size
    size: Array  # (n,): squared size of the known rows in the protocol's units relative to the average
    metric: Array  # (columns, r): known values @ metric are whitened
    chosen: Array  # which of all known rows `known` has


@dataclass(frozen=True, eq=False)
class Tuples:
    """Candidate matches, best first: the known rows that were placed, and for each candidate where."""

    known: Array  # (k,)
    rows: Array  # (candidates, k)
    misfit: Array  # (candidates,): minus twice the log-likelihood, up to a constant
    full: bool  # whether the beam was ever full, so that a wider one might find more


@dataclass(frozen=True, eq=False)
class Step:
    """How the next known row must lie to those already placed (Gram-Schmidt in the estimated metric)."""

    target: int
    weights: Array  # the known row as a combination of the placed ones
    aside: float  # squared length of what that leaves; 0 if the row adds no direction
    deviation: Array  # standard deviation of each coordinate along the placed rows
    aside_deviation: float

    @classmethod
    def of(cls, evidence: Evidence, basis: Array, placed: list[int], target: int) -> Step:
        """Residuals and their sampling variances for placing `target` after `placed`, which span `basis`."""
        known, pool = evidence.known, evidence.pool
        x = known[target]
        rest = x - (basis @ x) @ basis
        aside = float(rest @ rest)
        if len(basis) == known.shape[1] or aside < SAME * float(x @ x):
            aside, rest = 0.0, np.zeros_like(x)
        weights = np.linalg.lstsq(known[placed].T, x, rcond=None)[0] if placed else np.zeros(0)
        noise = evidence.noise * (1 + float(weights @ weights))
        coarse = evidence.rounding * (evidence.size[target] + float(weights**2 @ evidence.size[placed]))
        noise = noise + coarse * np.eye(len(x))
        along, alone = np.full(len(basis), aside), 2 * aside**2
        if len(pool) and aside > 0:
            out = pool @ rest
            share = len(pool) / (len(pool) + SHRINK)
            along = share * (out[:, None] * (pool @ basis.T)).var(axis=0) + (1 - share) * along
            alone = share * float((out**2).var()) + (1 - share) * alone
        seen = np.einsum("kr,rs,ks->k", basis, noise, basis)
        hidden = max(float(np.trace(noise) - seen.sum()), 0.0) if len(basis) < known.shape[1] else 0.0
        variance = evidence.spread * alone + 4 * float(rest @ noise @ rest) + 2 * hidden**2
        return cls(target, weights, aside, np.sqrt(evidence.spread * along + seen), float(np.sqrt(variance)))

    def misfit(self, inside: Array, wanted: Array, aside: Array) -> Array:
        """Squared standardised residuals of coordinates (..., k, rows) wanted at (..., k, 1) and of what they leave."""
        return (((inside - wanted) / self.deviation[:, None]) ** 2).sum(axis=-2) + self.aside_misfit(aside)

    @property
    def relative(self) -> bool:
        """Whether lengths compare by their ratio: an estimated metric errs by a factor."""
        return 0 < self.aside_deviation < 0.5 * self.aside

    def aside_misfit(self, aside: Array) -> Array:
        """The part of the misfit that comes from the length of what is left."""
        if self.aside_deviation <= 0:
            return np.zeros_like(aside)
        if self.relative:
            ratio = np.log(np.maximum(aside, 1e-3 * self.aside) / self.aside)
            return (ratio * (self.aside / self.aside_deviation)) ** 2
        return ((aside - self.aside) / self.aside_deviation) ** 2


def plan(evidence: Evidence, steps: int) -> list[Step]:
    """Which known rows to place, in the order in which fewest strangers would pass for them.

    Strangers are the table itself for the first row (lengths compare at once), then the pool. With exact moments hardly
    anybody passes, and rows that reach farthest into new directions go first. Rows that add no direction go last: they
    can only confirm.
    """
    known, sample = evidence.known, evidence.pool[:SURROGATES]
    basis, placed, made = np.zeros((0, known.shape[1])), list[int](), list[Step]()
    lengths = np.einsum("ij,ij->i", *[evidence.table[:: max(1, len(evidence.table) // 20_000)]] * 2)
    while len(placed) < min(steps, len(known)):
        left = np.setdiff1d(np.arange(len(known)), placed)
        reach = ((known[left] - (known[left] @ basis.T) @ basis) ** 2).sum(axis=1)
        new = reach > SAME * (known[left] ** 2).sum(axis=1)
        if len(basis) < known.shape[1] and new.any():
            left, reach = left[new], reach[new]
        options = left if not placed or len(sample) >= 2 * known.shape[1] else left[[np.argmax(reach)]]
        trial = [Step.of(evidence, basis, placed, int(target)) for target in options]
        inside = basis @ sample.T
        aside = np.einsum("ij,ij->i", sample, sample) - (inside**2).sum(axis=0)
        if not placed:
            chance = [np.exp(-step.aside_misfit(lengths) / 2).mean() for step in trial]
        elif len(trial) > 1:
            wanted = [(basis @ known[step.target])[:, None] for step in trial]
            # a temperature of 4, since a small pool seldom has anybody close
            chance = [np.exp(-s.misfit(inside, w, aside) / 8).mean() for s, w in zip(trial, wanted, strict=True)]
        else:
            chance = [0.0]
        made.append(trial[int(np.argmin(chance))])
        placed.append(made[-1].target)
        if made[-1].aside > 0:
            rest = known[placed[-1]] - (basis @ known[placed[-1]]) @ basis
            rest -= (basis @ rest) @ basis
            basis = np.vstack([basis, rest / np.linalg.norm(rest)])
    return made


class Budget:
    """Multiplications that searches may still do. Counted and not timed, so that results do not depend on the clock."""

    def __init__(self, multiplications: float) -> None:
        self.left = multiplications

    def spend(self, multiplications: float) -> bool:
        """Whether that much was left."""
        self.left -= multiplications
        return self.left >= 0


def search(evidence: Evidence, steps: list[Step], beam: int, budget: Budget) -> Tuples:
    """Place known rows one by one, keeping the most likely tuples of table rows, at most `beam`.

    A tuple that fits much worse than the truth would is dropped; when none is left, the known rows are not there. When
    the budget runs out, nothing is found either.
    """
    lengths = np.einsum("ij,ij->i", evidence.table, evidence.table)
    order = np.argsort(lengths, kind="stable")
    table, lengths = evidence.table[order], lengths[order]
    rows, misfit, basis = np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros((1, 0, table.shape[1]))
    terms, full = 0, False
    for step in steps:
        terms += basis.shape[1] + int(step.aside_deviation > 0)
        limit = GENEROUS * terms + SLACK
        parents, children, misfit = _expand(step, table, lengths, rows, misfit, basis, beam, limit, budget)
        full |= len(parents) == beam
        rows, basis = np.column_stack([rows[parents], children]), basis[parents]
        if step.aside > 0:
            new = table[children]
            for _ in range(2):  # twice is enough to be orthogonal to rounding
                new = new - np.einsum("bk,bkr->br", np.einsum("bkr,br->bk", basis, new), basis)
            new = new / np.maximum(np.linalg.norm(new, axis=1, keepdims=True), 1e-300)
            basis = np.concatenate([basis, new[:, None]], axis=1)
    return Tuples(np.array([step.target for step in steps]), order[rows], misfit, full)


def _expand(
    step: Step,
    table: Array,
    lengths: Array,
    rows: Array,
    misfit: Array,
    basis: Array,
    beam: int,
    limit: float,
    budget: Budget,
) -> tuple[Array, Array, Array]:
    """The best (tuple, next row) pairs below the limit, best first: parents, children and misfits.

    Tuples go in the order of the length that they want, so that a block of them needs a short stretch of the table.
    """
    wanted = np.einsum("bkr,br->bk", basis, np.einsum("k,bkr->br", step.weights, table[rows]))
    turn = np.argsort((wanted**2).sum(axis=1), kind="stable")
    parents, children, found = (np.zeros(0, dtype=np.int64),) * 2 + (np.zeros(0),)
    start, size = 0, BLOCK
    while start < len(turn):
        part = turn[start : start + size]
        low, high = _stretch(step, lengths, wanted[part], limit)
        if (high - low) * len(part) * max(1, basis.shape[1]) > CHUNK and len(part) > 1:
            size = max(1, len(part) // 2)
            continue
        start, size = start + len(part), BLOCK
        if not budget.spend((high - low) * len(part) * max(1, basis.shape[1]) * table.shape[1]):
            return parents[:0], children[:0], found[:0]
        total = _block(step, table[low:high], lengths[low:high], wanted[part], basis[part]) + misfit[part, None]
        for used in rows[part].T:
            inside = (used >= low) & (used < high)
            total[np.flatnonzero(inside), used[inside] - low] = np.inf
        at, child = np.nonzero(total < limit)
        parents, children = np.append(parents, part[at]), np.append(children, child + low)
        found = np.append(found, total[at, child])
        if len(found) > 4 * beam:
            best = np.argpartition(found, beam - 1)[:beam]
            parents, children, found = parents[best], children[best], found[best]
            limit = float(found.max())
    best = np.lexsort((children, parents, found))[:beam]
    return parents[best], children[best], found[best]


def _stretch(step: Step, lengths: Array, wanted: Array, limit: float) -> tuple[int, int]:
    """Which rows (sorted by length) may fit any of these tuples: |x|^2 is what both parts add up to."""
    sizes = np.sqrt((wanted**2).sum(axis=1))
    near, off = np.sqrt(limit) * step.deviation.max(initial=0.0), np.sqrt(limit) * step.aside_deviation
    low, high = max(sizes.min() - near, 0.0) ** 2, (sizes.max() + near) ** 2
    if step.relative:
        factor = np.exp(min(off / step.aside, 6.0))
        low, high = low + step.aside / factor, high + step.aside * factor
    else:
        low, high = low + step.aside - off, high + step.aside + off
    return int(np.searchsorted(lengths, low)), int(np.searchsorted(lengths, high, side="right"))


def _block(step: Step, table: Array, lengths: Array, wanted: Array, basis: Array) -> Array:
    """Misfit of every row for every tuple of a block."""
    points = table.T
    inside = (basis.reshape(-1, len(points)) @ points).reshape(*basis.shape[:2], len(table))
    if step.aside <= 0 or step.deviation.min(initial=1.0) < 1e-3:
        return step.misfit(inside, wanted[:, :, None], lengths - (inside**2).sum(axis=1))
    # the square written out: one pass over the block instead of five, precise enough for deviations like these
    weights = np.vstack([step.deviation**-2.0, np.ones(basis.shape[1])])
    inside *= inside
    squares = weights @ inside
    pull = np.einsum("bk,bkr->br", wanted * weights[0], basis) @ points
    total = squares[:, 0] - 2 * pull + ((wanted**2) @ weights[0])[:, None]
    return total + step.aside_misfit(lengths - squares[:, 1])
