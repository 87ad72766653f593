"""Numbers behind FedOnce's privacy claims: sensitivity of a step, audits, accounting.

Bounds are of at least 95% confidence for each seed, for one person more or less with n public. They are kept per
process, so that the figures show the numbers that the verdicts rest on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from attacks.nat_audit import (
    Clipping,
    Promise,
    bound,
    first_step,
    known_step,
    secret_step,
    single_step,
    table_10,
    worst_people,
)
from attacks.nat_runs import Sight, crowd, full_run
from attacks.nat_steps import change, changes, natural_changes
from attacks.nat_worst import high_targets, line, turning
from vflaudit import load_protocol
from vflaudit.accounting.audit import Bound
from vflaudit.accounting.events import SampledGaussian
from vflaudit.accounting.parties import Training, account
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.loading import load_dataset
from vflaudit.core.randomness import stream
from vflaudit.core.sources.local import find_file
from vflaudit.protocols.fedonce.nat import Assignment, GuestTask
from vflaudit.protocols.fedonce.oneshot import guest_task

BATCH = 32  # Table 10, phishing
FEW, MANY = 20_000, 1_000_000  # trials that take a step each, and trials that take a random number each
CONTROL = 2_000
SAMPLED = 30_000  # a person is in one of 311 batches: many trials are needed to see them at all
TURNERS = {0.2: 13, 0.5: 7, 1.0: 3}  # fewer people should turn where the noise is small: their own variation shows


def real(name: str) -> bool:
    """Whether phishing is under $VFLAUDIT_DATA. Claims download nothing."""
    return find_file(name, ("phishing.libsvm", "phishing", "phishing.txt")) is not None


@cache
def _prepared(data: str, seed: int) -> tuple[VerticalDataset, Any]:
    target = load_protocol("fedonce", variant="l1", sampling="poisson")
    return target.prepare(load_dataset(data, parties=4, seed=seed)), target


def task_of(data: str, seed: int) -> GuestTask:
    """The first guest of FedOnce-L1 on real rows, at its start."""
    prepared, target = _prepared(data, seed)
    return guest_task(target, prepared, "guest1", seed)


# --- sensitivity --------------------------------------------------------------------------------------------


@cache
def worst_change(
    seed: int, batch: int, clipping: Clipping = "sample", assignment: Assignment = "hungarian", swap: bool = False
) -> float:
    """The change of one step in clips on people made for it; `swap`: one person in place of another."""
    where, promise = line(seed), single_step(1.0, batch, clipping=clipping)
    targets = high_targets(where, batch, 3, stream(seed, "claims", "targets"))
    task, canary = turning(where, targets, promise.training, seed, assignment)
    honest = where.people(targets[canary : canary + 1] @ where.direction - 1e-5)[0]
    return change(task, np.arange(batch), canary, honest if swap else None)


@cache
def natural_change(seed: int, data: str, batch: int) -> float:
    """The largest change over 150 people in five batches of real rows, at the first step."""
    task = task_of(data, seed)
    return float(natural_changes(task, batch, stream(seed, "claims", "natural")).max())


# --- audits -------------------------------------------------------------------------------------------------


@cache
def promise_10() -> Promise:
    """Table 10, phishing, epsilon 2."""
    return table_10()


@cache
def first_step_bound(seed: int, assignment: Assignment = "hungarian") -> Bound:
    """Table 10 at its first step, on people made for it, with known targets and batches that nobody sees."""
    promise = promise_10()
    task, canary = worst_people(promise, seed, assignment)
    trials = SAMPLED if assignment == "hungarian" else CONTROL
    return bound(first_step(task, canary, promise.people, trials, stream(seed, "claims", "first")), seed)


@cache
def known_bound(
    seed: int, epsilon: float = 1.0, clipping: Clipping = "sample", assignment: Assignment = "hungarian"
) -> Bound:
    """One step on 32 people made for it, with known targets."""
    where, promise = line(seed), single_step(epsilon, BATCH, clipping=clipping)
    targets = high_targets(where, BATCH, 3, stream(seed, "claims", "targets"))
    task, canary = turning(where, targets, promise.training, seed, assignment)
    return bound(known_step(task, np.arange(BATCH), canary, MANY, stream(seed, "claims", "known")), seed)


@cache
def natural_bound(seed: int, data: str, epsilon: float = 1.0, assignment: Assignment = "hungarian") -> Bound:
    """One step on 32 real people with known targets; of them the one who changes most, as known before any noise."""
    task = task_of(data, seed)
    task = replace(task, training=single_step(epsilon, BATCH).training, assignment=assignment)
    rows = stream(seed, "claims", "batch").choice(len(task.features), BATCH, replace=False)
    record = int(rows[np.argmax(changes(task, rows, rows))])
    return bound(known_step(task, rows, record, MANY, stream(seed, "claims", "known")), seed)


@cache
def secret_bound(seed: int, epsilon: float = 0.5, assignment: Assignment = "hungarian") -> Bound:
    """One step on 32 people made for it, with fresh targets in every trial; the last parameters are all there is."""
    scores = secret_step(
        line(seed), single_step(epsilon, BATCH), TURNERS[epsilon], FEW, stream(seed, "claims", "secret"), assignment
    )
    return bound(scores, seed)


@cache
def run_bounds(seed: int, assignment: Assignment = "hungarian", data: str = "breast-cancer") -> dict[Sight, Bound]:
    """Whole trainings with Table 10's parameters on real rows, with fresh targets in every run."""
    prepared, _ = _prepared(data, seed)
    task = replace(task_of(data, seed), assignment=assignment)
    task, people = crowd(task, prepared.blocks["guest1"].values[prepared.aligned("test")])
    found = full_run(task, people, seed, secret=True, choosing=40, runs=200)
    return {sight: bound(scores, seed) for sight, scores in found.items()}


# --- accounting ---------------------------------------------------------------------------------------------


@cache
def reduction(accountant: str) -> float:
    """What joint accounting saves at k = 100 with the parameters of Fig. 10."""
    return account(Training(60_000, 128, 50, 1.0).event(), 1e-5, [100], [accountant])[0].reduction


def accounted(promise: Promise) -> float:
    """Epsilon of a guest alone as the paper accounts for it, by the tightest accountant at hand."""
    return promise.accounted("prv")


def accounted_run(seed: int, data: str = "breast-cancer") -> float:
    """The same for the guest of `run_bounds`."""
    task = task_of(data, seed)
    return Promise(2.0, 1e-5, task.training, len(task.features)).accounted("prv")


def event_10(assignment: Assignment, clipping: Clipping = "sample") -> SampledGaussian:
    """A guest's training of Table 10 with the sensitivity that it really has."""
    promise = promise_10()
    assert promise.training.privacy is not None
    hidden = "targets that stay dealt" if assignment == "hungarian" else None
    sensitivity = 2.0 if clipping == "batch" else 2.0 * BATCH if assignment == "hungarian" else 1.0
    rate, sigma = promise.training.batch / promise.people, promise.training.privacy.sigma
    steps = promise.training.steps(promise.people)
    return SampledGaussian(rate, sigma, steps, "poisson", "add-remove", sensitivity, hidden)
