"""The algebra of boosted trees: bins, histograms, the best split (Chen and Guestrin 2016), and walking down a forest.

Gradients are whole numbers (fixed point, 24 bits after the point), so their sums are exact in any order: trees grown
over several parties are bit for bit those grown in one place, encrypted or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array

POINT = 2.0**24  # one, in fixed point
LARGEST = 2**31 - 1  # gradients travel as int32; a gradient beyond 127 is cut there


def fixed_point(values: Array) -> Array:
    """To whole numbers that fit 32 bits."""
    return np.clip(np.rint(values * POINT), -LARGEST, LARGEST).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Bins:
    """One party's columns cut at quantiles of its training rows; a split at bin b sends `value <= edges[b]` left."""

    edges: tuple[Array, ...]
    codes: Array  # (rows, columns)

    @classmethod
    def fit(cls, values: Array, train: Array, count: int) -> Bins:
        """At most `count` bins per column."""
        cuts = np.linspace(0, 1, count + 1)[1:-1]
        edges = tuple(np.unique(np.quantile(column, cuts, method="lower")) for column in values[train].T)
        codes = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, values.T, strict=True)]
        return cls(edges, np.stack(codes, axis=1).astype(np.int64))


def histograms(codes: Array, positions: Array, gradients: Array, bins: int) -> Array:
    """Sums of g and h by node, column and bin: (nodes, columns, bins, 2).

    `positions` (rows, trees) says in which node a row is, -1 for none; `gradients` is (rows, trees, 2).
    """
    width, nodes = codes.shape[1], int(positions.max(initial=-1)) + 1
    sums = np.zeros((2, nodes * width * bins))
    for tree in range(positions.shape[1]):
        inside = positions[:, tree] >= 0
        place = (positions[inside, tree, None] * width + np.arange(width)) * bins + codes[inside]
        for kind in range(2):
            weights = np.repeat(gradients[inside, tree, kind].astype(np.float64), width)
            sums[kind] += np.bincount(place.ravel(), weights, minlength=sums.shape[1])
    return np.moveaxis(sums.reshape(2, nodes, width, bins), 0, -1).astype(np.int64)  # below 2**53: exact


@dataclass(frozen=True)
class Rule:
    """How a split is judged: penalties on leaf weights, the least hessian of a child, the least gain."""

    l2: float = 1.0
    l1: float = 0.0
    least_hessian: float = 1.0
    least_gain: float = 0.0

    def weight(self, gradient: Array, hessian: Array) -> Array:
        """The best weight of a leaf."""
        return -_shrunk(gradient, self.l1) / (hessian + self.l2)

    def score(self, gradient: Array, hessian: Array) -> Array:
        """How much the best weight lowers the loss, doubled."""
        return _shrunk(gradient, self.l1) ** 2 / (hessian + self.l2)

    def best(self, sums: Array) -> tuple[Array, Array, Array]:
        """For each node of a histogram: the column and the bin of the best split, and whether it is worth it."""
        total = sums[:, :1].sum(axis=2, keepdims=True) / POINT
        left = np.cumsum(sums, axis=2)[:, :, :-1] / POINT
        right = total - left
        gain = (
            self.score(left[..., 0], left[..., 1])
            + self.score(right[..., 0], right[..., 1])
            - self.score(total[..., 0], total[..., 1])
        ) / 2
        allowed = (left[..., 1] >= self.least_hessian) & (right[..., 1] >= self.least_hessian)
        flat = np.where(allowed, gain, -np.inf).reshape(len(sums), -1)
        choice = flat.argmax(axis=1)
        worth = flat[np.arange(len(sums)), choice] > self.least_gain + 1e-9
        return choice // gain.shape[2], choice % gain.shape[2], worth


def _shrunk(values: Array, by: float) -> Array:
    return np.sign(values) * np.maximum(np.abs(values) - by, 0.0)


class Forest:
    """What the host knows of the trees: who decides at each node (by record number), and the weights of leaves."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.children: list[tuple[int, int]] = []
        self.owner: list[int] = []  # position of the deciding party; -1 at a leaf
        self.record: list[int] = []
        self.weight: list[float] = []
        self.roots: list[list[int]] = []  # one list of trees per boosting round

    def grow(self) -> int:
        """A new node, a leaf so far."""
        self.children.append((-1, -1))
        self.owner.append(-1)
        self.record.append(-1)
        self.weight.append(0.0)
        return len(self.owner) - 1

    def split(self, node: int, owner: int, record: int) -> tuple[int, int]:
        """Turn a leaf into a decision; returns its children."""
        self.owner[node], self.record[node] = owner, record
        self.children[node] = (self.grow(), self.grow())
        return self.children[node]

    def arrays(self) -> dict[str, Array]:
        """As arrays, for prediction and release."""
        return {
            "children": np.array(self.children, dtype=np.int32).reshape(-1, 2),
            "owner": np.array(self.owner, dtype=np.int32),
            "record": np.array(self.record, dtype=np.int32),
            "weight": np.array(self.weight),
            "roots": np.array(self.roots, dtype=np.int32).reshape(-1, self.outputs),
        }


def walk(forest: dict[str, Array], count: int, ask: Callable[[dict[int, Array]], dict[int, Array]]) -> Array:
    """What each boosting round adds to the margins: (rows, rounds, outputs). All rows go down all trees together.

    `ask` gets {party: records (rows, trees), -1 where it does not decide} and says which rows go left.
    """
    roots = forest["roots"]
    at = np.tile(roots.ravel(), (count, 1))
    while (owner := forest["owner"][at]).max(initial=-1) >= 0:
        record, after = forest["record"][at], at.copy()
        deciding = [int(party) for party in np.unique(owner) if party >= 0]
        wanted = {party: np.where(owner == party, record, -1).astype(np.int32) for party in deciding}
        for party, left in ask(wanted).items():
            mine = owner == party
            after[mine] = np.where(left, forest["children"][at, 0], forest["children"][at, 1])[mine]
        at = after
    return forest["weight"][at].reshape(count, *roots.shape)


@dataclass(frozen=True, eq=False)
class Records:
    """One party's own decisions: column and threshold by record number."""

    columns: Array
    thresholds: Array

    def left(self, values: Array, records: Array) -> Array:
        """Which rows go left, where a record is asked for; False elsewhere."""
        asked = records >= 0
        if not asked.any():
            return asked
        known = np.where(asked, records, 0)
        rows = np.arange(len(values))[:, None]
        return asked & (values[rows, self.columns[known]] <= self.thresholds[known])
