"""Following people through vFedSec's rounds: who is who across epochs, and weights that a client keeps to itself.

The server knows a row by its place. The rows of the first epoch are the people; in later epochs a row is found again

- by its position, where batches are fixed,
- by the schedule of a corrupted client, for the rows that this client holds,
- otherwise by its Secure Layer output: the label must agree and Z must be near what the person's columns predict
  under that round's weights. The best one-to-one assignment wins.

A client alone in its cluster updates its slice in private (4.2). The server made the initial slice, knows the
optimiser and the gradient at Z; with the client's columns it replays every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from attacks.one_hot import DEVIATIONS
from attacks.secure_rounds import Round, clusters, fixed_point, server_rounds
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.clusters import ACTIVE

ENOUGH = 0.99  # share of rows that must be explained
SINGLE = 4e-7  # relative rounding error of sums in single precision
Improve = Callable[[list["Seen"], Array, float], tuple[Array, Array]]  # (rounds, rows, noise) -> rows, explained
Solver = Callable[[Array, Array, Array], Array]  # (weights, targets, people) -> rows


@dataclass(frozen=True, eq=False)
class Seen:
    """One round after it was followed: Z less the bias is `values @ weights.T` for the table's rows `people`."""

    round: Round
    people: Array
    weights: Array  # (hidden, width) over all columns side by side
    target: Array  # (batch, hidden)


class People:
    """The rows of the first epoch, all clusters' columns side by side, and what corrupted clients know of them."""

    def __init__(self, view: View) -> None:
        self.parameters, self.rounds = view.spec.parameters, server_rounds(view)
        self.members = clusters(view)
        self.clusters = [cluster[0] for cluster in self.members]
        self.lone = {cluster[0] for cluster in self.members if len(cluster) == 1}
        start = 0
        self.columns: dict[str, slice] = {}
        marks: dict[tuple[str, str], list[int]] = {}
        for first in self.clusters:
            columns = view.spec.columns[first]
            self.columns[first] = slice(start, start + len(columns))
            for position, column in enumerate(columns, start):
                if column.kind == "indicator" and column.group is not None:
                    marks.setdefault((first, column.group), []).append(position)
            start += len(columns)
        self.width, self.groups = start, [np.array(group) for group in marks.values()]
        opening = [found for found in self.rounds if found.epoch == self.rounds[0].epoch]
        self.opening = len(opening)  # rounds of the first epoch
        self.epochs = len({found.epoch for found in self.rounds})
        self.places = np.concatenate([found.places for found in opening])
        unknown = self.lone - set(self.rounds[0].weights)
        if unknown:
            raise InputError(
                f"the first round was not recorded: the server's weights for {sorted(unknown)} are missing"
            )
        self.scale = 1.0 if view.spec.standardised else 100.0
        size = float(np.sqrt(np.mean([np.mean(found.joined**2) for found in self.rounds])))
        step = fixed_point(view, 1).resolution
        self.noise = math.hypot(step * math.sqrt(len(self.clusters) / 12), SINGLE * size)
        pool = view.knowledge.distribution
        self.pool = None if pool is None else np.hstack([pool.features[first] for first in self.clusters])
        self._own(view)

    def first(self, party: str) -> str:
        """The name of a party's cluster."""
        return next(cluster[0] for cluster in self.members if party in cluster)

    def _own(self, view: View) -> None:
        """Columns and handles that corrupted clients have of these people."""
        count = len(self.places)
        self.known, self.values = np.zeros((count, self.width), dtype=bool), np.zeros((count, self.width))
        self.handles = np.full(sum(len(found.places) for found in self.rounds), -1)
        places = np.concatenate([found.places for found in self.rounds])
        for cluster in clusters(view):
            for party in cluster:
                state = view.states.get(party)
                if state is None or state.features is None:
                    continue
                told = state.secrets["schedule"][places]
                self.handles = np.maximum(self.handles, told)
                mine = np.flatnonzero(told[:count] >= 0)
                self.known[mine, self.columns[cluster[0]]] = True
                self.values[mine, self.columns[cluster[0]]] = state.features[told[mine]]

    def solve_first(self, solve: Solver) -> tuple[Array, list[Seen]]:
        """The first epoch's rows, solved batch by batch while private weights are replayed from the rows before."""
        table = self.values.copy()
        return table, self._follow(table, self.rounds[: self.opening], solve)

    def follow(self, table: Array, epochs: int) -> list[Seen]:
        """The rounds of the first so many epochs with their weights and people, as this table tells them."""
        wanted = list(dict.fromkeys(found.epoch for found in self.rounds))[:epochs]
        return self._follow(table, [found for found in self.rounds if found.epoch in wanted])

    def _follow(self, table: Array, rounds: list[Round], solve: Solver | None = None) -> list[Seen]:
        replicas = {first: Replica(self, first) for first in sorted(self.lone)}
        seen: list[Seen] = []
        free = np.arange(0)
        for number, found in enumerate(rounds):
            weights = np.hstack([self._slice(found, first, replicas) for first in self.clusters])
            target = found.joined - self._bias(found, replicas)
            if number == 0 or found.epoch != rounds[number - 1].epoch:
                free = np.arange(len(self.places))
            if number < self.opening or self.parameters["batches"] == "fixed":
                people = free[: len(target)]
            else:
                people = self._find(found, target, weights, table, free, number)
            free = np.setdiff1d(free, people, assume_unique=True)
            if solve is not None:
                table[people] = solve(weights, target, people)
            seen.append(Seen(found, people, weights, target))
            for first, replica in replicas.items():
                replica.step(found, table[people, self.columns[first]])
        return seen

    def _slice(self, found: Round, first: str, replicas: dict[str, Replica]) -> Array:
        hidden = found.joined.shape[1]
        columns = self.columns[first]
        width = columns.stop - columns.start
        if first in found.weights:
            return found.weights[first][: hidden * width].reshape(hidden, width)
        return replicas[first].weight.detach().numpy().astype(np.float64)

    def _bias(self, found: Round, replicas: dict[str, Replica]) -> Array:
        """Only the active party's slice has one (A.1)."""
        if ACTIVE in found.weights:
            return found.weights[ACTIVE][-found.joined.shape[1] :]
        bias = replicas[ACTIVE].bias
        assert bias is not None
        return bias.detach().numpy().astype(np.float64)

    def _find(self, found: Round, target: Array, weights: Array, table: Array, free: Array, number: int) -> Array:
        """The person at each position of a batch in a later epoch."""
        start = sum(len(earlier.places) for earlier in self.rounds[:number])
        told, mine = self.handles[start : start + len(target)], self.handles[: len(self.places)]
        where = np.full(int(self.handles.max()) + 2, -1)  # the last entry stands for rows whose handle nobody knows
        where[mine] = np.arange(len(mine))
        where[-1] = -1
        people = where[told]
        open_, left = np.flatnonzero(people < 0), free[mine[free] < 0]
        if len(open_):
            labels = np.concatenate([earlier.labels for earlier in self.rounds[: self.opening]])
            cost = _distances(target[open_], table[left] @ weights.T)
            if found.labels is not None:
                cost = cost + (found.labels[open_, None] != labels[left]) * (1.0 + float(cost.max())) * len(open_)
            row, column = linear_sum_assignment(cost)
            people[open_[row]] = left[column]
        return people

    def prior(self) -> tuple[Array, Array]:
        """Mean and precision matrix of a row before any message: from a sample of the population if there is one.

        Otherwise numbers have mean zero and the scale of the columns, and every category is as likely as another.
        """
        if self.pool is not None:
            mean, spread = self.pool.mean(axis=0), np.cov(self.pool.T).reshape(self.width, self.width)
            least = (
                0.01 * np.diag(spread) + 1e-4 * self.scale**2
            )  # columns that hardly vary in the sample may elsewhere
            return mean, np.linalg.inv(spread + np.diag(least))
        mean, precision = np.zeros(self.width), np.full(self.width, self.scale**-2)
        for group in self.groups:
            mean[group], precision[group] = 1.0 / len(group), float(len(group))
        return mean, np.diag(precision)


class Replica:
    """A lone client's slice, replayed: the same optimiser on gradients that the server computes itself."""

    def __init__(self, people: People, first: str) -> None:
        initial, hidden = people.rounds[0].weights[first], people.rounds[0].joined.shape[1]
        columns = people.columns[first]
        size = hidden * (columns.stop - columns.start)
        weight = torch.from_numpy(initial[:size].astype(np.float32).reshape(hidden, -1))
        self.weight = torch.nn.Parameter(weight)
        self.bias = (
            torch.nn.Parameter(torch.from_numpy(initial[size:].astype(np.float32))) if len(initial) > size else None
        )
        parameters = [self.weight] if self.bias is None else [self.weight, self.bias]
        kind = torch.optim.SGD if people.parameters["optimiser"] == "sgd" else torch.optim.Adam
        self.optimiser = kind(parameters, lr=people.parameters["learning_rate"])

    def step(self, found: Round, rows: Array) -> None:
        """One update from the gradient at Z and the client's rows of the batch."""
        assert found.gradient is not None
        self.weight.grad = torch.from_numpy((found.gradient.T @ rows).astype(np.float32))
        if self.bias is not None:
            self.bias.grad = torch.from_numpy(found.gradient.sum(axis=0).astype(np.float32))
        self.optimiser.step()


def refine(
    people: People, table: Array, improve: Improve, sweeps: int, start: int = 1
) -> tuple[Array, Array, list[Seen]]:
    """Rows from the equations, then private weights and links from these rows, and again while the residual falls.

    Epochs are added by doubling their number, from `start`: what is known from few links the rows of the next ones.
    Returns the table, which rows are explained, and the rounds.
    """
    explained, epochs = np.zeros(len(table), dtype=bool), min(start, people.epochs)
    while True:
        seen = people.follow(table, epochs)
        last = math.inf
        for _ in range(sweeps):
            noise = max(people.noise, min(float(residuals(seen, table).max()), 1.0))
            better, good = improve(seen, table, noise)
            again = people.follow(better, epochs)
            now = float(residuals(again, better).max())
            if now < max(last, DEVIATIONS * people.noise):
                table, explained, seen = better, good, again
            if now > 0.9 * last:
                break
            last = now
        if epochs == people.epochs:
            return table, explained, seen
        epochs = min(2 * epochs, people.epochs)


def residuals(seen: list[Seen], table: Array) -> Array:
    """Root mean square of Z less its prediction, over all rounds."""
    return np.array([np.sqrt(np.mean((one.target - table[one.people] @ one.weights.T) ** 2)) for one in seen])


def _distances(a: Array, b: Array) -> Array:
    """Squared distances between all rows of a and b."""
    gaps = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(gaps, 0.0)


def cluster_guesses(people: People, table: Array, victims: tuple[str, ...]) -> dict[str, RowGuess]:
    """The table as guesses about every victim: the whole cluster's rows, as the server cannot tell who holds which."""
    return {
        party: RowGuess(people.places, table[:, people.columns[people.first(party)]], shuffled=True)
        for party in victims
    }


def confirmed(people: People, explained: Array, *, own: bool = True) -> bool | None:
    """Whether the attack may call itself verified: the messages confirm its rows, and its own columns enter them.

    Without a corrupted client (or where `own` columns play no part) nothing ties the messages to anybody: made-up
    people would be explained as well. Then there is no check (none), unless rows are left unexplained.
    """
    if explained.mean() < ENOUGH:
        return False
    return True if own and people.known.any() else None
