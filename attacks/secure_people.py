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
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from attacks.one_hot import DEVIATIONS
from attacks.secure_rounds import Round, added_noise, clusters, fixed_point, server_rounds
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.clusters import ACTIVE

ENOUGH = 0.99  # share of rows that must be explained
TURNS = 2  # solving and linking in turn, when epochs are tried
FOLDS, EVERY = 3, 8  # times that outputs are left out to be predicted, every so many of them
LOOSE = 1.5  # mean square of a standardised column from which it is too large to be chance
SLACK = (1.0, 1e2, 1e4, 1e6)  # times the gradients' noise, tried where links or active units may be misjudged
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
        self.standardised, self.rows = view.spec.standardised, view.spec.rows
        self.scale = 1.0 if self.standardised else 100.0
        size = float(np.sqrt(np.mean([np.mean(found.joined**2) for found in self.rounds])))
        step = fixed_point(view, 1).resolution
        clients = sum(len(cluster) for cluster in self.members)  # each adds noise, also to rows that it does not hold
        added = added_noise(view, "features_out") * math.sqrt(clients)
        self.noise = math.hypot(step * math.sqrt(len(self.clusters) / 12), SINGLE * size, added)
        self.noisy_gradient = added_noise(view, "gradients_out")
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

    def follow(self, table: Array, epochs: int, without: Array | None = None) -> list[Seen]:
        """The rounds of the first so many epochs with their weights and people, as this table tells them.

        Outputs of Z to do `without` link nobody.
        """
        wanted = list(dict.fromkeys(found.epoch for found in self.rounds))[:epochs]
        return self._follow(table, [found for found in self.rounds if found.epoch in wanted], without=without)

    def _follow(
        self, table: Array, rounds: list[Round], solve: Solver | None = None, without: Array | None = None
    ) -> list[Seen]:
        outputs = np.arange(rounds[0].joined.shape[1])
        outputs = outputs if without is None else np.setdiff1d(outputs, without)
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
                people = self._find(found, target[:, outputs], weights[outputs], table, free, number)
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
        self.owner = first

    def step(self, found: Round, rows: Array) -> None:
        """One update from the gradient at Z and the client's rows of the batch."""
        slope = found.gradients[self.owner]
        self.weight.grad = torch.from_numpy((slope.T @ rows).astype(np.float32))
        if self.bias is not None:
            self.bias.grad = torch.from_numpy(slope.sum(axis=0).astype(np.float32))
        self.optimiser.step()


def refine(
    people: People, table: Array, once: Improve, improve: Improve, sweeps: int
) -> tuple[Array, Array, list[Seen]]:
    """Rows from the first epoch (`once`), then from 1, 2, 4, ... all epochs (`improve`), as many as help.

    What is known from few epochs links the rows of the next ones. A wrong link or a wrongly replayed weight makes
    equations that are not true, so epochs count only if they explain all rows, or predict outputs of Z that were left
    out better than fewer epochs do. Returns the table, which rows are explained, and the rounds.
    """
    seen = people.follow(table, 1)
    trial = Trial(people, table)
    best, lowest = (table, np.zeros(len(table), dtype=bool), seen), trial.error(1, once)
    kept = trial.tables
    for epochs in doubled(people.epochs):
        found = _settled(people, table, improve, sweeps, epochs)
        table, explained, seen = found
        fits = float(residuals(seen, table).max()) <= DEVIATIONS * people.noise
        error = 0.0 if fits and explained.mean() >= ENOUGH else trial.error(epochs, improve)
        if error <= lowest:
            best, lowest, kept = found, error, trial.tables
    table, explained, seen = best
    if lowest > 0.0 and len(seen) > people.opening:
        noise = math.hypot(lowest, people.noise)

        def again(seen: list[Seen], table: Array, _: float) -> tuple[Array, Array]:
            return _lone(people, table, seen[: people.opening], noise), explained

        trial.tables = kept
        if trial.error(1, again) < lowest:
            table, _ = again(seen, table, noise)
    return table, explained, seen


def _lone(people: People, table: Array, first: list[Seen], noise: float) -> Array:
    """Columns of lone clients again, from the first epoch and the other columns: later private weights are a guess."""
    mine = np.zeros(people.width, dtype=bool)
    for name in people.lone:
        mine[people.columns[name]] = True
    if mine.all() or not mine.any():
        return table
    table = table.copy()
    mean, precision = people.prior()
    inner = precision[np.ix_(mine, mine)]
    for one in first:
        weights, others = one.weights[:, mine], table[one.people][:, ~mine]
        right = (one.target - others @ one.weights[:, ~mine].T) @ weights / noise**2 + inner @ mean[mine]
        table[np.ix_(one.people, mine)] = np.linalg.solve(weights.T @ weights / noise**2 + inner, right.T).T
    return np.where(people.known, people.values, table)


def doubled(last: int) -> list[int]:
    """1, 2, 4, ... and `last`."""
    return sorted({min(2**power, last) for power in range(last.bit_length() + 1)})


def _settled(
    people: People, table: Array, improve: Improve, sweeps: int, epochs: int
) -> tuple[Array, Array, list[Seen]]:
    """Rows from the equations, then private weights and links from these rows, and again while the residual falls."""
    seen, explained, last = people.follow(table, epochs), np.zeros(len(table), dtype=bool), math.inf
    for _ in range(sweeps):
        better, good = improve(seen, table, _level(people, table, seen))
        again = people.follow(better, epochs)
        now = float(residuals(again, better).max())
        if now < max(last, DEVIATIONS * people.noise):
            table, explained, seen = better, good, again
        if now > 0.9 * last:
            break
        last = now
    return table, explained, seen


def _level(people: People, table: Array, seen: list[Seen]) -> float:
    """The noise of Z: what is known of it, or more where rows and replayed weights are not yet right."""
    return max(people.noise, min(float(residuals(seen, table).max()), 1.0))


class Trial:
    """How well outputs of the first epoch are predicted from rows that were solved, and linked, without them.

    People are never linked in the first epoch, so this needs no truth and compares any numbers of epochs.
    """

    def __init__(self, people: People, table: Array) -> None:
        hidden = people.rounds[0].joined.shape[1]
        self.people = people
        self.out = [np.arange(fold, hidden, EVERY) for fold in range(min(FOLDS, hidden))]
        self.tables = [table] * len(self.out)

    def error(self, epochs: int, improve: Improve) -> float:
        """Root mean square error of the outputs left out. The next trial goes on from these rows."""
        tables, errors = [], []
        for rows, out in zip(self.tables, self.out, strict=True):
            for _ in range(TURNS):
                seen = self.people.follow(rows, epochs, out)
                less = [
                    replace(one, weights=np.delete(one.weights, out, axis=0), target=np.delete(one.target, out, axis=1))
                    for one in seen
                ]
                rows, _ = improve(less, rows, _level(self.people, rows, less))
            first = seen[: self.people.opening]
            gaps = [one.target[:, out] - rows[one.people] @ one.weights[out].T for one in first]
            errors.append(np.mean(np.concatenate(gaps) ** 2))
            tables.append(rows)
        self.tables = tables
        return float(np.sqrt(np.mean(errors)))


def residuals(seen: list[Seen], table: Array) -> Array:
    """Root mean square of Z less its prediction, over all rounds."""
    return np.array([np.sqrt(np.mean((one.target - table[one.people] @ one.weights.T) ** 2)) for one in seen])


def believable(people: People, table: Array) -> Array:
    """The table without values that cannot be: indicators lie between 0 and 1, and standardised columns are small.

    Their mean square is one. So no number lies further out than the root of the number of rows, and a column whose mean
    square is above one is error by at least the excess, and is drawn to the mean. What is right stays as it is.
    """
    out = np.nan_to_num(table)
    marks = np.zeros(people.width, dtype=bool)
    for group in people.groups:
        marks[group] = True
    out[:, marks] = np.clip(out[:, marks], 0.0, 1.0)
    if people.standardised:
        out = np.where(~marks & (np.abs(out) > math.sqrt(people.rows)), 0.0, out)
        excess = np.mean(out**2, axis=0)
        out = np.where(~marks & (excess > LOOSE), out / np.maximum(excess, 1.0), out)
    return np.where(people.known, people.values, out)


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
