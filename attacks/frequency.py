"""Reading categories through a linear map: identical rows stay identical, and sums stay sums.

RAP 2.3 turns categories into one-hot columns and multiplies them by a private matrix. Equal rows have equal images, so
the server sees who shares a category with whom, exactly, and how often each combination occurs. Images of one-hot rows
add up: where two people differ in one attribute only, the difference is the same for everybody else who differs in it.
Frequencies of other people then name the combinations, and the sums check the names.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.label_codes import doubly_stochastic, invariants_elsewhere
from attacks.lattice import read_whole_numbers, same_rows, share_fit
from vflaudit.core.dataset import Array, Column
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.view import View

CONVINCING = 0.99  # share of rows that decode to one category per attribute
MISFIT = 9.0  # mean squared deviation of category shares above which it is another population


class FrequencyAnalysis(FeatureAttack):
    """Name categories and whole numbers behind a linear map by their frequencies among other people.

    One-hot columns are checked by their sums: rows that the map shows as a sum of others must be one.

    Numeric columns beside the categories are first projected out: differences of rows that share all categories lie in
    the span of the numeric columns' images, which random sampling of rows finds if a combination is common enough.
    Numeric columns themselves are guessed from the categories. A party that has whole numbers only is read through the
    lattice of its rows (`attacks/lattice.py`). Where categories cannot be told apart, the guess is
    their posterior mean; where the frequencies do not fit the population at all, it is the population's mean.
    """

    name: ClassVar[str] = "frequency-analysis"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            "other rows of the same population (--knows distribution=2000)",
            lambda view: view.knowledge.distribution is not None,
        ),
    )
    beam: int = Field(300, ge=1, description="partial namings kept while combinations are matched")
    trials: int = Field(20_000, ge=1, description="samples of rows to find the numeric columns' directions")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        pool = view.knowledge.distribution
        assert pool is not None
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {}
        checks = []
        for party in self.victims(view):
            table = view.table_of(party)
            values, note = self._party(view, party, np.asarray(table.values, dtype=np.float64), seed)
            features[party], notes[party] = RowGuess(table.rows, values, shuffled=table.shuffled), note
            checks.append(note["verified"])
        return {"features": features, "verified": all(checks), "notes": notes}

    def _party(self, view: View, party: str, sent: Array, seed: int) -> tuple[Array, dict[str, Any]]:
        pool = view.knowledge.distribution
        assert pool is not None
        people, groups = pool.features[party], one_hot_groups(view.spec.columns[party])
        mean = np.tile(people.mean(axis=0), (len(sent), 1))
        if not groups:
            whole, told = read_whole_numbers(sent, people, stream(seed, "attack", self.name, party))
            return (mean if whole is None else whole), told
        hot = np.concatenate(groups)
        numeric = np.setdiff1d(np.arange(people.shape[1]), hot)
        rng = stream(seed, "attack", self.name, party)
        discrete = without_directions(sent, len(numeric), self.trials, rng) if len(numeric) else sent
        if discrete is None:
            return mean, {"verified": False, "result": "the numeric columns' directions were not found"}
        where, rows, counts = same_rows(discrete, rng)
        if len(rows) > len(sent) / 2:
            return mean, {"verified": False, "result": "rows do not repeat", "distinct_rows": len(rows)}
        codes = np.stack([people[:, group].argmax(axis=1) for group in groups], axis=1)
        widths = [len(group) for group in groups]
        if len(groups) > 1:
            decoded, valid = match(rows, counts, codes, widths, self.beam)
        else:  # no sums to check: every distinct row is a category
            decoded, valid = (np.arange(len(rows))[:, None], 1.0) if len(rows) <= widths[0] else (None, 0.0)
        note: dict[str, Any] = {"distinct_rows": len(rows), "rows_that_decode": valid}
        if decoded is None:
            return mean, note | {"verified": False, "result": "no naming is consistent with the sums"}
        marks = invariants_elsewhere(view, party)
        chances, misfit, sure = name_groups(decoded[where], codes, widths, marks)
        note |= {"misfit": misfit, "categories_told_apart": sure}
        if misfit > MISFIT:
            return mean, note | {"verified": False, "result": "frequencies do not fit the population"}
        guess = mean.copy()
        for group, chance, column in zip(groups, chances, decoded[where].T, strict=True):
            guess[:, group] = chance[column]
        if len(numeric):
            guess[:, numeric] = _regress(people[:, hot], people[:, numeric], guess[:, hot])
        checked = len(groups) > 1 and valid >= CONVINCING and sure >= CONVINCING
        return guess, note | {"verified": bool(checked), "result": "named"}


def one_hot_groups(columns: tuple[Column, ...]) -> list[Array]:
    """Positions of the indicators of each categorical column."""
    found: dict[str, list[int]] = {}
    for position, column in enumerate(columns):
        if column.kind == "indicator" and column.group is not None:
            found.setdefault(column.group, []).append(position)
    return [np.array(group) for group in found.values()]


def without_directions(values: Array, count: int, trials: int, rng: np.random.Generator) -> Array | None:
    """The rows projected on the complement of `count` directions, chosen so that many rows then coincide.

    Each trial takes count + 1 rows; if they share all categories, their differences span the numeric columns' images,
    and other rows of that combination coincide with them after the projection.
    """
    if count >= values.shape[1]:
        return None
    left, sizes, _ = np.linalg.svd(values, full_matrices=False)
    rank = int((sizes > sizes[0] * 1e-6).sum())
    white = left[:, :rank] * np.sqrt(len(values))
    best, most = None, 0
    probe = white[rng.permutation(len(white))[:200]]
    for start in range(0, trials, 500):
        picks = rng.integers(len(white), size=(min(500, trials - start), count + 1))
        differences = white[picks[:, 1:]] - white[picks[:, :1]]
        basis = np.linalg.qr(np.swapaxes(differences, 1, 2))[0]  # trials x rank x count
        offsets = probe[None] - white[picks[:, :1]]
        rest = offsets - np.einsum("tpc,trc->tpr", np.einsum("tpr,trc->tpc", offsets, basis), basis)
        inside = (np.abs(rest).max(axis=2) < 1e-3 * np.sqrt(rank)).sum(axis=1)
        at = int(inside.argmax())
        if inside[at] > most:
            best, most = basis[at], int(inside[at])
        if most > max(20, 0.2 * len(probe)):
            break
    if best is None or most < count + 8:  # by chance alone no row beyond the sample's own coincides
        return None
    complement = np.linalg.svd(best, full_matrices=True)[0][:, count:]
    return white @ complement


Paths = tuple[Array, Array]  # partial namings: one-hot rows (paths x placed rows x columns) and their scores


def match(rows: Array, counts: Array, codes: Array, widths: list[int], beam: int) -> tuple[Array | None, float]:
    """Categories of every distinct row, and the share of people whose row decodes to one category per attribute.

    Distinct rows are placed most frequent first, except that a row in the span of placed ones comes at once: it must be
    the same combination of their one-hot rows, which is a check. Independent rows branch over combinations of the pool
    with a similar frequency.
    """
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    rank = min(int((sizes > sizes[0] * 1e-5).sum()), sum(widths) - len(widths) + 1)
    points = left[:, :rank] * np.sqrt(len(rows))
    seen, seen_counts = _combinations(codes, widths)
    hot = np.hstack([np.eye(width)[seen[:, at]] for at, width in enumerate(widths)])
    table = {tuple(row): int(count) for row, count in zip(seen.tolist(), seen_counts, strict=True)}
    fit = share_fit(counts[:, None], counts.sum(), seen_counts[None], len(codes))
    order = _order(points, rank, limit=max(4 * rank, 60))
    paths, placed = (np.zeros((1, 0, sum(widths))), np.zeros(1)), list[int]()
    for row, weights in order:
        if weights is None:
            paths = _branch(paths, hot, fit[row], beam)
            placed.append(row)
        else:
            paths = _check(paths, weights, widths, table, (int(counts[row]), int(counts.sum()), len(codes)))
        if len(paths[1]) == 0:
            return None, 0.0
    basis = points[placed]
    if len(placed) < rank:
        return None, 0.0
    mixing = np.linalg.solve(basis.T, points.T).T
    best, best_key, best_valid = None, (-np.inf, -np.inf), 0.0
    for cells, score in zip(*paths, strict=True):
        images = mixing @ cells
        good = _valid(images, widths)
        valid = float(counts[good].sum() / counts.sum())
        if (round(valid, 3), score) > best_key:
            best_key, best_valid = (round(valid, 3), score), valid
            best = np.stack([part.argmax(axis=1) for part in np.split(images, np.cumsum(widths)[:-1], axis=1)], axis=1)
    return best, best_valid


def _combinations(codes: Array, widths: list[int]) -> tuple[Array, Array]:
    """Combinations of categories and their counts in the pool: all that are possible, or, if too many, all seen."""
    seen, counts = np.unique(codes, axis=0, return_counts=True)
    if np.prod(widths, dtype=np.float64) > 5000:
        return seen, counts
    every = np.indices(widths).reshape(len(widths), -1).T
    found = np.zeros(len(every), dtype=np.int64)
    found[np.ravel_multi_index(tuple(seen.T), tuple(widths))] = counts
    return every, found


def _order(points: Array, rank: int, limit: int) -> list[tuple[int, Array | None]]:
    """Independent rows by frequency, each followed by the rows that it brings into the span, with their weights.

    Among the frequent rows the next independent one is that which brings most others into the span.
    """
    frequent, order = points[:limit], list[tuple[int, Array | None]]()
    placed, todo = list[int](), list(range(len(points)))
    base = np.zeros((0, points.shape[1]))

    def outside(rows: Array, basis: Array) -> Array:
        return np.linalg.norm(rows - rows @ basis.T @ basis, axis=1) / np.linalg.norm(rows, axis=1)

    while len(placed) < rank:
        fresh = [row for row, gap in zip(todo, outside(points[todo], base), strict=True) if gap > 1e-2]
        if not fresh:
            break
        gains = [int((outside(frequent, _extend(base, points[row])) < 1e-3).sum()) for row in fresh[:12]]
        row = fresh[int(np.argmax(gains))]
        base = _extend(base, points[row])
        placed.append(row)
        todo.remove(row)
        order.append((row, None))
        for other in [other for other in todo if other < limit and outside(points[[other]], base)[0] < 1e-3]:
            weights, *_ = np.linalg.lstsq(points[placed].T, points[other], rcond=None)
            order.append((other, weights))
            todo.remove(other)
    return order


def _extend(base: Array, row: Array) -> Array:
    rest = row - row @ base.T @ base
    rest = rest - rest @ base.T @ base
    return np.vstack([base, rest / np.linalg.norm(rest)])


def _branch(paths: Paths, hot: Array, fit: Array, beam: int) -> Paths:
    """Every path with every similarly frequent combination that is, like the row itself, outside the span so far."""
    likely = np.argsort(-fit, kind="stable")[: max(20, int((fit > -12.5).sum()))]
    scores = paths[1][:, None] + fit[likely]
    if paths[0].shape[1]:
        basis = np.linalg.qr(np.swapaxes(paths[0], 1, 2))[0]  # paths x width x placed
        inside = np.einsum("ow,pwk->pok", hot[likely], basis)
        scores[(inside**2).sum(axis=2) > (hot[likely] ** 2).sum(axis=1) - 1e-6] = -np.inf
    best = np.argsort(-scores, axis=None, kind="stable")[:beam]
    path, option = np.unravel_index(best[np.isfinite(scores.ravel()[best])], scores.shape)
    cells = np.concatenate([paths[0][path], hot[likely][option][:, None]], axis=1)
    return (cells, scores[path, option])


def _valid(images: Array, widths: list[int]) -> Array:
    """Rows with one category per attribute, within a tenth."""
    good = np.abs(images - images.round()).max(axis=-1) < 0.1
    for part in np.split(images.round(), np.cumsum(widths)[:-1], axis=-1):
        good &= (part.max(axis=-1) == 1) & (part.min(axis=-1) >= 0) & (part.sum(axis=-1) == 1)
    return good


def _check(
    paths: Paths, weights: Array, widths: list[int], table: dict[Any, int], sizes: tuple[int, int, int]
) -> Paths:
    """Paths in which the combination of one-hot rows is a one-hot row, scored by its frequency in the pool."""
    images = np.einsum("k,pkw->pw", weights, paths[0])
    kept = np.flatnonzero(_valid(images, widths))
    parts = np.split(images[kept], np.cumsum(widths)[:-1], axis=1)
    codes = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    others = np.array([table.get(tuple(row), 0) for row in codes.tolist()], dtype=np.float64)
    return (paths[0][kept], paths[1][kept] + share_fit(np.array(sizes[0]), sizes[1], others, sizes[2]))


def name_groups(
    decoded: Array, codes: Array, widths: list[int], marks: tuple[Array, Array] | None
) -> tuple[list[Array], float, float]:
    """Per attribute the chance that each decoded category is each category; misfit; share of rows surely named.

    Sums leave the categories of an attribute exchangeable. They are named by shares, by shares together with each
    other attribute, and by the mean leverage at other parties; attributes take turns, given the names of the others.
    """
    from scipy.optimize import linear_sum_assignment

    named, chances = decoded.copy(), [np.eye(width) for width in widths]
    for at in [*range(len(widths))] * (2 if len(widths) > 1 else 1):
        width, others = widths[at], [other for other in range(len(widths)) if other != at]
        if others:
            fit = sum(
                _joint(decoded[:, at], named[:, other], codes[:, [at, other]], width, widths[other]) for other in others
            )
            fit = np.asarray(fit) / len(others)
        else:
            counts = np.bincount(decoded[:, at], minlength=width), np.bincount(codes[:, at], minlength=width)
            fit = share_fit(counts[0][:, None], len(decoded), counts[1][None], len(codes))
        if marks is not None:
            fit = fit + _mark_fit(marks, decoded[:, at], codes[:, at], width)
        chances[at] = doubly_stochastic(fit)
        named[:, at] = linear_sum_assignment(fit, maximize=True)[1][decoded[:, at]]
    misfits, sure = [], []
    for at, width in enumerate(widths):
        counts = np.bincount(named[:, at], minlength=width), np.bincount(codes[:, at], minlength=width)
        misfits.append(-2 * share_fit(counts[0], len(named), counts[1], len(codes)).mean())
        sure.append(float((chances[at].max(axis=1) > 0.95)[decoded[:, at]].mean()))
    return chances, float(max(misfits)), float(min(sure))


def _joint(mine: Array, named: Array, codes: Array, width: int, other: int) -> Array:
    """Log-likelihood of each category's shares together with another attribute, against each category of the pool."""
    counts, others = np.zeros((width, other)), np.zeros((width, other))
    np.add.at(counts, (mine, named), 1)
    np.add.at(others, (codes[:, 0], codes[:, 1]), 1)
    return share_fit(counts[:, None], len(mine), others[None], len(codes)).sum(axis=2)


def _mark_fit(marks: tuple[Array, Array], mine: Array, theirs: Array, width: int) -> Array:
    """Log-likelihood that the mean marks of each category are those of each category of the pool."""
    total = np.zeros((width, width))
    counts = np.bincount(mine, minlength=width), np.bincount(theirs, minlength=width)
    error = 1 / np.maximum(counts[0], 1)[:, None] + 1 / np.maximum(counts[1], 1)
    both = np.outer(counts[0] > 0, counts[1] > 0)
    for sent, people in zip(marks[0].T, marks[1].T, strict=True):
        means = [
            np.bincount(at, weights=column, minlength=width) / np.maximum(count, 1)
            for at, column, count in zip((mine, theirs), (sent, people), counts, strict=True)
        ]
        gap = (means[0][:, None] - means[1]) ** 2 / (error * max(people.var(), 1e-12) * 2)
        total -= np.where(both, np.minimum(gap, 50.0), 0.0)
    return total / marks[0].shape[1]  # leverages of different parties are not independent


def _regress(hot: Array, numbers: Array, guess: Array) -> Array:
    """Numeric columns from the categories, by ridge regression among the pool."""
    centre, mean = hot.mean(axis=0), numbers.mean(axis=0)
    gram = (hot - centre).T @ (hot - centre) + np.eye(hot.shape[1])
    return mean + (guess - centre) @ np.linalg.solve(gram, (hot - centre).T @ (numbers - mean))
