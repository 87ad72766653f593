"""The audit of FedOnce-L1's differential privacy at one guest: scores of trials with and without one person.

One neighbouring relation throughout: one person more or less, n public (`add-remove`). A guest's training is a part of
what the total budget covers, so a bound for the guest alone that exceeds the total refutes the total. Any prefix of the
iterates may be looked at, because looking at less is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attacks.nat_steps import privacy_of, released
from attacks.nat_worst import Line, fresh, line, poised, turning
from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.audit import Bound, clopper_pearson
from vflaudit.accounting.events import SampledGaussian
from vflaudit.accounting.gaussian import gaussian_deviation
from vflaudit.accounting.parties import calibrate
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.protocols.fedonce.descent import Privacy, Training
from vflaudit.protocols.fedonce.nat import Assignment, GuestTask, unit_targets
from vflaudit.protocols.fedonce.tables import lookup

Clipping = Literal["sample", "batch"]
PAPER_PEOPLE = 9949  # phishing has 11,055 people, nine of ten for training (5.1)
DELTA = 1e-5
Scores = tuple[Array, Array]  # with the person, without


@dataclass(frozen=True)
class Promise:
    """What the paper says of a training: (epsilon, delta) for all parties together, with this noise at a guest."""

    epsilon: float
    delta: float
    training: Training
    people: int

    def accounted(self, name: str = "rdp") -> float:
        """Epsilon of this guest alone, if its sum had the sensitivity Omega that the paper assumes."""
        assert self.training.privacy is not None
        rate = min(1.0, self.training.batch / self.people)
        event = SampledGaussian(rate, self.training.privacy.sigma, self.training.steps(self.people))
        return accountant(name).epsilon(event, self.delta)


def table_10(
    epsilon: float = 2.0, people: int = PAPER_PEOPLE, parties: int = 4, *, clipping: Clipping = "sample"
) -> Promise:
    """Table 10, phishing: a host and its guests, sigma by moments over all of them, Poisson batches."""
    row = lookup("phishing", private=True, epsilon=epsilon)
    sampled = Privacy(0.0, row.clip, clipping, "poisson")
    host, guest = (
        Training(of.epochs, min(of.batch, people), of.learning_rate, privacy=sampled) for of in (row.host, row.guest)
    )
    events = [SampledGaussian(t.batch / people, 1.0, t.steps(people)) for t in (host, *[guest] * (parties - 1))]
    sigma = calibrate(events, epsilon, DELTA, accountant="rdp-classic")[0]
    return Promise(epsilon, DELTA, replace(guest, privacy=replace(sampled, sigma=sigma)), people)


def single_step(epsilon: float, batch: int, *, clipping: Clipping = "sample") -> Promise:
    """One step on everybody: the Gaussian mechanism, calibrated exactly for a sensitivity of Omega."""
    privacy = Privacy(gaussian_deviation(1.0, epsilon, DELTA), 1.0, clipping, "poisson")
    return Promise(epsilon, DELTA, Training(1, batch, 0.3, privacy=privacy), batch)


def bound(scores: Scores, seed: int, delta: float = DELTA) -> Bound:
    """Clopper-Pearson over eight thresholds that were fixed beforehand."""
    return clopper_pearson(*scores, delta, stream(seed, "audit", "bound"))


def worst_people(promise: Promise, seed: int, assignment: Assignment = "hungarian") -> tuple[GuestTask, int]:
    """A guest with the paper's network and targets that the adversary knows; the person is chosen after the targets."""
    targets = unit_targets(promise.people + 1, 3, stream(seed, "audit", "targets"))
    return turning(line(seed), targets, promise.training, seed, assignment)


def known_step(task: GuestTask, rows: Array, record: int | None, trials: int, rng: np.random.Generator) -> Scores:
    """One step on these rows with known targets: the release along the change that this person makes.

    Without noise both releases are known; the likelihood ratio depends on the noise along their difference only, and
    that is a single normal number. `record=None` is the null check: the two sides are the same.
    """
    privacy = privacy_of(task)
    rows = np.asarray(rows)
    without = rows if record is None else rows[rows != record]
    shift = float(np.linalg.norm(released(task, rows) - released(task, without)))
    noise = privacy.sigma * privacy.clip * rng.standard_normal((2, trials))
    return shift + noise[0], noise[1]


def first_step(task: GuestTask, record: int, people: int, trials: int, rng: np.random.Generator) -> Scores:
    """The first step of a training with Poisson batches that nobody sees: the release along the expected change."""
    privacy, rate = privacy_of(task), min(1.0, task.training.batch / people)
    others = np.delete(np.arange(len(task.features)), record)

    def batch() -> Array:
        return others[rng.choice(len(others), rng.binomial(len(others), rate), replace=False, shuffle=False)]

    typical = batch()
    along = released(task, np.append(typical, record)) - released(task, typical)
    along /= max(float(np.linalg.norm(along)), 1e-12)
    found = np.empty((2, trials))
    for side in (0, 1):
        present = rng.random(trials) < (rate if side == 0 else 0.0)
        for trial in range(trials):
            rows = np.append(batch(), record) if present[trial] else batch()
            found[side, trial] = released(task, rows) @ along
    found += privacy.sigma * privacy.clip * rng.standard_normal(found.shape)
    return found[0], found[1]


def secret_step(where: Line, promise: Promise, turners: int, trials: int, rng: np.random.Generator,
                assignment: Assignment = "hungarian") -> Scores:  # fmt: skip
    """One step on everybody with fresh targets in every trial that nobody sees: the release along the person's own.

    The start is known; its last parameters are all that this training releases.
    """
    privacy = promise.training.privacy
    assert privacy is not None
    task = replace(poised(where, promise.people - 1, turners, promise.training), assignment=assignment)
    everybody = np.arange(promise.people)
    along = released(fresh(task, rng), everybody[-1:])
    along /= np.linalg.norm(along)
    found = np.array(
        [
            [released(fresh(task, rng), everybody if side == 0 else everybody[:-1]) @ along for _ in range(trials)]
            for side in (0, 1)
        ]
    )
    found += privacy.sigma * privacy.clip * rng.standard_normal(found.shape)
    return found[0], found[1]
