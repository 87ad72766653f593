"""Gradient descent as in Algorithm 1: plain (lines 9 and 24) or differentially private (lines 11-13 and 26-28)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.fedonce.gradients import Network

Batches = Iterable[tuple[int, Array]]  # (epoch, rows)


@dataclass(frozen=True)
class Privacy:
    """DP-SGD at one party: noise of deviation sigma * clip, and what exactly is clipped.

    `clipping="batch"` is line 11 as it is printed: the gradient of the whole batch is clipped, then noise of deviation
    sigma * clip is added to it. `clipping="sample"` is what DP-SGD and the authors' library do: every sample's gradient
    is clipped, the noise is added to their sum, and the sum is divided by the (expected) batch size.
    """

    sigma: float
    clip: float = 1.0
    clipping: Literal["sample", "batch"] = "sample"
    sampling: Literal["shuffled", "poisson"] = "shuffled"


@dataclass(frozen=True)
class Training:
    """How one party trains (Tables 5 and 10)."""

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "sgd"
    privacy: Privacy | None = None

    def steps(self, people: int) -> int:
        """Gradient steps over this many people."""
        size = min(self.batch, people)
        if self.privacy is not None and self.privacy.sampling == "poisson":
            return math.ceil(self.epochs * people / size)
        return self.epochs * (people // size)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a training ended: the last parameters, all of them if asked for (start included), the loss per epoch."""

    parameters: Array
    losses: Array
    largest_batch: int
    iterates: Array | None = None


def batches(
    training: Training, people: int, rng: np.random.Generator, *, population: int | None = None
) -> Iterator[tuple[int, Array]]:
    """Shuffled batches of one size (what does not fill a batch waits for the next epoch, as in the authors' code), or
    Poisson samples: everybody is in each batch with probability batch / population, independently.

    `population` is the public number of people, where the table at hand has one more or less.
    """
    size, public = min(training.batch, people), population or people
    if training.privacy is not None and training.privacy.sampling == "poisson":
        rate = min(1.0, training.batch / public)
        for step in range(training.steps(public)):
            # the number of people first, then who: the same law as a coin for everybody
            rows = rng.choice(people, rng.binomial(people, rate), replace=False, shuffle=False)
            yield step * size // public, rows
        return
    for epoch in range(training.epochs):
        order = rng.permutation(people)
        for start in range(0, people - size + 1, size):
            yield epoch, order[start : start + size]


class Optimiser:
    """Adam with PyTorch's defaults, or plain SGD without momentum (App. A); weight decay is added to the gradient."""

    def __init__(self, training: Training, size: int | tuple[int, ...]) -> None:
        self.training, self.steps = training, 0
        self.first, self.second = np.zeros(size), np.zeros(size)  # Adam's moments

    def step(self, parameters: Array, gradient: Array) -> Array:
        """The next parameters; the old ones are left as they are."""
        rate, decay = self.training.learning_rate, self.training.weight_decay
        if decay:
            gradient = gradient + decay * parameters
        if self.training.optimiser == "sgd":
            return parameters - rate * gradient
        self.steps += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient * gradient - self.second)
        width = rate / (1 - 0.9**self.steps)
        return parameters - width * self.first / (np.sqrt(self.second / (1 - 0.999**self.steps)) + 1e-8)


def noisy(
    network: Network,
    parameters: Array,
    tape: object,
    delta: Array,
    privacy: Privacy,
    expected: int,
    rng: np.random.Generator,
) -> Array:
    """Lines 11 and 12: clip, then add noise; in the scale of a mean over the batch."""
    per_sample = privacy.clipping == "sample"
    if len(delta):
        gradient, _ = network.gradient(parameters, tape, delta, privacy.clip if per_sample else None)
    else:
        gradient = np.zeros(len(parameters))
    noise = privacy.sigma * privacy.clip * rng.standard_normal(len(parameters))
    if per_sample:
        return (gradient + noise) / expected
    gradient = gradient / max(1, len(delta))
    return gradient / max(1.0, float(np.linalg.norm(gradient)) / privacy.clip) + noise


def check(values: Array, training: Training) -> None:
    if not math.isfinite(float(values.sum())):
        raise InputError(f"training diverged: use a learning rate below {training.learning_rate}")


def descend(
    network: Network,
    parameters: Array,
    inputs: Array,
    delta: Callable[[Array, Array, int], tuple[Array, float]],
    training: Training,
    schedule: Batches,
    noise: np.random.Generator,
    *,
    side: Array | None = None,
    keep: bool = False,
) -> Descent:
    """Descend along the batches. `delta(outputs, rows, epoch)` is each sample's gradient at the outputs, and the loss.

    With `keep`, every iterate is returned, which is what the proof of Theorem 4 gives to the adversary.
    """
    optimiser = Optimiser(training, len(parameters))
    iterates = [parameters]
    losses: dict[int, list[float]] = {}
    largest = 0
    for epoch, rows in schedule:
        outputs, tape = network.forward(parameters, inputs[rows], None if side is None else side[rows])
        check(outputs, training)
        back, loss = delta(outputs, rows, epoch)
        if training.privacy is not None:
            gradient = noisy(network, parameters, tape, back, training.privacy, training.batch, noise)
        else:
            gradient = network.gradient(parameters, tape, back)[0] / len(rows)
        parameters, largest = optimiser.step(parameters, gradient), max(largest, len(rows))
        losses.setdefault(epoch, []).append(loss)
        if keep:
            iterates.append(parameters)
    check(parameters, training)
    means = np.array([np.mean(each) for each in losses.values()])
    return Descent(parameters, means, largest, np.array(iterates) if keep else None)
