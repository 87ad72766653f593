"""FedOnce's training: equation 1, the assignment of targets, (clipped) gradients, noise. No protocol, no wire."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.fedonce.descent import Optimiser, Privacy, Training, batches
from vflaudit.protocols.fedonce.gradients import Convolutional, Dense, network_of, vector_of, write
from vflaudit.protocols.fedonce.nat import Targets, best_permutation, train_guest, unit_targets
from vflaudit.protocols.fedonce.networks import HostNetwork, cnn0, cnn1, fully_connected
from vflaudit.protocols.networks import seeded

RNG = np.random.default_rng
SEEDS = st.integers(0, 2**32 - 1)


def fc(width: int = 5, outputs: int = 3, hidden: tuple[int, ...] = (6,), **more: Any) -> nn.Module:
    return seeded(lambda: fully_connected(width, hidden, outputs, **more), 0, "test")


def rows_sorted(values: Array) -> Array:
    return values[np.lexsort(values.T)]


# --- targets and their assignment (2.2) ---------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_the_assignment_is_the_best_of_all_permutations(count: int, width: int, seed: int) -> None:
    outputs, targets = RNG(seed).normal(size=(count, width)), unit_targets(count, width, RNG(seed + 1))
    chosen = best_permutation(outputs, targets)
    assert sorted(chosen) == list(range(count))

    def cost(order: Any) -> float:
        return float(((outputs - targets[list(order)]) ** 2).sum())

    assert cost(chosen) <= min(cost(order) for order in permutations(range(count))) + 1e-9


def test_targets_are_uniform_on_the_unit_sphere() -> None:
    points = unit_targets(20_000, 3, RNG(0))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    assert np.abs(points.mean(axis=0)).max() < 0.02
    assert np.abs(points.T @ points / len(points) - np.eye(3) / 3).max() < 0.02


@given(st.integers(2, 40), st.integers(1, 16), SEEDS)
def test_reassigned_targets_stay_a_permutation_and_cost_less(count: int, batch: int, seed: int) -> None:
    initial, outputs = unit_targets(count, 3, RNG(seed)), RNG(seed + 1).normal(size=(count, 3))
    state, rows = Targets(initial, "hungarian", 1), RNG(seed).permutation(count)[:batch]
    given_out = state.of(rows, outputs[rows], 0)
    np.testing.assert_array_equal(given_out, state.values[rows])  # written back
    np.testing.assert_array_equal(rows_sorted(state.values), rows_sorted(initial))
    untouched = np.setdiff1d(np.arange(count), rows)
    np.testing.assert_array_equal(state.values[untouched], initial[untouched])
    before, after = (((outputs[rows] - each) ** 2).sum() for each in (initial[rows], given_out))
    assert after <= before + 1e-12


def test_targets_move_only_every_f_epochs() -> None:
    initial, rows, outputs = unit_targets(8, 2, RNG(0)), np.arange(8), RNG(1).normal(size=(8, 2))
    state = Targets(initial, "hungarian", 3)
    for epoch in (0, 1):
        np.testing.assert_array_equal(state.of(rows, outputs, epoch), initial)
    assert (state.of(rows, outputs, 2) != initial).any()


def test_nearest_gives_everybody_the_nearest_public_target_whatever_the_others_are() -> None:
    initial, outputs = unit_targets(30, 3, RNG(0)), RNG(1).normal(size=(12, 3))
    together = Targets(initial, "nearest", 1).of(np.arange(12), outputs, 0)
    alone = [Targets(initial, "nearest", 1).of(np.array([i]), outputs[[i]], 0)[0] for i in range(12)]
    np.testing.assert_array_equal(together, alone)
    distances = ((outputs[:, None] - initial) ** 2).sum(axis=2)
    np.testing.assert_array_equal(together, initial[distances.argmin(axis=1)])


def test_one_record_moves_the_targets_of_others_only_under_the_hungarian_rule() -> None:
    """What sensitivity is about: another person in the batch, another target for me?"""
    initial, outputs = unit_targets(40, 3, RNG(0)), RNG(1).normal(size=(40, 3))
    other, rows = outputs.copy(), np.arange(40)
    other[7] = -3 * outputs[7]
    moved = {}
    for rule in ("hungarian", "fixed", "nearest"):
        first, second = (Targets(initial, rule, 1).of(rows, each, 0) for each in (outputs, other))
        moved[rule] = int((np.delete(first, 7, 0) != np.delete(second, 7, 0)).any(axis=1).sum())
    assert moved["hungarian"] > 0 and moved["fixed"] == moved["nearest"] == 0


# --- gradients ----------------------------------------------------------------------------------------------


def modules() -> dict[str, tuple[nn.Module, int, int]]:
    """Name -> module, input width, width of the side input."""

    def host(own: nn.Sequential, width: int) -> HostNetwork:
        return HostNetwork(own, fully_connected(width + 4, (5,), 2))

    return {
        "fc": (fc(7, hidden=(5, 4)), 7, 0),
        "no hidden layer": (fc(7, hidden=()), 7, 0),
        "tanh": (fc(7, tanh=True), 7, 0),
        "cnn0": (seeded(lambda: cnn0((8, 7), (6,), 3), 0, "c"), 56, 0),
        "cnn1": (seeded(lambda: cnn1((14, 14), (), 3), 0, "c"), 196, 0),
        "host": (seeded(lambda: host(fully_connected(7, (5,), 3), 3), 0, "h"), 7, 4),
        "host with cnn": (seeded(lambda: host(cnn0((6, 6), (), 3), 3), 0, "h"), 36, 4),
    }


def per_sample_by_autograd(module: nn.Module, inputs: Array, side: Array | None, delta: Array) -> Array:
    """The slow oracle: one backward pass per sample."""
    rows = []
    for i in range(len(inputs)):
        parts = [torch.tensor(each[i : i + 1], dtype=torch.float32) for each in (inputs, side) if each is not None]
        output = module(*parts)
        found = torch.autograd.grad(output, list(module.parameters()), torch.tensor(delta[i : i + 1]).float())
        rows.append(torch.cat([part.reshape(-1) for part in found]).numpy())
    return np.array(rows)


@pytest.mark.parametrize("name", modules())
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_are_those_of_autograd(name: str, clip: float | None) -> None:
    module, width, side_width = modules()[name]
    network, start = network_of(module), vector_of(module)
    assert isinstance(network, Convolutional if "cnn" in name else Dense)
    inputs = RNG(0).normal(size=(6, width))
    side = RNG(1).normal(size=(6, side_width)) if side_width else None
    outputs, tape = network.forward(start, inputs, side)
    delta = RNG(2).normal(size=outputs.shape)
    gradient, back = network.gradient(start, tape, delta, clip)
    each = per_sample_by_autograd(module, inputs, side, delta)
    if clip is not None:
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        assert (norms > clip).any()
        each = each / np.maximum(1, norms / clip)
    np.testing.assert_allclose(gradient, each.sum(axis=0), atol=2e-5)
    if side is not None:
        step = 1e-3 * RNG(3).normal(size=side.shape)
        slope = (network.forward(start, inputs, side + step)[0] - network.forward(start, inputs, side - step)[0]) / 2
        assert (back * step).sum() == pytest.approx((delta * slope).sum(), rel=0.05, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_clipped_sums_are_those_of_opacus() -> None:
    module, inputs = fc(), RNG(0).normal(size=(16, 5))
    network, start, delta = network_of(module), vector_of(module), RNG(1).normal(size=(16, 3))
    ours = network.gradient(start, network.forward(start, inputs)[1], delta, 0.7)[0]
    wrapped = GradSampleModule(module, loss_reduction="sum")
    (wrapped(torch.tensor(inputs).float()) * torch.tensor(delta)).sum().backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)  # type: ignore[attr-defined]
    theirs = (each / torch.clamp(each.norm(dim=1, keepdim=True) / 0.7, min=1)).sum(dim=0)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


@given(st.floats(0.01, 10), SEEDS)
def test_nobodys_gradient_exceeds_the_clip(clip: float, seed: int) -> None:
    module = fc()
    network, start = network_of(module), vector_of(module)
    inputs, delta = 10 * RNG(seed).normal(size=(1, 5)), 10 * RNG(seed + 1).normal(size=(1, 3))
    gradient = network.gradient(start, network.forward(start, inputs)[1], delta, clip)[0]
    assert np.linalg.norm(gradient) <= clip * (1 + 1e-9)


def test_parameters_survive_the_way_into_a_vector_and_back() -> None:
    module, other = fc(), seeded(lambda: fully_connected(5, (6,), 3), 1, "other")
    write(other, vector_of(module))
    np.testing.assert_array_equal(vector_of(other), vector_of(module))


def test_adam_is_pytorchs() -> None:
    training = Training(1, 1, 1e-2, 1e-3, "adam")
    ours, start = Optimiser(training, 4), RNG(0).normal(size=4)
    theirs = torch.tensor(start, requires_grad=True)
    optimiser, at = torch.optim.Adam([theirs], lr=1e-2, weight_decay=1e-3), start
    for step in range(5):
        gradient = RNG(step).normal(size=4)
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
        at = ours.step(at, gradient)
    np.testing.assert_allclose(at, theirs.detach().numpy(), rtol=1e-10)


# --- batches and noise (Algorithm 1, lines 11-13) -----------------------------------------------------------


def test_shuffled_batches_hold_everybody_at_most_once_per_epoch() -> None:
    training = Training(3, 8, 0.1)
    found = list(batches(training, 30, RNG(0)))
    assert len(found) == training.steps(30) == 9 and {len(rows) for _, rows in found} == {8}
    for epoch in range(3):
        together = np.concatenate([rows for at, rows in found if at == epoch])
        assert len(np.unique(together)) == 24
    assert len(list(batches(Training(2, 100, 0.1), 30, RNG(0)))) == 2  # a batch larger than the table is the table


def test_poisson_batches_hold_everybody_with_the_stated_probability() -> None:
    training = Training(200, 10, 0.1, privacy=Privacy(1.0, sampling="poisson"))
    found = [rows for _, rows in batches(training, 50, RNG(0))]
    assert len(found) == training.steps(50) == 1000
    sizes = np.array([len(rows) for rows in found])
    assert sizes.mean() == pytest.approx(10, abs=0.4) and sizes.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.15)
    counts = np.bincount(np.concatenate(found), minlength=50) / 1000
    assert np.abs(counts - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 1000)
    assert all(len(np.unique(rows)) == len(rows) for rows in found)


def guest(training: Training, seed: int = 0, rows: int = 64, **more: Any) -> Any:
    module, rng = fc(), RNG(5)
    features, targets = rng.normal(size=(rows, 5)), unit_targets(rows, 3, rng)
    return train_guest(network_of(module), vector_of(module), features, targets, training, seed, **more), targets


@pytest.mark.parametrize(("clipping", "deviation"), [("sample", 2.0 * 0.5 / 16), ("batch", 2.0 * 0.5)])
def test_noise_has_the_stated_scale(clipping: Any, deviation: float) -> None:
    """Sample: sigma * Omega on the sum, so / b on the mean. Batch, as printed: sigma * Omega on the gradient itself."""
    schedule = [(0, np.arange(16))]

    def step(sigma: float, seed: int) -> Array:
        training = Training(1, 16, 1.0, privacy=Privacy(sigma, 0.5, clipping))
        iterates = guest(training, seed, schedule=schedule, keep=True)[0].descent.iterates
        return iterates[1] - iterates[0]

    noise = np.concatenate([step(2.0, seed) - step(0.0, seed) for seed in range(60)])
    assert noise.std() == pytest.approx(deviation, rel=0.05) and abs(noise.mean()) < 0.05 * deviation
    bound = 0.5  # b samples of at most Omega, over b; or one gradient of at most Omega
    assert np.linalg.norm(step(0.0, 0)) <= bound + 1e-9


def test_an_empty_poisson_batch_is_noise_alone() -> None:
    training = Training(1, 16, 1.0, privacy=Privacy(1.0, 1.0, "sample", "poisson"))
    found = guest(training, schedule=[(0, np.array([], dtype=int))], keep=True)[0].descent.iterates
    assert (found[1] != found[0]).all()


def test_both_readings_of_line_11_agree_where_nothing_is_clipped() -> None:
    plain = guest(Training(2, 16, 0.1))[0].parameters
    for clipping in ("sample", "batch"):
        unclipped = Training(2, 16, 0.1, privacy=Privacy(0.0, 1e6, clipping))
        np.testing.assert_allclose(guest(unclipped)[0].parameters, plain, atol=1e-12)


# --- one guest ----------------------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_keeps_the_targets_a_permutation() -> None:
    trained, targets = guest(Training(20, 16, 1e-2, optimiser="adam"), rows=200)
    assert trained.descent.losses[-1] < 0.5 * trained.descent.losses[0]
    np.testing.assert_array_equal(rows_sorted(trained.targets), rows_sorted(targets))
    fixed, _ = guest(Training(20, 16, 1e-2, optimiser="adam"), rows=200, assignment="fixed")
    np.testing.assert_array_equal(fixed.targets, targets)
    assert trained.descent.losses[-1] < fixed.descent.losses[-1]  # moving targets is what makes noise learnable


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_a_training_can_be_repeated_and_taken_up_where_it_stood(sampling: Any) -> None:
    training = Training(2, 16, 0.1, privacy=Privacy(0.5, 1.0, "sample", sampling))
    first, targets = guest(training, 3, keep=True)
    again, _ = guest(training, 3)
    np.testing.assert_array_equal(first.parameters, again.parameters)
    np.testing.assert_array_equal(first.descent.iterates[-1], first.parameters)
    assert first.descent.iterates.shape == (training.steps(64) + 1, len(first.parameters))
    assert (guest(training, 4)[0].parameters != first.parameters).all()

    plain = Training(2, 16, 0.1, privacy=Privacy(0.0, 1.0, "sample", sampling))
    module, features = fc(), RNG(5).normal(size=(64, 5))
    schedule = list(batches(plain, 64, np.random.default_rng(0)))
    network, start = network_of(module), vector_of(module)
    half = train_guest(network, start, features, targets, plain, 3, schedule=schedule[:3])
    rest = train_guest(network, half.parameters, features, half.targets, plain, 3, schedule=schedule[3:])
    at_once = train_guest(network, start, features, targets, plain, 3, schedule=schedule)
    np.testing.assert_array_equal(rest.parameters, at_once.parameters)
    np.testing.assert_array_equal(rest.targets, at_once.targets)


def test_a_training_that_diverges_says_so() -> None:
    with np.errstate(all="ignore"), pytest.raises(InputError, match="diverged"):
        guest(Training(400, 16, 1e6))
