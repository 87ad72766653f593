"""Reading small whole numbers through a linear map: whole numbers stay a lattice.

If the columns are whole numbers, or 0 and 1, or a fixed multiple of these, then differences of two rows of T = X A are
whole combinations of the rows of A (RAP 2.1 and 2.3: categories become one-hot columns before the projection). The
lattice that they generate needs no known row. It gives the columns up to a change of basis by whole numbers; the basis
in which columns have the least entropy is nearly always the true one, up to order, sign and origin. Frequencies among
other people of the population name the columns and fix sign and origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vflaudit.core.dataset import Array

FREQUENT = 300  # rows whose differences are looked at for a first basis
WHOLE, NEAR = 0.05, 0.15  # how far from a whole number a coordinate may be, at last and while the basis is rough
CONVINCING = 0.99  # share of people whose coordinates are whole numbers
LIMIT = 1e6  # larger coordinates could be whole by chance
LONGEST = 20_000  # values of a column, beyond which it is no small number
STEPS = 60  # of refinement: each makes the cell at least two times smaller
WELL, MISFIT = 2.0, 4.0  # mean squared deviation of shares: it fits; it is another population
DENSE = 20  # people per value of a column below which nothing about it is sure
SURE = 10.0  # by how much (log-likelihood) the names, signs and origins must beat all others


@dataclass(frozen=True, eq=False)
class Grid:
    """Columns of the population that take values origin + unit x whole number."""

    unit: Array
    origin: Array

    @classmethod
    def of(cls, people: Array) -> Grid | None:
        """The grid of a sample; None if any column has none. A constant column has the unit 1."""
        unit = np.ones(people.shape[1])
        for at, column in enumerate(people.T):
            values = np.unique(column)
            gaps = np.diff(values)
            gaps = gaps[gaps > 1e-9 * max(float(np.ptp(values)), 1e-300)]
            if len(gaps) == 0:
                continue
            steps = (values - values[0]) / gaps.min()
            if np.abs(steps - steps.round()).max() > 1e-3:
                return None
            unit[at] = gaps.min()
        return cls(unit, people.min(axis=0))

    def whole(self, values: Array) -> Array:
        """Whole numbers of people on the grid."""
        return ((values - self.origin) / self.unit).round().astype(np.int64)


def read_whole_numbers(sent: Array, people: Array, rng: np.random.Generator) -> tuple[Array | None, dict[str, Any]]:
    """The columns of a table, all of whole numbers, named by the population; None if that fails, and notes.

    Verified means that all rows decode to whole numbers, and that names, signs and origins are far more likely than any
    others. One column that is not on a grid (a measured quantity) stops it, as does noise.
    """
    grid = Grid.of(people)
    if grid is None:
        return None, {"verified": False, "result": "a column is not on a grid"}
    found = decode(sent, rng)
    if found is None:
        return None, {"verified": False, "result": "no lattice"}
    ranges = sorted((int(r) for r in np.ptp(found, axis=0)), reverse=True)
    note: dict[str, Any] = {"columns_found": found.shape[1], "ranges": ranges}
    named = name_columns(found, grid.whole(people))
    if named is None:
        return None, note | {"verified": False, "result": "columns could not be named"}
    whole, misfit, margin = named
    note |= {"misfit": misfit, "naming_margin": margin}
    if misfit > MISFIT:
        return None, note | {"verified": False, "result": "columns do not fit the population"}
    return grid.origin + grid.unit * whole, note | {"verified": margin > SURE, "result": "named"}


def decode(sent: Array, rng: np.random.Generator) -> Array | None:
    """Whole-number coordinates of every row, of least entropy, each from 0 upwards; None if there is no lattice."""
    centred = sent - sent.mean(axis=0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    rank = int((sizes > sizes[0] * 1e-6).sum()) if sizes.size and sizes[0] > 0 else 0
    if rank == 0:
        return None
    white = left[:, :rank] * np.sqrt(len(sent))
    # rounding on the wire (float32), as it appears in the coordinates that it blurs most
    blur = 2.0**-24 * np.linalg.norm(right[:rank] * np.abs(sent).max(axis=0), axis=1).max()
    blur *= np.sqrt(len(sent)) / sizes[rank - 1] / np.abs(white).max()
    where, rows, counts = same_rows(white, rng, max(1e-7, 4 * float(blur)))
    if len(rows) <= rank:
        return None
    basis = first_basis(rows[:FREQUENT], rank, max(1e-7, 4 * float(blur)), rng)
    if basis is None:
        return None
    basis = refined(rows - rows[0], basis)
    if basis is None:
        return None
    coordinates = (rows - rows[0]) @ np.linalg.inv(basis)
    gap = np.abs(coordinates - coordinates.round()).max(axis=1)
    good = (gap < WHOLE) & (np.abs(coordinates).max(axis=1) < LIMIT)
    if counts[good].sum() < CONVINCING * counts.sum():
        return None
    whole = least_entropy(least_variance(coordinates.round().astype(np.int64), counts), counts)
    return (whole - whole.min(axis=0))[where]


def first_basis(rows: Array, rank: int, tolerance: float, rng: np.random.Generator) -> Array | None:
    """Independent differences of frequent rows, those that occur most often first."""
    one, two = np.triu_indices(len(rows), 1)
    differences = rows[one] - rows[two]
    differences *= np.where(differences @ rng.standard_normal(rank) < 0, -1.0, 1.0)[:, None]
    _, distinct, counts = same_rows(differences, rng, tolerance)
    order = np.lexsort((np.linalg.norm(distinct, axis=1), -counts))
    chosen, span = list[Array](), np.zeros((0, rank))
    for at in order:
        rest = distinct[at] - distinct[at] @ span.T @ span
        if np.linalg.norm(rest) > 1e-3 * np.linalg.norm(distinct[at]):
            chosen.append(distinct[at])
            span = np.vstack([span, rest / np.linalg.norm(rest)])
            if len(chosen) == rank:
                return np.array(chosen)
    return None


def refined(differences: Array, basis: Array) -> Array | None:
    """A basis of the lattice of all differences, from one of a part of it; None if they generate no lattice.

    A difference whose coordinates are not whole, less whole multiples of the basis, replaces a basis vector on which it
    has the coordinate c with 0 < |c| <= 1/2. That makes the cell smaller by |c|, which cannot go on for ever.
    """
    for _ in range(STEPS):
        coordinates = differences @ np.linalg.inv(basis)
        rest = coordinates - coordinates.round()
        off = np.abs(rest).max(axis=1)
        broken = np.flatnonzero(off > NEAR)
        if len(broken) <= (1 - CONVINCING) * len(differences):
            # all rows together say more precisely where the basis is than the few that made it
            whole = np.delete(coordinates.round(), broken, axis=0)
            return np.linalg.lstsq(whole, np.delete(differences, broken, axis=0), rcond=None)[0]
        # short differences are multiples of few basis vectors, whose errors add up
        chosen = broken[np.abs(coordinates[broken]).sum(axis=1).argmin()]
        basis = basis.copy()
        basis[int(np.abs(rest[chosen]).argmax())] = rest[chosen] @ basis
    return None


def least_variance(whole: Array, counts: Array) -> Array:
    """Subtract from each column the whole multiple of another that leaves least variance, as long as there is one."""
    whole, share = whole.copy(), counts / counts.sum()
    for _ in range(20 * whole.shape[1]):
        centred = whole - share @ whole
        moment = (centred * share[:, None]).T @ centred
        times = np.round(moment / np.maximum(np.diag(moment), 1e-12))  # of column j in column i
        np.fill_diagonal(times, 0)
        gain = 2 * times * moment - times**2 * np.diag(moment)
        i, j = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[i, j] < 1e-9:
            break
        whole[:, i] -= int(times[i, j]) * whole[:, j]
    return whole


def least_entropy(whole: Array, counts: Array) -> Array:
    """Add and subtract columns from each other as long as that lowers the sum of their entropies."""
    whole = whole.copy()
    entropies = np.array([entropy(column, counts) for column in whole.T])
    width = whole.shape[1]
    for _ in range(20 * width):
        best, move = 1e-9, None
        for i in range(width):
            for j in range(width):
                for sign in (1, -1) if i != j else ():
                    gain = entropies[i] - entropy(whole[:, i] + sign * whole[:, j], counts)
                    if gain > best:
                        best, move = gain, (i, j, sign)
        if move is None:
            break
        i, j, sign = move
        whole[:, i] += sign * whole[:, j]
        entropies[i] -= best
    return whole


def entropy(column: Array, counts: Array) -> float:
    """Of the values of a column, whose rows occur `counts` times."""
    low = int(column.min())
    if int(column.max()) - low > 100_000:
        return np.inf
    share = np.bincount(column - low, weights=counts) / counts.sum()
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


def name_columns(found: Array, people: Array) -> tuple[Array, float, float] | None:
    """Found columns in the order, direction and origin of the population's; the worst misfit, the smallest margin.

    The most likely assignment, where each pair of columns has its best sign and origin. Then whole multiples of other
    columns are added wherever that fits the population better. None if there is no assignment.
    """
    from scipy.optimize import linear_sum_assignment

    varying = np.flatnonzero(np.ptp(people, axis=0) > 0)
    if found.shape[1] != len(varying):
        return None
    fit = np.array([[best_move(column, people[:, at]).likelihood for at in varying] for column in found.T])
    fit = np.maximum(fit, -1e9)
    rows, columns = linear_sum_assignment(fit, maximize=True)
    margin, total = np.inf, fit[rows, columns].sum()
    for i, j in zip(rows, columns, strict=True) if len(rows) > 1 else ():
        without = fit.copy()
        without[i, j] = -1e12
        margin = min(margin, float(total - without[linear_sum_assignment(without, maximize=True)].sum()))
    order = rows[np.argsort(columns)]
    best = unmixed(found[:, order], people[:, varying])
    if best.misfit > WELL:  # columns that are mixed may pass for each other: two names swapped, then unmixed, may do
        for i, j in zip(*np.triu_indices(len(order), 1), strict=True):
            swapped = order.copy()
            swapped[[i, j]] = swapped[[j, i]]
            best = max(best, unmixed(found[:, swapped], people[:, varying]), key=lambda tried: tried.likelihood)
    made = np.tile(people.min(axis=0), (len(found), 1))
    made[:, varying] = best.whole * [move.sign for move in best.moves] + [move.shift for move in best.moves]
    return made, best.misfit, min(margin, best.lead, *(move.margin for move in best.moves))


@dataclass(frozen=True)
class Move:
    """sign x column + shift: how likely, how much more likely than the next, and the mean squared deviation."""

    sign: int
    shift: int
    likelihood: float
    margin: float
    misfit: float


@dataclass(frozen=True, eq=False)
class Named:
    """Columns under names, with the sign and origin of each, and their lead over the best other mixture."""

    whole: Array
    moves: list[Move]
    lead: float

    @property
    def likelihood(self) -> float:
        """Of all columns, as if they were independent."""
        return sum(move.likelihood for move in self.moves)

    @property
    def misfit(self) -> float:
        """Of the worst column."""
        return max(move.misfit for move in self.moves)


def unmixed(whole: Array, people: Array) -> Named:
    """Whole multiples of other columns added to each wherever that fits the population's column better.

    Entropy cannot tell age from age less years of schooling, where these go together; the population can.
    """
    whole, width = whole.copy(), whole.shape[1]
    moves = [best_move(whole[:, j], people[:, j]) for j in range(width)]
    lead = np.inf
    for _ in range(4 * width if width > 1 else 0):
        options = [
            (best_move(whole[:, j] + times * whole[:, k], people[:, j]), j, k, times)
            for j in range(width)
            for k in range(width)
            for times in ((-2, -1, 1, 2) if k != j else ())
        ]
        move, j, k, times = max(options, key=lambda option: option[0].likelihood - moves[option[1]].likelihood)
        lead = moves[j].likelihood - move.likelihood
        if lead >= -SURE:  # sampling errors alone make some mixture fit a little better
            break
        whole[:, j] += times * whole[:, k]
        moves[j] = move
    return Named(whole, moves, lead)


def best_move(column: Array, people: Array) -> Move:
    """The sign and origin with which the shares of a column's values are most like the population's."""
    low, top = int(people.min()), int(max(np.ptp(column), np.ptp(people))) + 1
    if top > LONGEST:
        return Move(1, 0, -np.inf, 0.0, np.inf)
    theirs = np.bincount(people - low, minlength=top)
    span = range(-(top - 1), top) if top < 400 else range(-200, 201)
    tried: list[tuple[float, float, int, int]] = []
    for sign in (1, -1):
        start = int((sign * column).min())
        mine = np.bincount(sign * column - start, minlength=top)
        for shift in span:
            a, b = np.zeros((2, top + abs(shift)), dtype=np.int64)
            a[max(0, shift) : max(0, shift) + top], b[max(0, -shift) : max(0, -shift) + top] = mine, theirs
            seen = (a + b) > 0
            fits = share_fit(a[seen], len(column), b[seen], len(people))
            tried.append((float(fits.sum()), float(-2 * fits.mean()), sign, low + shift - start))
    tried.sort(key=lambda one: -one[0])
    best, misfit, sign, shift = tried[0]
    # where most values occur once or twice, shares say little, and their likelihood is not one
    told = len(people) >= DENSE * np.count_nonzero(theirs)
    return Move(sign, shift, best, best - tried[1][0] if told else 0.0, misfit)


def same_rows(values: Array, rng: np.random.Generator, tolerance: float = 1e-5) -> tuple[Array, Array, Array]:
    """Which distinct row each row is, the distinct rows (most frequent first), their counts; up to float32 rounding.

    Rows are the same if three random projections of them lie in the same run of values without a gap.
    """
    runs = []
    for direction in rng.standard_normal((3, values.shape[1])):
        line = values @ direction
        order = np.argsort(line, kind="stable")
        scale = np.abs(values).max() * np.linalg.norm(direction)
        run = np.empty(len(line), dtype=np.int64)
        run[order] = np.concatenate([[0], np.cumsum(np.diff(line[order]) > tolerance * scale)])
        runs.append(run)
    _, first, where, counts = np.unique(
        np.stack(runs, axis=1), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[where.ravel()], values[first[order]], counts[order]


def share_fit(count: Array, total: int, other: Array, other_total: int) -> Array:
    """Log-likelihood that two counts are of one share, with the variance-stabilising root."""
    gap = np.arcsin(np.sqrt(count / total)) - np.arcsin(np.sqrt(other / other_total))
    return -2 * gap**2 / (1 / total + 1 / other_total)
