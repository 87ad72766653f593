"""Small worlds for the tests of membership: data to learn by heart, and runs that cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import vflaudit as va
from vflaudit.core.adversary import Rows
from vflaudit.core.dataset import Column, Table, VerticalDataset
from vflaudit.core.preprocess import encode
from vflaudit.core.run import Model, ProtocolSpec, Run
from vflaudit.core.shadows import ShadowModels
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire


def noise_table(seed: int, rows: int = 260, classes: int = 3, **more: Any) -> VerticalDataset:
    """Labels that have nothing to do with the columns: a model can only learn them by heart."""
    rng = np.random.default_rng(seed)
    columns, names = tuple(Column(f"x{k}") for k in range(12)), tuple(str(k) for k in range(classes))
    values, labels = rng.standard_normal((rows, 12)), rng.integers(classes, size=rows)
    table = Table("noise", columns, values, labels, "classification" if classes > 1 else "regression", names)
    return va.load_dataset(table, parties=3, seed=seed, **more)


class Linear:
    """Softmax of a random linear map: a model that was trained on nothing."""

    def __init__(self, seed: int, classes: int) -> None:
        self.seed, self.classes = seed, classes

    def __call__(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        joined = np.hstack(list(features.values()))
        map_ = np.random.default_rng(self.seed).standard_normal((joined.shape[1], self.classes))
        power = np.exp(joined @ map_)
        return power / power.sum(axis=1, keepdims=True)


class Pretended:
    """A trainer whose shadows are random maps; it counts how often it is asked."""

    calls = 0

    def __call__(self, spec: Any, rows: Rows, members: np.ndarray, seeds: Sequence[int]) -> ShadowModels:
        type(self).calls += 1
        return ShadowModels(tuple(Model(Linear(seed % 2**32, len(spec.classes))) for seed in seeds))


def untrained_run(seed: int, rows: int = 260, **more: Any) -> Run:
    """A finished run whose model has seen nobody: members and others are exchangeable."""
    data = encode(noise_table(seed, rows, **more))
    parties = ("server", *data.parties, data.label_owner)
    columns = {party: block.columns for party, block in data.blocks.items()}
    spec = ProtocolSpec(
        "nothing", {}, parties, columns, data.task, data.classes, data.label_owner, len(data), True, Pretended()
    )
    wire = Wire(parties, Transcript())
    model = Model(Linear(seed, len(data.classes)))
    return Run(spec, data, wire.transcript, {}, model, wire.costs, {}, seed)
