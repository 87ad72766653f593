"""The audit of FedOnce-L1: sensitivity of a step, bounds with known and secret targets, controls that stay below."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from attacks.nat_audit import (
    bound,
    first_step,
    known_step,
    secret_step,
    single_step,
    table_10,
    worst_people,
)
from attacks.nat_runs import crowd, full_run, separation
from attacks.nat_steps import change, natural_changes, privacy_of, released
from attacks.nat_worst import GAP, Line, high_targets, line, turning
from vflaudit import load_protocol
from vflaudit.core.adversary import Adversary, ReleasedModel
from vflaudit.core.games import Distinguishing
from vflaudit.core.loading import load_dataset
from vflaudit.core.randomness import stream
from vflaudit.protocols.fedonce.nat import GuestTask
from vflaudit.protocols.fedonce.oneshot import guest_task


@pytest.fixture(scope="module")
def where() -> Line:
    return line(0)


def people(where: Line, batch: int, clipping: str = "sample", assignment: str = "hungarian") -> tuple[GuestTask, int]:
    targets = high_targets(where, batch, 3, np.random.default_rng(1))
    training = single_step(1.0, batch, clipping=clipping).training  # type: ignore[arg-type]
    return turning(where, targets, training, 0, assignment)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def real() -> tuple[GuestTask, np.ndarray]:
    target = load_protocol("fedonce", variant="l1", sampling="poisson", guest_epochs=3)
    data = target.prepare(load_dataset("breast-cancer", parties=4, seed=0))
    return guest_task(target, data, "guest1", 0), data.blocks["guest1"].values[data.aligned("test")]


# --- one step -----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(2, 100))
def test_one_person_turns_everybody(batch: int) -> None:
    """Add or remove: 2B - 1 clips; replace: 2B."""
    where = line(0)
    task, canary = people(where, batch)
    honest = where.people(task.targets[canary : canary + 1] @ where.direction - GAP)[0]
    assert change(task, np.arange(batch), canary) == pytest.approx(2 * batch - 1, rel=1e-3)
    assert change(task, np.arange(batch), canary, honest) == pytest.approx(2 * batch, rel=1e-3)


@pytest.mark.parametrize("assignment", ["fixed", "nearest"])
@pytest.mark.parametrize("batch", [2, 32, 128])
def test_controls_have_the_sensitivity_of_the_clip(where: Line, assignment: str, batch: int) -> None:
    task, canary = people(where, batch, assignment=assignment)
    assert change(task, np.arange(batch), canary) <= 1 + 1e-9


@pytest.mark.parametrize("batch", [2, 32, 128])
def test_clipping_the_whole_gradient_bounds_it_by_two(where: Line, batch: int) -> None:
    task, canary = people(where, batch, "batch")
    assert 1.9 < change(task, np.arange(batch), canary) <= 2 + 1e-9


def test_natural_people_move_others_too(real: tuple[GuestTask, np.ndarray]) -> None:
    found = {
        name: natural_changes(replace(real[0], assignment=name), 32, np.random.default_rng(0))
        for name in ("hungarian", "fixed", "nearest")
    }
    assert found["hungarian"].max() > 1.5
    assert max(found["fixed"].max(), found["nearest"].max()) <= 1 + 1e-9


@pytest.mark.parametrize("clipping", ["sample", "batch"])
@pytest.mark.parametrize("assignment", ["hungarian", "fixed", "nearest"])
def test_released_is_what_training_does(real: tuple[GuestTask, np.ndarray], clipping: str, assignment: str) -> None:
    """The step without noise is the step of the protocol's own training."""
    task = real[0]
    quiet = replace(privacy_of(task), sigma=0.0, clipping=clipping)
    task = replace(task, training=replace(task.training, privacy=quiet), assignment=assignment)
    rows = np.arange(5, 30)
    iterates = task.train(schedule=[(0, rows)], keep=True).descent.iterates
    assert iterates is not None
    scale = task.training.batch if clipping == "sample" else 1
    moved = (iterates[0] - iterates[1]) * scale / task.training.learning_rate
    np.testing.assert_allclose(released(task, rows), moved, atol=1e-9)


# --- audits of steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clipping", "claimed"), [("sample", 1.0), ("sample", 4.0), ("batch", 1.0)])
def test_one_step_with_known_targets_exceeds_its_claim(where: Line, clipping: str, claimed: float) -> None:
    targets = high_targets(where, 32, 3, np.random.default_rng(1))
    task, canary = turning(where, targets, single_step(claimed, 32, clipping=clipping).training, 0)  # type: ignore[arg-type]
    found = bound(known_step(task, np.arange(32), canary, 500_000, stream(0, "test")), 0)
    assert found.refutes(claimed, "add-remove")


@pytest.mark.parametrize("assignment", ["fixed", "nearest"])
def test_controls_stay_below_their_claim(where: Line, assignment: str) -> None:
    task, canary = people(where, 32, assignment=assignment)
    found = bound(known_step(task, np.arange(32), canary, 500_000, stream(0, "test")), 0)
    assert 0.2 < found.epsilon < 1.0  # awake, and not crying wolf


def test_null_is_rarely_positive(where: Line) -> None:
    task, _ = people(where, 32)
    scores = [known_step(task, np.arange(32), None, 500, stream(seed, "test")) for seed in range(200)]
    positive = sum(bound(each, seed).epsilon > 0 for seed, each in enumerate(scores))
    assert positive <= binom.ppf(0.999, 200, 0.05)


def test_table_10_first_step() -> None:
    """The paper's parameters on a smaller table, so that fewer trials meet the person."""
    promise = table_10(people=300)
    assert promise.accounted() < promise.epsilon == 2.0
    found = {}
    for assignment, trials in (("hungarian", 3000), ("fixed", 1000), ("nearest", 1000)):
        task, canary = worst_people(promise, 0, assignment)  # type: ignore[arg-type]
        found[assignment] = bound(first_step(task, canary, promise.people, trials, stream(0, "test")), 0).epsilon
    assert found["hungarian"] > 2.0
    assert max(found["fixed"], found["nearest"]) < 2.0


def test_one_step_with_secret_targets_exceeds_a_small_claim(where: Line) -> None:
    promise = single_step(0.5, 32)
    found = {
        name: bound(secret_step(where, promise, 7, trials, stream(0, "test"), name), 0).epsilon  # type: ignore[arg-type]
        for name, trials in (("hungarian", 15_000), ("fixed", 4000))
    }
    assert found["hungarian"] > 0.5 > found["fixed"]


# --- whole trainings ----------------------------------------------------------------------------------------


def test_whole_trainings(real: tuple[GuestTask, np.ndarray]) -> None:
    """Hardly any noise: both adversaries win. The paper's noise: neither exceeds the claim."""
    task, options = crowd(*real, count=1)
    privacy = privacy_of(task)
    task = replace(task, training=replace(task.training, epochs=10))
    loud = replace(task, training=replace(task.training, privacy=replace(privacy, sigma=privacy.sigma / 20)))
    for target, secret, wins in ((loud, True, True), (loud, False, True), (task, True, False)):
        found = full_run(target, options, 0, secret=secret, choosing=30, runs=60)
        for scores in found.values():
            assert (separation(*scores) > 0.75) == wins
            assert (bound(scores, 0).epsilon > 0.3) if wins else (bound(scores, 0).epsilon < 2.0)


def test_the_game_takes_the_bound(where: Line) -> None:
    task, canary = people(where, 32)
    found = bound(known_step(task, np.arange(32), canary, 2000, stream(0, "test")), 0)
    score = Distinguishing().score_bound(
        found, attack="nat-audit", adversary=Adversary((), [ReleasedModel("white-box")])
    )
    assert score.metric == "epsilon_lower" and score.score == found.epsilon and found.auditor_limited
