"""Turning columns into what models eat: one-hot for categories, zero mean and unit variance for numbers.

Everything is fitted on training rows that the party holds, then applied to all its rows and to the auxiliary pool, so
known values, messages and guesses share one unit: the unit of the protocol's input.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vflaudit.core.dataset import Array, Block, Column, VerticalDataset


def _one_hot(block: Block) -> Block:
    columns: list[Column] = []
    parts: list[Array] = []
    for position, column in enumerate(block.columns):
        values = block.values[:, position]
        if column.kind != "categorical":
            columns.append(column)
            parts.append(values[:, None])
            continue
        for category in column.categories:
            columns.append(Column(f"{column.name}={category}", "indicator", group=column.name))
        parts.append((values[:, None] == np.arange(len(column.categories))).astype(np.float64))
    return replace(block, columns=tuple(columns), values=np.hstack(parts))


def _scale(block: Block, rows: Array) -> tuple[Array, Array]:
    """Mean and deviation of the numeric columns over these rows; indicators and constants are left as they are."""
    held = block.values[rows[block.present[rows]]]
    numeric = np.array([column.kind == "numeric" for column in block.columns])
    if len(held) == 0:
        return np.zeros(block.width), np.ones(block.width)
    deviation = held.std(axis=0)
    return np.where(numeric, held.mean(axis=0), 0.0), np.where(numeric & (deviation > 1e-12), deviation, 1.0)


def encode(data: VerticalDataset, *, standardise: bool = True) -> VerticalDataset:
    """The dataset as a protocol's input. Encoding twice changes nothing."""
    if data.encoded:
        return data
    blocks = {party: _one_hot(block) for party, block in data.blocks.items()}
    scales = {
        party: _scale(block, data.split["train"]) if standardise else (np.zeros(block.width), np.ones(block.width))
        for party, block in blocks.items()
    }

    def scaled(source: dict[str, Block]) -> dict[str, Block]:
        return {
            party: replace(block, values=(block.values - scales[party][0]) / scales[party][1])
            for party, block in source.items()
        }

    aux = data.aux
    if aux is not None:
        pool = {party: _one_hot(block) for party, block in aux.blocks.items()}
        aux = replace(aux, blocks=scaled(pool), encoded=True, standardised=standardise)
    return replace(data, blocks=scaled(blocks), aux=aux, encoded=True, standardised=standardise)
