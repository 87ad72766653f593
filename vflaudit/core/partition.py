"""Dealing columns out to parties: a partitioner maps a table to {party: column positions}, each column to one party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vflaudit.core.dataset import Table
from vflaudit.errors import InputError, unknown

Partition = dict[str, list[int]]


def client_names(count: int) -> list[str]:
    """client1, client2, ... (protocols rename them to their own words)."""
    return [f"client{number}" for number in range(1, count + 1)]


def _enough(table: Table, parties: int) -> None:
    if not 1 <= parties <= len(table.columns):
        raise InputError(
            f"dataset {table.name!r} has {len(table.columns)} columns, too few or too many parties asked for: {parties}"
        )


def round_robin(table: Table, parties: int, rng: np.random.Generator) -> Partition:
    """Permute the columns, then deal them out in turn (RAP 4.1)."""
    _enough(table, parties)
    order = rng.permutation(len(table.columns))
    return {name: sorted(order[start::parties].tolist()) for start, name in enumerate(client_names(parties))}


def one_feature(table: Table, parties: int, rng: np.random.Generator, *, count: int) -> Partition:
    """Permute the columns, give `count` clients one each, and deal the rest out to the others in turn (RAP 4.2)."""
    _enough(table, parties)
    others, left = parties - count, len(table.columns) - count
    if not 0 <= count <= parties or left < 2 * others or (others == 0 and left > 0):
        raise InputError(
            f"dataset {table.name!r}: {len(table.columns)} columns cannot be dealt to {count} clients with one column "
            f"and {others} with more"
        )
    order, names = rng.permutation(len(table.columns)), client_names(parties)
    single = {name: [int(column)] for name, column in zip(names, order[:count], strict=False)}
    return single | {name: sorted(order[count:][k::others].tolist()) for k, name in enumerate(names[count:])}


def equal_blocks(table: Table, parties: int) -> Partition:
    """Consecutive blocks of (almost) equal width (FedOnce's equal division)."""
    _enough(table, parties)
    blocks = np.array_split(np.arange(len(table.columns)), parties)
    return {name: block.tolist() for name, block in zip(client_names(parties), blocks, strict=True)}


def by_name(table: Table, columns: Mapping[str, Sequence[str]]) -> Partition:
    """Columns by name (vFedSec, APC-VFL, a user's own split). Columns that nobody names are left out."""
    position = {column.name: index for index, column in enumerate(table.columns)}
    owner: dict[str, str] = {}
    for party, names in columns.items():
        if not names:
            raise InputError(f"party {party!r} is given no column")
        for name in names:
            if name not in position:
                raise unknown(f"column of dataset {table.name!r}", name, position)
            if name in owner:
                raise InputError(f"column {name!r} is given twice: to {owner[name]!r} and to {party!r}")
            owner[name] = party
    return {party: [position[name] for name in names] for party, names in columns.items()}


def _pixels(table: Table) -> np.ndarray:
    if table.image is None:
        raise InputError(f"dataset {table.name!r} is not made of images: use round-robin or equal-blocks")
    return np.arange(len(table.columns)).reshape(table.image)


def image_quadrants(table: Table) -> Partition:
    """Four parties, a quarter of each image each."""
    grid = _pixels(table)
    halves = [half for band in np.array_split(grid, 2, axis=0) for half in np.array_split(band, 2, axis=1)]
    return {name: half.ravel().tolist() for name, half in zip(client_names(4), halves, strict=True)}


def image_slices(table: Table, parties: int) -> Partition:
    """Horizontal bands of each image (vFedSec A.1: four slices of 7x28)."""
    grid = _pixels(table)
    if not 1 <= parties <= grid.shape[0]:
        raise InputError(f"images of {grid.shape[0]} rows cannot be cut into {parties} slices")
    bands = np.array_split(grid, parties, axis=0)
    return {name: band.ravel().tolist() for name, band in zip(client_names(parties), bands, strict=True)}


def importance_biased(
    table: Table, parties: int, rng: np.random.Generator, *, alpha: float, dominant: int | None = None
) -> Partition:
    """Give the first party a share `alpha` of the dominant columns (FedOnce 5.5).

    The paper ranks columns by XGBoost importance and leaves the number of dominant ones open (top-p); here an ensemble
    of extremely randomised trees ranks them and a quarter of the columns is dominant by default. The rest is dealt at
    random so that parties hold (almost) equally many columns. The ranking is fitted on the whole table: it decides who
    holds what, never what is learned.
    """
    _enough(table, parties)
    if parties < 2 or not 0 <= alpha <= 1:
        raise InputError(
            f"an importance-biased split needs two parties or more and alpha in 0..1, not {parties} and {alpha}"
        )
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    trees = ExtraTreesClassifier if table.task == "classification" else ExtraTreesRegressor
    model = trees(n_estimators=100, random_state=int(rng.integers(2**31)), n_jobs=1).fit(table.values, table.labels)
    total = len(table.columns)
    count = dominant if dominant is not None else max(1, total // 4)
    top = rng.permutation(np.argsort(-model.feature_importances_)[:count])
    rest = rng.permutation(np.setdiff1d(np.arange(total), top))
    sizes = [len(part) for part in np.array_split(np.arange(total), parties)]
    first = round(alpha * len(top))
    if first > sizes[0]:
        raise InputError(f"{first} dominant columns do not fit the {sizes[0]} columns of the first party")
    hands = [list(top[:first]), *[list(part) for part in np.array_split(top[first:], parties - 1)]]
    for hand, size in zip(hands, sizes, strict=True):
        need = max(0, size - len(hand))
        hand.extend(rest[:need])
        rest = rest[need:]
    hands[-1].extend(rest)
    return {name: sorted(int(i) for i in hand) for name, hand in zip(client_names(parties), hands, strict=True)}
