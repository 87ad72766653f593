"""Noise as targets at one guest (2.2, equation 1; Algorithm 1, lines 2-17): learn to predict random points.

`train_guest` needs no protocol, no wire and no PyTorch, so that an audit can call it thousands of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.protocols.fedonce.descent import Batches, Descent, Training, batches, descend
from vflaudit.protocols.fedonce.gradients import Network

Assignment = Literal["hungarian", "fixed", "nearest"]


def unit_targets(count: int, dimension: int, rng: np.random.Generator) -> Array:
    """C: random points on the unit sphere, one per sample."""
    points = rng.standard_normal((count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def best_permutation(outputs: Array, targets: Array) -> Array:
    """The permutation of a batch's targets that is nearest to the outputs (equation 1): row i gets target p[i].

    The cost is the squared distance up to terms that every permutation has in common. Taking out the minima of columns,
    then of rows, changes no comparison between permutations and halves the time.
    """
    cost = -(outputs @ targets.T) + 0.5 * np.einsum("ij,ij->i", targets, targets)
    cost -= cost.min(axis=0)
    cost -= cost.min(axis=1, keepdims=True)
    return linear_sum_assignment(cost)[1]


class Targets:
    """The targets of all samples, and the rule that moves them.

    `hungarian` is the paper's: the targets of a batch are dealt anew among the batch every `frequency` epochs and stay
    where they were dealt. `fixed` never moves them. `nearest` gives each sample the nearest of all initial targets,
    whatever the others get: with public targets one sample then never changes another one's target.
    """

    def __init__(self, initial: Array, assignment: Assignment, frequency: int) -> None:
        self.values, self.assignment, self.frequency = np.array(initial, dtype=np.float64), assignment, frequency
        self.tree = cKDTree(initial) if assignment == "nearest" else None

    def of(self, rows: Array, outputs: Array, epoch: int) -> Array:
        """The targets of these rows, after moving them where the rule says so."""
        targets = self.values[rows]
        if self.assignment != "fixed" and (epoch + 1) % self.frequency == 0 and len(rows):
            if self.tree is not None:
                targets = self.tree.data[self.tree.query(outputs)[1]]
            else:
                targets = targets[best_permutation(outputs, targets)]
            self.values[rows] = targets
        return targets


@dataclass(frozen=True, eq=False)
class Guest:
    """A trained guest: how the descent went, and where the targets ended."""

    descent: Descent
    targets: Array

    @property
    def parameters(self) -> Array:
        """The last parameters."""
        return self.descent.parameters


@dataclass(frozen=True, eq=False)
class GuestTask:
    """Everything that one guest's training depends on; `dataclasses.replace` makes a neighbouring task."""

    network: Network
    parameters: Array  # where it starts
    features: Array
    targets: Array
    training: Training
    seed: int
    assignment: Assignment = "hungarian"
    frequency: int = 1

    def train(self, *, schedule: Batches | None = None, population: int | None = None, keep: bool = False) -> Guest:
        """`train_guest` on it."""
        return train_guest(
            self.network,
            self.parameters,
            self.features,
            self.targets,
            self.training,
            self.seed,
            assignment=self.assignment,
            frequency=self.frequency,
            schedule=schedule,
            population=population,
            keep=keep,
        )


def train_guest(
    network: Network,
    parameters: Array,
    features: Array,
    targets: Array,
    training: Training,
    seed: int,
    *,
    assignment: Assignment = "hungarian",
    frequency: int = 1,
    schedule: Batches | None = None,
    population: int | None = None,
    keep: bool = False,
) -> Guest:
    """One guest's training from given parameters and given targets: equation 1 by (private) gradient descent.

    The seed decides batches and noise. `schedule` gives the batches instead, as pairs of an epoch and its rows;
    `population` is the public number of people, where the table has one more or less. With `keep`, all iterates are in
    `descent.iterates`, of shape (steps + 1, parameters).

    network = network_of(module)
    start, points = vector_of(module), unit_targets(len(features), 3, rng)
    guest = train_guest(network, start, features, points, Training(10, 32, 0.3, privacy=Privacy(1.0)), seed=0)
    """
    state = Targets(targets, assignment, frequency)

    def delta(outputs: Array, rows: Array, epoch: int) -> tuple[Array, float]:
        difference = outputs - state.of(rows, outputs, epoch)
        return difference, 0.5 * float(np.einsum("ij,ij->", difference, difference)) / max(1, len(rows))

    if schedule is None:
        schedule = batches(training, len(features), stream(seed, "batches"), population=population)
    inputs = np.asarray(features, dtype=network.dtype)
    start = np.array(parameters, dtype=network.dtype)
    descent = descend(network, start, inputs, delta, training, schedule, stream(seed, "noise"), keep=keep)
    return Guest(descent, state.values)
