"""Many FedOnce runs at once: the same guest of every run, then every host, descend in lockstep.

The k-th step of every run is taken together. The Hungarian step is solved run by run, because there is nothing in it
that runs could share; products, gradients and Adam are one batched operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model
from vflaudit.protocols.base import Session
from vflaudit.protocols.fedonce.descent import Batches, Optimiser, Training, batches, check
from vflaudit.protocols.fedonce.gradients import Dense, Network
from vflaudit.protocols.fedonce.nat import GuestTask, Targets
from vflaudit.protocols.fedonce.oneshot import OneShot
from vflaudit.protocols.fedonce.protocol import FedOnce
from vflaudit.protocols.hosted import HOST

VARIANTS = ("l0", "l1", "priv-baseline", "pca")


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one network is trained on and how: its start, its table, its batches, its noise."""

    parameters: Array
    inputs: Array
    side: Array | None
    training: Training
    schedule: Batches
    noise: np.random.Generator


# outputs (networks, rows, width), the networks, and each one's rows and epoch -> gradients at the outputs
Back = Callable[[Array, Sequence[int], Sequence[tuple[int, Array]]], Array]


def train_many(protocol: FedOnce, sessions: Sequence[Session]) -> list[Model]:
    """Algorithm 1 in every session; returns the released models."""
    runs = [OneShot(protocol, session) for session in sessions]
    received: list[dict[str, Array]] = [{} for _ in runs]
    for party in runs[0].guests:
        if party in runs[0].late:
            continue
        if protocol.variant != "pca":
            found = train_guests([run.task(party) for run in runs])
            for run, parameters in zip(runs, found, strict=True):
                run.parameters[party] = parameters
        for run, sent in zip(runs, received, strict=True):
            sent[party] = run.send(party, run.train)
    hosts = train_hosts(runs, received)
    for run, parameters in zip(runs, hosts, strict=True):
        run.parameters[HOST] = parameters
    return [run.released() for run in runs]


def train_guests(tasks: Sequence[GuestTask]) -> list[Array]:
    """`train_guest` for tasks that differ in rows, targets and seed; returns the parameters."""
    targets = [Targets(task.targets, task.assignment, task.frequency) for task in tasks]
    lessons = [_lesson(task.parameters, task.features, None, task.training, task.seed) for task in tasks]

    def back(outputs: Array, which: Sequence[int], steps: Sequence[tuple[int, Array]]) -> Array:
        delta = np.zeros_like(outputs)
        for place, (network, (epoch, rows)) in enumerate(zip(which, steps, strict=True)):
            mine = outputs[place, : len(rows)]
            delta[place, : len(rows)] = mine - targets[network].of(rows, mine, epoch)
        return delta

    return descend_together(tasks[0].network, lessons, back)


def train_hosts(runs: Sequence[OneShot], received: Sequence[dict[str, Array]]) -> list[Array]:
    """`train_host` in every run; returns the parameters."""
    lessons = [
        _lesson(
            run.parameters[HOST],
            run.data.blocks[HOST].values[run.train],
            run.joined(sent, len(run.train)),
            run.trainings[HOST],
            run.seed(HOST),
        )
        for run, sent in zip(runs, received, strict=True)
    ]

    def back(outputs: Array, which: Sequence[int], steps: Sequence[tuple[int, Array]]) -> Array:
        guesses = outputs if runs[0].loss.squared else softmax(outputs, axis=-1)
        delta = np.zeros_like(outputs)
        for place, (network, (_, rows)) in enumerate(zip(which, steps, strict=True)):
            delta[place, : len(rows)] = guesses[place, : len(rows)] - runs[network].loss.targets[rows]
        return delta

    return descend_together(runs[0].networks[HOST], lessons, back)


def _lesson(parameters: Array, inputs: Array, side: Array | None, training: Training, seed: int) -> Lesson:
    """With the batches and the noise that `train_guest` and `train_host` draw from this seed."""
    schedule = batches(training, len(inputs), stream(seed, "batches"))
    return Lesson(parameters, inputs, side, training, schedule, stream(seed, "noise"))


def descend_together(network: Network, lessons: Sequence[Lesson], back: Back) -> list[Array]:
    """`descend` for all lessons in lockstep; one that has no batches left keeps its parameters."""
    assert isinstance(network, Dense)
    steps = [iter(lesson.schedule) for lesson in lessons]
    found = [np.array(lesson.parameters) for lesson in lessons]
    parameters = np.stack(found)
    optimiser = Optimiser(lessons[0].training, parameters.shape)
    running = list(range(len(lessons)))
    while True:
        following = [next(steps[which], None) for which in running]
        stay = [place for place, step in enumerate(following) if step is not None]
        if len(stay) < len(running):
            for which, mine in zip(running, parameters, strict=True):
                found[which] = mine
            running, parameters = [running[place] for place in stay], parameters[stay]
            optimiser.first, optimiser.second = optimiser.first[stay], optimiser.second[stay]
        if not running:
            check(np.concatenate(found), lessons[0].training)
            return found
        taken = [step for step in following if step is not None]
        inputs, side = _gathered([lessons[which] for which in running], [rows for _, rows in taken])
        outputs, tape = network.forward(parameters, inputs, side)
        check(outputs, lessons[0].training)
        delta = back(outputs, running, taken)
        counts = np.array([len(rows) for _, rows in taken])
        gradient = _gradient(network, parameters, tape, delta, counts, [lessons[which] for which in running])
        parameters = optimiser.step(parameters, gradient)


def _gathered(lessons: Sequence[Lesson], rows: Sequence[Array]) -> tuple[Array, Array | None]:
    """The inputs of every network's batch, zeros behind a batch that is shorter than another."""
    longest = max(map(len, rows))

    def gather(tables: Sequence[Array]) -> Array:
        values = np.zeros((len(tables), longest, tables[0].shape[1]))
        for place, (table, mine) in enumerate(zip(tables, rows, strict=True)):
            values[place, : len(mine)] = table[mine]
        return values

    sides = [lesson.side for lesson in lessons if lesson.side is not None]
    return gather([lesson.inputs for lesson in lessons]), gather(sides) if sides else None


def _gradient(
    network: Dense,
    parameters: Array,
    tape: list[tuple[Array, Array]],
    delta: Array,
    counts: Array,
    lessons: list[Lesson],
) -> Array:
    """The mean over each batch, or `noisy` of it. Rows behind the end of a batch have delta zero and add nothing."""
    people = np.maximum(1, counts)[:, None]
    privacy = lessons[0].training.privacy
    if privacy is None:
        return network.gradient(parameters, tape, delta)[0] / people
    per_sample = privacy.clipping == "sample"
    gradient = network.gradient(parameters, tape, delta, privacy.clip if per_sample else None)[0]
    noise = np.empty_like(gradient)
    for mine, lesson in zip(noise, lessons, strict=True):
        assert lesson.training.privacy is not None
        mine[:] = lesson.training.privacy.sigma * privacy.clip * lesson.noise.standard_normal(len(mine))
    if per_sample:
        return (gradient + noise) / np.array([lesson.training.batch for lesson in lessons])[:, None]
    gradient = gradient / people
    return gradient / np.maximum(1.0, np.linalg.norm(gradient, axis=1, keepdims=True) / privacy.clip) + noise
