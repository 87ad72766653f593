"""Vertical data: the same people, different columns at different parties.

A `Table` is what a loader reads: one matrix of people by columns. A partitioner deals its columns out to parties and
gives a `VerticalDataset`, which is what protocols run on. Both are immutable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np

from vflaudit.errors import InputError, unknown

Array = np.ndarray
Task = Literal["classification", "regression"]
SPLITS = ("train", "validation", "test")


def frozen(array: Array) -> Array:
    """A private, contiguous, read-only copy."""
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy


@dataclass(frozen=True)
class Column:
    """One column. Categories are integer codes into `categories`; an indicator is one cell of a one-hot `group`."""

    name: str
    kind: Literal["numeric", "categorical", "indicator"] = "numeric"
    categories: tuple[str, ...] = ()
    group: str | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """People by columns, before anybody splits it. `image` is (height, width) when the columns are pixels."""

    name: str
    columns: tuple[Column, ...]
    values: Array
    labels: Array
    task: Task
    classes: tuple[str, ...] = ()
    image: tuple[int, ...] | None = None
    ids: Array | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        values, labels = np.asarray(self.values, dtype=np.float64), np.asarray(self.labels)
        if values.ndim != 2 or values.shape != (len(labels), len(self.columns)):
            raise InputError(
                f"dataset {self.name!r}: {values.shape} values for {len(labels)} labels and {len(self.columns)} columns"
            )
        if len({column.name for column in self.columns}) != len(self.columns):
            raise InputError(f"dataset {self.name!r}: two columns share a name")
        if not np.isfinite(values).all():
            row, col = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"dataset {self.name!r}: column {self.columns[col].name!r} has a missing or infinite value in row {row}"
            )
        if self.task == "classification":
            labels = labels.astype(np.int64)
            if len(labels) and (labels.min() < 0 or labels.max() >= len(self.classes)):
                raise InputError(f"dataset {self.name!r}: a label is not one of the {len(self.classes)} classes")
        else:
            labels = labels.astype(np.float64)
            if not np.isfinite(labels).all():
                raise InputError(f"dataset {self.name!r}: a label is missing or infinite")
        ids = np.arange(len(labels)).astype(str) if self.ids is None else np.asarray(self.ids).astype(str)
        if len(np.unique(ids)) != len(labels):
            raise InputError(f"dataset {self.name!r}: row ids are not unique")
        object.__setattr__(self, "values", frozen(values))
        object.__setattr__(self, "labels", frozen(labels))
        object.__setattr__(self, "ids", frozen(ids))

    def take(self, rows: Array) -> Table:
        """The same table with only these rows, in this order."""
        assert self.ids is not None
        return replace(self, values=self.values[rows], labels=self.labels[rows], ids=self.ids[rows])


@dataclass(frozen=True, eq=False)
class Block:
    """One party's columns. A row that the party does not hold has `present` False and zeros as values."""

    columns: tuple[Column, ...]
    values: Array
    present: Array
    image: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        present = np.asarray(self.present, dtype=bool)
        values = np.where(present[:, None], np.asarray(self.values, dtype=np.float64), 0.0)
        if values.shape != (len(present), len(self.columns)):
            raise InputError(f"a party's {values.shape} values do not fit its {len(self.columns)} columns")
        object.__setattr__(self, "values", frozen(values))
        object.__setattr__(self, "present", frozen(present))

    @property
    def width(self) -> int:
        """How many columns the party holds."""
        return len(self.columns)

    def groups(self) -> dict[str, list[int]]:
        """Positions of the one-hot columns, by the categorical column they came from."""
        found: dict[str, list[int]] = {}
        for position, column in enumerate(self.columns):
            if column.kind == "indicator" and column.group is not None:
                found.setdefault(column.group, []).append(position)
        return found


@dataclass(frozen=True, eq=False)
class VerticalDataset:
    """Per-party blocks over the same rows, labels at one party, a split, and a pool of rows that no party ever holds.

    The pool (`aux`) is a dataset of its own with the same columns; a `DistributionSample` draws from it and from
    nothing else, so that what an adversary knows beforehand never overlaps with what it attacks.
    """

    name: str
    task: Task
    blocks: Mapping[str, Block]
    labels: Array
    ids: Array
    split: Mapping[str, Array]
    label_owner: str = "label_owner"
    classes: tuple[str, ...] = ()
    aux: VerticalDataset | None = None
    encoded: bool = False
    standardised: bool = False
    notes: str = ""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise InputError(f"dataset {self.name!r}: no party holds any column")
        for party, block in self.blocks.items():
            if len(block.present) != len(self.labels):
                raise InputError(
                    f"dataset {self.name!r}: party {party!r} has {len(block.present)} rows, not {len(self.labels)}"
                )
        object.__setattr__(self, "blocks", MappingProxyType(dict(self.blocks)))
        object.__setattr__(self, "labels", frozen(self.labels))
        object.__setattr__(self, "ids", frozen(self.ids))
        object.__setattr__(self, "split", MappingProxyType({name: frozen(rows) for name, rows in self.split.items()}))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that hold columns, in order."""
        return tuple(self.blocks)

    def block(self, party: str) -> Block:
        """One party's columns; an unknown name is an error that tells the nearest."""
        if party not in self.blocks:
            raise unknown("party with columns", party, self.blocks)
        return self.blocks[party]

    def cluster(self, party: str) -> tuple[str, ...]:
        """The parties that hold the same columns as this one, itself included (vFedSec 2.1: a client cluster)."""
        columns = self.block(party).columns
        return tuple(name for name, block in self.blocks.items() if block.columns == columns)

    def cluster_values(self, party: str) -> Array:
        """This party's columns for every row, whichever party of its cluster holds it; zeros where none does."""
        values = np.zeros(self.block(party).values.shape)
        for name in self.cluster(party):
            block = self.blocks[name]
            values[block.present] = block.values[block.present]
        return values

    def aligned(self, part: str = "train") -> Array:
        """Rows of a split of which every column is held by somebody: what a protocol without unaligned rows uses."""
        held: dict[tuple[Column, ...], Array] = {}
        for block in self.blocks.values():
            held[block.columns] = held.get(block.columns, False) | block.present
        present = np.logical_and.reduce(list(held.values()))
        rows = self.split[part]
        return rows[present[rows]]

    def rename(self, names: Mapping[str, str], label_owner: str | None = None) -> VerticalDataset:
        """The same data with other party names (protocols speak of guests, hosts or passive parties)."""
        owner = label_owner or names.get(self.label_owner, self.label_owner)
        blocks = {names.get(party, party): block for party, block in self.blocks.items()}
        aux = self.aux.rename(names, label_owner) if self.aux is not None else None
        return replace(self, blocks=blocks, label_owner=owner, aux=aux)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content and the order of everything: values, labels, ids, split, presence, names, pool."""
        digest = hashlib.sha256()

        def add(*parts: object) -> None:
            for part in parts:
                if isinstance(part, np.ndarray):
                    digest.update(f"{part.dtype.str}{part.shape}".encode())
                    digest.update(np.ascontiguousarray(part).tobytes())
                else:
                    digest.update(repr(part).encode() + b"\x00")

        add(self.name, self.task, self.label_owner, self.classes, self.encoded, self.standardised)
        add(self.labels, self.ids)
        for party, block in self.blocks.items():
            add(party, block.columns, block.image, block.values, block.present)
        for part, rows in self.split.items():
            add(part, rows)
        add(self.aux.fingerprint if self.aux is not None else None)
        return digest.hexdigest()[:16]
