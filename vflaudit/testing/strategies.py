"""Hypothesis strategies: small random tables and vertical datasets of every kind that a protocol must cope with.

from hypothesis import given
@given(data=vertical_datasets(overlap=True))
def test_mine(data): assert_isolated(MyProtocol().run(data), va.Adversary({"server"}))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from vflaudit.core.dataset import Array, Column, Table, Task, VerticalDataset
from vflaudit.core.loading import load_dataset

TASKS: tuple[Task, ...] = ("classification", "regression")


@st.composite
def tables(
    draw: st.DrawFn,
    *,
    min_columns: int = 1,
    max_columns: int = 7,
    min_rows: int = 24,
    max_rows: int = 60,
    tasks: tuple[Task, ...] = TASKS,
) -> Table:
    """Tables with numeric, constant, copied and categorical columns, duplicate people, two or three classes.

    @given(table=tables(min_columns=2))
    def test_partition(table):
        assert set(sum(equal_blocks(table, 2).values(), [])) == set(range(len(table.columns)))
    """
    rows = draw(st.integers(min_rows, max_rows))
    width = draw(st.integers(min_columns, max_columns))
    kinds = draw(st.lists(st.sampled_from(("normal", "wide", "constant", "copy", "categorical")), min_size=width))
    kinds = ["normal", *kinds[1:width]]  # one column that is worth learning from
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns: list[Column] = []
    values = np.empty((rows, width))
    for position, kind in enumerate(kinds):
        column, values[:, position] = _column(position, kind, values, rng)
        columns.append(column)
    if draw(st.booleans()):
        values[-1] = values[0]  # two people with the same features
    task = draw(st.sampled_from(tasks))
    if task == "regression":
        labels: Array = values[:, 0] + rng.normal(size=rows)
        return Table("random", tuple(columns), values, labels, task)
    count = draw(st.integers(2, 3))
    labels = (np.argsort(np.argsort(values[:, 0] + rng.normal(size=rows))) * count) // rows
    return Table("random", tuple(columns), values, labels, task, classes=tuple(f"class {k}" for k in range(count)))


def _column(position: int, kind: str, values: Array, rng: np.random.Generator) -> tuple[Column, Array]:
    rows = len(values)
    if kind == "categorical":
        count = int(rng.integers(2, 5))
        return Column(f"c{position}", "categorical", tuple("abcd"[:count])), rng.integers(count, size=rows)
    if kind == "constant":
        return Column(f"x{position}"), np.full(rows, rng.normal())
    if kind == "copy":
        return Column(f"x{position}"), 2 * values[:, 0] - 1
    scale = 1e4 if kind == "wide" else 1.0
    return Column(f"x{position}"), scale * rng.normal(size=rows)


@st.composite
def vertical_datasets(
    draw: st.DrawFn,
    *,
    max_parties: int = 4,
    overlap: bool = True,
    tasks: tuple[Task, ...] = TASKS,
    **sizes: Any,
) -> VerticalDataset:
    """Vertical datasets with one party or more, unequal widths, rows that some parties miss, with or without a pool.

    @given(data=vertical_datasets(max_parties=3, overlap=False))
    def test_mine(data):
        assert_secrets_do_not_matter(MyProtocol().run(data), va.Adversary({"server"}))

    Every dataset has four rows or more to train on; `sizes` go to `tables`.
    """
    table = draw(tables(tasks=tasks, **sizes))
    parties = draw(st.integers(1, min(max_parties, len(table.columns))))
    cuts = sorted(
        draw(st.sets(st.integers(1, len(table.columns) - 1), min_size=parties - 1, max_size=parties - 1))
        if parties > 1
        else []
    )
    hands = np.split(np.arange(len(table.columns)), cuts)
    split = {f"client{k}": [table.columns[i].name for i in hand] for k, hand in enumerate(hands, start=1)}
    share = draw(st.sampled_from((1.0, 0.9, 0.8))) if overlap else 1.0
    owner = draw(st.sampled_from(("label_owner", "client1")))
    seed, aux = draw(st.integers(0, 1000)), draw(st.sampled_from((0.0, 0.3)))
    while True:
        data = load_dataset(table, split=split, aux=aux, overlap=share, label_owner=owner, seed=seed)
        if len(data.aligned("train")) >= 4:
            return data
        share = (1 + share) / 2 if share < 0.99 else 1.0  # too many rows are missing somewhere
