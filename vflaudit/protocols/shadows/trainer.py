"""What a view carries to train shadows: a protocol's public side, and no way back to its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from defenses.base import Defense
from vflaudit.core.adversary import Rows
from vflaudit.core.dataset import Array, Block, VerticalDataset
from vflaudit.core.run import Model, ProtocolSpec
from vflaudit.core.shadows import ShadowModels
from vflaudit.errors import InputError

if TYPE_CHECKING:
    from vflaudit.protocols.base import Protocol

LARGEST_CHUNK = 64  # shadows that are trained together
CHUNK_CELLS = 2**24  # and cells of all their tables together, which bounds the memory


@dataclass(frozen=True)
class Trainer:
    """A protocol's class, parameters and defenses, and what is public of its data. Called by `ProtocolSpec`."""

    kind: type[Protocol]
    parameters: Mapping[str, Any]
    defenses: tuple[Defense, ...]
    dataset: str  # its name: a protocol may have parameters by dataset
    images: Mapping[str, tuple[int, ...] | None]

    def __call__(self, spec: ProtocolSpec, rows: Rows, members: Array, seeds: Sequence[int]) -> ShadowModels:
        """Train one shadow per line of `members` (shadows, rows) on the rows that it marks, with its seed."""
        protocol, pool = self.kind(**self.parameters), self.pool(spec, rows)
        members = np.asarray(members)
        if members.dtype != bool or members.ndim != 2 or members.shape[1] != len(pool):
            raise InputError(
                f"shadow training: members are {members.dtype} of shape {members.shape}, "
                f"expected booleans of shape (shadows, {len(pool)})"
            )
        if len(seeds) != len(members):
            raise InputError(f"shadow training: {len(seeds)} seeds for {len(members)} shadows, expected one each")
        if not members.any(axis=1).all():
            raise InputError("shadow training: a shadow has no row to train on")
        models: list[Model] = []
        for chunk in _chunks(len(members), len(pool) * sum(block.width for block in pool.blocks.values())):
            sessions = [
                protocol.session(self.shadow(pool, members[i]), int(seeds[i]), self.defenses, spec.parties)
                for i in chunk
            ]
            models += protocol.train_many(sessions) if self._its_own() else protocol.train_one_by_one(sessions)
        return ShadowModels(tuple(models))

    def _its_own(self) -> bool:
        """Whether `train_many` belongs to `execute`: a subclass that only has another `execute` must not inherit it."""
        owners = {
            name: next(place for place, part in enumerate(self.kind.__mro__) if name in vars(part))
            for name in ("train_many", "execute")
        }
        return owners["train_many"] <= owners["execute"]

    def pool(self, spec: ProtocolSpec, rows: Rows) -> VerticalDataset:
        """The adversary's rows as prepared data: they are in the units of the protocol's input already."""
        missing = [party for party in spec.columns if party not in rows.features]
        if missing:
            raise InputError(f"shadow training needs the columns of every party: those of {missing[0]!r} are unknown")
        if rows.labels is None:
            raise InputError("shadow training needs labels: the rows have none")
        blocks = {}
        for party, columns in spec.columns.items():
            cluster = [name for name, theirs in spec.columns.items() if theirs == columns]
            # parties with the same columns hold different people (vFedSec 2.1): the rows are dealt to them in turn
            present = np.arange(len(rows.labels)) % len(cluster) == cluster.index(party)
            blocks[party] = Block(columns, rows.features[party], present, self.images.get(party))
        return VerticalDataset(
            name=self.dataset,
            task=spec.task,  # type: ignore[arg-type]
            blocks=blocks,
            labels=rows.labels,
            ids=np.arange(len(rows.labels)).astype(str),
            split={"train": np.arange(0), "validation": np.arange(0), "test": np.arange(0)},
            label_owner=spec.label_owner,
            classes=spec.classes,
            encoded=True,
            standardised=spec.standardised,
        )

    def shadow(self, pool: VerticalDataset, members: Array) -> VerticalDataset:
        """One shadow's data: it trains on its members; the others are its validation and test rows, in turn."""
        others = np.flatnonzero(~members)
        split = {"train": np.flatnonzero(members), "validation": others[1::2], "test": others[::2]}
        return replace(pool, split=split)


def _chunks(shadows: int, cells: int) -> Iterator[range]:
    """Runs of shadows to train together."""
    size = max(1, min(LARGEST_CHUNK, CHUNK_CELLS // max(1, cells)))
    for start in range(0, shadows, size):
        yield range(start, min(shadows, start + size))
