"""Whole private trainings of a guest with and without one person, told apart by iterates or by the last parameters.

What tells them apart is learned on separate runs; so is which of several people is the easiest to notice. The bound is
from runs that chose nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from attacks.nat_steps import privacy_of
from vflaudit.core import statistics as stats
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed, stream
from vflaudit.protocols.fedonce.nat import GuestTask, unit_targets

Sight = Literal["iterates", "final"]
CLEAREST = 15  # of hundreds of parameters: more of them add more noise than they tell


@dataclass(frozen=True, eq=False)
class Trials:
    """What runs look like: for each of them the last parameters, and numbers about one person."""

    last: Array  # (runs, parameters)
    iterates: Array  # (runs, 1): the evidence of all steps
    final: Array  # (runs, numbers): from the last parameters

    def some(self, first: int, last: int) -> Trials:
        """Some of the runs."""
        return Trials(self.last[first:last], self.iterates[first:last], self.final[first:last])


@dataclass(frozen=True, eq=False)
class Usual:
    """What steps release without the person: the mean of each step, and the variance of each coordinate."""

    mean: Array
    variance: Array


def runs_of(task: GuestTask, person: Array | None, runs: int, seed: int, *, secret: bool) -> Iterator[Array]:
    """All iterates of `runs` trainings on the task's people, with `person` as one more.

    `secret`: targets are drawn anew in every run; else they are the task's own, and one more for the person that is the
    same in all runs.
    """
    public, width = len(task.features), task.targets.shape[1]
    extra = unit_targets(1, width, stream(task.seed, "audit", "target"))
    for run in range(runs):
        own = child_seed(seed, "audit", run)
        targets = unit_targets(public + 1, width, stream(own, "targets"))
        if not secret:
            targets = np.vstack([task.targets, extra])
        here = replace(task, targets=targets[:public], seed=own)
        if person is not None:
            here = replace(here, features=np.vstack([task.features, person]), targets=targets)
        iterates = here.train(population=public, keep=True).descent.iterates
        assert iterates is not None
        yield iterates


def steps_of(task: GuestTask, iterates: Array) -> Array:
    """What every step released: the noisy sum (or the noisy clipped mean) that moved the parameters."""
    scale = task.training.batch if privacy_of(task).clipping == "sample" else 1
    return (iterates[:-1] - iterates[1:]) * scale / task.training.learning_rate


def usual(task: GuestTask, runs: Iterable[Array]) -> Usual:
    """Learn what is usual from runs without the person."""
    count, total, squares = 0, np.zeros(1), np.zeros(1)
    for iterates in runs:
        released = steps_of(task, iterates)
        count, total, squares = count + 1, total + released, squares + released**2
    mean = total / count
    variance = (squares / count - mean**2).mean(axis=0) * count / (count - 1)
    return Usual(mean, np.maximum(variance, 1e-12))


def trials(task: GuestTask, person: Array, runs: Iterable[Array], usually: Usual) -> Trials:
    """Numbers about this person in each run."""
    found = [(iterates[-1], *_numbers(task, iterates, person, usually)) for iterates in runs]
    return Trials(*(np.array(part) for part in zip(*found, strict=True)))


def _numbers(task: GuestTask, iterates: Array, person: Array, usually: Usual) -> tuple[Array, Array]:
    """Evidence for a person in the steps, and what the last model makes of them.

    A step's log-likelihood ratio is that of a sampled shift by the person's own clipped gradient against none, where
    noise is what steps usually vary by: coordinates that honest people leave alone count most.
    """
    rate = min(1.0, task.training.batch / len(task.features))
    inputs = np.asarray(person, dtype=task.network.dtype)[None]
    own = np.array([_own_gradient(task, theta, inputs) for theta in iterates[:-1]])
    seen = ((steps_of(task, iterates) - usually.mean) * own / usually.variance).sum(axis=1)
    strength = (own**2 / usually.variance).sum(axis=1)
    evidence = np.log1p(rate * np.expm1(np.clip(seen - strength / 2, -50, 50))).sum()
    output = task.network.forward(iterates[-1], inputs)[0][0]
    length = float(np.linalg.norm(output))
    return np.array([evidence]), np.append(output, [length, abs(length - 1)])


def _own_gradient(task: GuestTask, theta: Array, inputs: Array) -> Array:
    """The person's clipped gradient, with the nearest point of the sphere for the target that nobody knows."""
    outputs, tape = task.network.forward(theta, inputs)
    delta = outputs - outputs / max(float(np.linalg.norm(outputs)), 1e-9)
    return task.network.gradient(theta, tape, delta, privacy_of(task).clip)[0]


@dataclass(frozen=True, eq=False)
class Distinguisher:
    """A linear score of runs. The evidence of all steps needs no learning; what the last parameters tell is learned."""

    sight: Sight
    weights: Array

    @classmethod
    def learn(cls, inside: Trials, outside: Trials, sight: Sight) -> Distinguisher:
        """For the last parameters: the numbers that differ most clearly, each weighed by difference over variance."""
        if sight == "iterates":
            return cls(sight, np.ones(1))
        columns = [_columns(part) for part in (inside, outside)]
        difference = columns[0].mean(axis=0) - columns[1].mean(axis=0)
        variance = (columns[0].var(axis=0) + columns[1].var(axis=0)) / 2 + 1e-12
        clear = np.abs(difference) / np.sqrt(variance)
        chosen = clear >= np.sort(clear)[-CLEAREST]
        return cls(sight, np.where(chosen, difference / variance, 0.0))

    def scores(self, runs: Trials) -> Array:
        """Greater means that the person was in."""
        return (runs.iterates if self.sight == "iterates" else _columns(runs)) @ self.weights


def _columns(runs: Trials) -> Array:
    return np.hstack([runs.final, runs.last])


def separation(inside: Array, outside: Array) -> float:
    """AUC of the scores of runs with the person against those without."""
    return stats.auc(np.repeat([True, False], [len(inside), len(outside)]), np.concatenate([inside, outside]))


def crowd(task: GuestTask, others: Array, count: int = 3) -> tuple[GuestTask, list[Array]]:
    """A table with a rare category, and people to choose the canary from.

    Real rows with the last column emptied; the rows of `others` that are farthest from the centre, one ten times as
    far, and somebody who has nothing but that column.
    """
    features, others = np.array(task.features), np.array(others)
    features[:, -1] = 0.0
    far = others[np.argsort(np.linalg.norm(others, axis=1), kind="stable")[::-1][:count]]
    alone = np.zeros(features.shape[1])
    alone[-1] = 30.0
    return replace(task, features=features), [*far, 10 * far[0], alone]


def full_run(
    task: GuestTask, people: Sequence[Array], seed: int, *, secret: bool, choosing: int = 60, runs: int = 300
) -> dict[Sight, tuple[Array, Array]]:
    """Scores of fresh runs with and without the person that separate runs found easiest to notice, for both sights."""

    def make(name: str, person: Array | None, count: int) -> Iterator[Array]:
        return runs_of(task, person, count, child_seed(seed, name), secret=secret)

    usually = usual(task, make("usual", None, choosing))
    out = list(make("out", None, choosing))
    picked: dict[Sight, tuple[float, int, Distinguisher]] = {}
    for place, person in enumerate(people):
        inside = trials(task, person, make(f"in {place}", person, choosing), usually)
        outside = trials(task, person, out, usually)
        for sight in get_args(Sight):
            halves = [(part.some(0, choosing // 2), part.some(choosing // 2, choosing)) for part in (inside, outside)]
            told = np.mean(
                [
                    separation(
                        *(Distinguisher.learn(halves[0][k], halves[1][k], sight).scores(half[1 - k]) for half in halves)
                    )
                    for k in (0, 1)
                ]
            )
            if sight not in picked or told > picked[sight][0]:
                picked[sight] = float(told), place, Distinguisher.learn(inside, outside, sight)
    fresh_out = list(make("fresh out", None, runs))
    found: dict[Sight, tuple[Array, Array]] = {}
    for place in sorted({place for _, place, _ in picked.values()}):
        inside = trials(task, people[place], make("fresh in", people[place], runs), usually)
        outside = trials(task, people[place], fresh_out, usually)
        for sight, (_, chosen, rule) in picked.items():
            if chosen == place:
                found[sight] = rule.scores(inside), rule.scores(outside)
    return found
