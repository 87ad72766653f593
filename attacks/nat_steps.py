"""One private step of noise as targets, without its noise: how far can one person move what is released?

FedOnce-L1 clips each sample's gradient to Omega and takes Omega for the sensitivity of the sum (4.1). But the targets
of a batch are dealt among the samples of the batch (Algorithm 1, line 5), so one person may change what every other
person's gradient is. Everything here is in the units in which the noise has deviation sigma * Omega.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.spatial import cKDTree

from vflaudit.core.dataset import Array
from vflaudit.protocols.fedonce.descent import Privacy, noisy
from vflaudit.protocols.fedonce.nat import GuestTask, Targets

SILENT = np.random.default_rng(0)  # `noisy` draws from it what it then multiplies by a sigma of zero


def privacy_of(task: GuestTask) -> Privacy:
    """The task's noise and clipping; an audit is about tasks that have some."""
    assert task.training.privacy is not None, "the task has no noise to audit"
    return task.training.privacy


@lru_cache(maxsize=4)
def _public(task: GuestTask) -> cKDTree:
    return cKDTree(task.targets)


def released(task: GuestTask, rows: Array, parameters: Array | None = None) -> Array:
    """What the first step on this batch releases, less the noise: the sum of clipped gradients, or the clipped mean."""
    theta = task.parameters if parameters is None else parameters
    outputs, tape = task.network.forward(theta, np.asarray(task.features[rows], dtype=task.network.dtype))
    if task.assignment == "nearest":  # among all public targets, not those of the batch
        tree = _public(task)
        delta = outputs - tree.data[tree.query(outputs)[1]]
    else:
        own = Targets(task.targets[rows], task.assignment, task.frequency)
        delta = outputs - own.of(np.arange(len(rows)), outputs, task.frequency - 1)
    quiet = replace(privacy_of(task), sigma=0.0)
    return noisy(task.network, theta, tape, delta, quiet, 1, SILENT)


def change(task: GuestTask, rows: Array, record: int, instead: Array | None = None) -> float:
    """How far this person moves what the batch releases, in clips: by leaving, or by having features `instead`."""
    rows = np.asarray(rows)
    if instead is None:
        without = released(task, rows[rows != record])
    else:
        features = np.array(task.features)
        features[record] = instead
        without = released(replace(task, features=features), rows)
    return float(np.linalg.norm(released(task, rows) - without)) / privacy_of(task).clip


def changes(task: GuestTask, rows: Array, records: Array) -> Array:
    """How far each of these people moves the release when they leave, in clips."""
    clip = privacy_of(task).clip
    full = released(task, rows)
    return np.array([np.linalg.norm(full - released(task, rows[rows != record])) for record in records]) / clip


def natural_changes(task: GuestTask, batch: int, rng: np.random.Generator, people: int = 30, batches: int = 5) -> Array:
    """The same for random people of random batches of the task's own table."""
    found = []
    for _ in range(batches):
        rows = rng.choice(len(task.features), min(batch, len(task.features)), replace=False)
        found.append(changes(task, rows, rows[:people]))
    return np.concatenate(found)
