"""Rows behind a local module with one hidden layer (vFedSec A.1, model=mlp): first the embeddings, then the columns.

The Secure Layer's output is linear in the embeddings H = relu(V x + c), so it is solved for them as for columns.
Where a unit is active, H - c = V x is linear again; and the gradient of V that a cluster sums up is E' X, with E the
gradient at the hidden layer, which the server computes from H and its own weights. Both are solved as one.
Embeddings change with every step, so epochs are only combined where batches are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attacks.joint_rows import SURE, Equations, Joint
from attacks.secure_people import SINGLE, SLACK, People, believable, doubled
from attacks.secure_rounds import Round
from vflaudit.core.dataset import Array
from vflaudit.protocols.vfedsec.clusters import ACTIVE

ACTIVE_UNIT = 6.0  # deviations above zero from which a unit surely is active


@dataclass(frozen=True, eq=False)
class Weights:
    """A cluster's local module V, c and its slice W of the Secure Layer, with a bias for the active party."""

    local: Array
    offset: Array
    secure: Array
    bias: Array | None

    @classmethod
    def unpack(cls, flat: Array, width: int, hidden: int, *, bias: bool) -> Weights:
        """From one vector in the module's order."""
        units = (len(flat) - hidden * bias) // (width + 1 + hidden)
        first, second = units * width, units * (width + 1)
        last = second + hidden * units
        return cls(
            flat[:first].reshape(units, width),
            flat[first:second],
            flat[second:last].reshape(hidden, units),
            flat[last:] if bias else None,
        )

    def embed(self, rows: Array) -> Array:
        """H of these rows."""
        return np.maximum(rows @ self.local.T + self.offset, 0.0)


class Replay:
    """The module that a lone client updates in private, from the gradients that the server computes itself."""

    def __init__(self, people: People, first: str) -> None:
        start = people.rounds[0].weights[first].astype(np.float32)
        self.flat = torch.nn.Parameter(torch.from_numpy(start))
        kind = torch.optim.SGD if people.parameters["optimiser"] == "sgd" else torch.optim.Adam
        self.optimiser = kind([self.flat], lr=people.parameters["learning_rate"])

    def values(self) -> Array:
        """The parameters as one vector."""
        return self.flat.detach().numpy().astype(np.float64)

    def step(self, slope: Array, at_hidden: Array, embedded: Array, rows: Array) -> None:
        """One update: gradients of V, c, W and the bias, in this order."""
        parts = [at_hidden.T @ rows, at_hidden.sum(axis=0), slope.T @ embedded]
        bias = self.flat.numel() - sum(part.size for part in parts)
        parts += [slope.sum(axis=0)] if bias else []
        whole = np.concatenate([part.ravel() for part in parts])
        self.flat.grad = torch.from_numpy(whole.astype(np.float32))
        self.optimiser.step()


def solve_mlp(
    people: People, *, forward: bool, gradient: bool, priors: int, steps: int
) -> tuple[Array, Array, dict[str, Any]]:
    """The table, which rows are determined, and notes."""
    fixed = people.parameters["batches"] == "fixed"
    rounds = people.rounds if fixed else people.rounds[: people.opening]
    replays = {first: Replay(people, first) for first in sorted(people.lone) if first not in people.rounds[-1].weights}
    said: dict[str, list[Equations]] = {first: [] for first in people.clusters}
    start, batches, opening = 0, [], []
    for number, found in enumerate(rounds):
        start = 0 if number % people.opening == 0 else start
        rows = np.arange(start, start + len(found.joined))
        start += len(rows)
        modules = {first: _weights(people, found, first, replays) for first in people.clusters}
        if number < people.opening:
            batches.append(rows)
            opening.append(modules)
        for first, (one, embedded) in _embeddings(people, found, modules, rows, gradient).items():
            said[first].append(one)
            if first in replays:
                columns = people.columns[first]
                known, values = people.known[rows, columns], people.values[rows, columns]
                if not known.all():
                    here = replace(one, rows=np.arange(len(rows)), gradient=None)
                    solved = _solved(people, first, [here], [here.rows], 1.0, 0, steps)[0]
                    values = np.where(known, values, solved)
                own = found.gradients[first]
                replays[first].step(own, own @ modules[first].secure * (one.slope != 0), embedded, values)
    best: tuple[float, Array, Array, dict[str, Any]] | None = None
    for epochs in doubled(len(rounds) // people.opening):
        for slack in SLACK if gradient else (1.0,):
            table, good = people.values.copy(), np.ones(len(people.places), dtype=bool)
            notes: dict[str, Any] = {"epochs": epochs}
            for first, equations in said.items():
                columns = people.columns[first]
                if not people.known[:, columns].all():
                    rights, used = 1.0 if forward else None, equations[: epochs * people.opening]
                    table[:, columns], sure, noted = _solved(people, first, used, batches, rights, priors, steps, slack)
                    good &= sure.all(axis=1)
                    notes[first] = noted | {"determined": float(sure.mean())}
            table = believable(people, table)
            error = _error(people, table, batches, opening)
            if best is None or error < best[0]:
                best = error, table, good, notes
    assert best is not None
    return best[1:]


def _error(people: People, table: Array, batches: list[Array], opening: list[dict[str, Weights]]) -> float:
    """Root mean square of the first epoch's Z less what the table predicts, hidden layer and all."""
    total = 0.0
    for found, rows, modules in zip(people.rounds, batches, opening, strict=False):
        gap = found.joined - modules[ACTIVE].bias
        for first, module in modules.items():
            gap = gap - module.embed(table[rows, people.columns[first]]) @ module.secure.T
        total += float((gap**2).sum())
    return math.sqrt(total)


def _weights(people: People, found: Round, first: str, replays: dict[str, Replay]) -> Weights:
    columns = people.columns[first]
    flat = found.weights[first] if first in found.weights else replays[first].values()
    return Weights.unpack(flat, columns.stop - columns.start, found.joined.shape[1], bias=first == ACTIVE)


def _embeddings(
    people: People, found: Round, modules: dict[str, Weights], rows: Array, gradient: bool
) -> dict[str, tuple[Equations, Array]]:
    """For every cluster, what the round says about its columns, in units of its noise, and the embeddings."""
    bias, slope = modules[ACTIVE].bias, found.gradient
    assert bias is not None and slope is not None
    told = {first: people.known[rows, people.columns[first]].all(axis=1) for first in modules}
    embedded = {first: module.embed(people.values[rows, people.columns[first]]) for first, module in modules.items()}
    spread = {first: np.full(embedded[first].shape, people.noise) for first in modules}
    patterns, which = np.unique(np.stack(list(told.values()), axis=1), axis=0, return_inverse=True)
    for number, known in enumerate(patterns):
        here = np.flatnonzero(which.ravel() == number)
        unknown = [first for first, done in zip(modules, known, strict=True) if not done]
        if not unknown:
            continue
        rest = found.joined[here] - bias
        for first in modules:
            if first not in unknown:
                rest = rest - embedded[first][here] @ modules[first].secure.T
        weights = np.hstack([modules[first].secure for first in unknown])
        inverse = np.linalg.inv(weights.T @ weights + people.noise**2 * np.eye(weights.shape[1]))
        solved, deviation = rest @ weights @ inverse, people.noise * np.sqrt(np.diag(inverse))
        cuts = np.cumsum([modules[first].secure.shape[1] for first in unknown])[:-1]
        pieces = zip(unknown, np.split(solved, cuts, axis=1), np.split(deviation, cuts), strict=True)
        for first, part, size in pieces:
            embedded[first][here], spread[first][here] = np.maximum(part, 0.0), size
    said: dict[str, tuple[Equations, Array]] = {}
    for first, module in modules.items():
        live = embedded[first] > ACTIVE_UNIT * spread[first]
        at_hidden = slope @ module.secure * live
        sums = found.sums.get(first) if gradient else None
        left = None if sums is None else sums[: module.local.size].reshape(module.local.shape)
        mask = live / np.maximum(spread[first], people.noise) ** 2
        target = embedded[first] - module.offset
        said[first] = (Equations(rows, module.local, target, at_hidden, left, mask), embedded[first])
    return said


def _solved(
    people: People,
    first: str,
    equations: list[Equations],
    sets: list[Array],
    rights: float | None,
    priors: int,
    steps: int,
    slack: float = 1.0,
) -> tuple[Array, Array, dict[str, Any]]:
    """A cluster's columns from its equations; those about embeddings come in units of their noise.

    Gradients have `slack` times their own noise: the units that are active may be misjudged.
    """
    columns = people.columns[first]
    mean, precision = (value[columns] for value in people.prior())
    precision = precision[:, columns]
    alone, sure = _by_row(equations, sum(len(rows) for rows in sets), mean, precision, people.scale)
    sizes = [float(np.abs(one.gradient).max()) for one in equations if one.gradient is not None]
    if not sizes:
        return alone, sure, {}
    step = 2.0 ** -people.parameters["fraction_bits"] * math.sqrt(people.parameters["clients_per_cluster"] / 12)
    blurred = people.noisy_gradient * people.scale * math.sqrt(people.parameters["batch_size"])
    noise = slack * math.hypot(step, SINGLE * max(sizes), blurred)
    reached = np.ones(len(mean), dtype=bool)
    left = Joint(equations, sets, reached, noise, None)
    cells, told = left.solve(mean, precision, people.scale, priors if rights is None else 0, steps)
    if rights is None:
        return cells, told, left.notes()
    joint = Joint(equations, sets, reached, noise, rights)
    cells, _ = joint.solve(mean, precision, people.scale, priors, steps, start=alone)
    return cells, sure | told, joint.notes()


def _by_row(equations: list[Equations], count: int, mean: Array, precision: Array, scale: float) -> tuple[Array, Array]:
    """The most likely columns of each row from its own active units, and which cells they determine."""
    gram, image = np.tile(precision, (count, 1, 1)), np.tile(precision @ mean, (count, 1))
    for one in equations:
        assert one.mask is not None
        gram[one.rows] += np.einsum("nu,ui,uj->nij", one.mask, one.weights, one.weights, optimize=True)
        image[one.rows] += (one.mask * one.target) @ one.weights
    inverse = np.linalg.inv(gram)
    deviation = np.sqrt(np.maximum(np.einsum("nii->ni", inverse), 0.0))
    return np.einsum("nij,nj->ni", inverse, image), deviation < SURE * scale
