"""Whole numbers behind RAP's matrix are read off the lattice of their differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.frequency import FrequencyAnalysis
from attacks.lattice import Grid, best_move, decode, least_entropy, least_variance, read_whole_numbers, refined
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.dataset import Array
from vflaudit.core.games import Guess, Score

SHARES = ([0.4, 0.3, 0.2, 0.1], [0.05, 0.15, 0.5, 0.2, 0.1], [0.7, 0.2, 0.1])


def made(rows: int, seed: int) -> Array:
    """Three columns of small whole numbers, the last one leaning on the first."""
    rng = np.random.default_rng(seed)
    columns = [rng.choice(len(share), rows, p=share) for share in SHARES]
    return np.stack([columns[0] + 17, columns[1], columns[2] + columns[0]], axis=1).astype(np.float64)


def pixels(seed: int, protocol: str = "rap", noise: float = 0.0, **more: object) -> tuple[Score, Guess]:
    """Four pixels of digits at client1, from 0 to 16, with 500 other people."""
    data = va.load_dataset("digits", parties=16, seed=seed)
    defenses = [GaussianNoise(sigma=noise)] if noise else []
    run = va.load_protocol(protocol, max_epochs=1, hidden=4, **more).run(data, seed=seed, defenses=defenses)
    view = run.view(va.Adversary({"server"}, [va.DistributionSample(500)]))
    guess = FrequencyAnalysis(party="client1").run(view, seed)
    return va.Reconstruction(party="client1").score(run, guess), guess


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_the_columns_come_out_up_to_order_sign_origin_and_mixing(seed: int) -> None:
    """Without any knowledge: the decoded columns are a whole-number change of basis of the true ones, and back."""
    rng = np.random.default_rng(seed)
    x = made(1500, seed)
    found = decode((x @ rng.standard_normal((3, 3))).astype(np.float32).astype(np.float64), rng)
    assert found is not None and found.shape == x.shape
    centred, other = x - x[0], found - found[0]
    change = np.linalg.lstsq(centred, other.astype(float), rcond=None)[0]
    np.testing.assert_allclose(change, change.round(), atol=1e-6)
    assert abs(abs(np.linalg.det(change)) - 1) < 1e-6


def test_one_hot_columns_come_out_as_zeros_and_ones() -> None:
    rng = np.random.default_rng(0)
    hot = np.hstack([np.eye(len(share))[rng.choice(len(share), 2000, p=share)] for share in SHARES])
    found = decode(hot @ rng.standard_normal((12, 12)), rng)
    assert found is not None and found.shape[1] == 12 - 3 and found.min() == 0 and found.max() == 1
    for column in found.T:  # each is a category, or all but one
        assert any(np.array_equal(column, side) for true in hot.T for side in (true, 1 - true))


@pytest.mark.parametrize("standardise", [True, False])
def test_pixels_are_read_exactly(standardise: bool) -> None:
    found = [pixels(seed, standardise=standardise) for seed in range(4)]
    assert np.median([score.score for score, _ in found]) > 0.999
    for score, guess in found:
        assert score.score > 0.999 if guess.verified else score.score > -0.1
    assert sum(bool(guess.verified) for _, guess in found) >= 2


def test_nothing_is_read_where_nothing_is_whole() -> None:
    for seed in range(3):
        for score, guess in (pixels(seed, "ideal", like="rap"), pixels(seed, noise=0.5)):
            assert guess.verified is False and guess.notes["client1"]["result"] == "no lattice"
            assert score.interval[0] <= 0


def test_everything_is_read_where_everything_is_sent() -> None:
    score, guess = pixels(0, "centralized")
    assert score.score > 0.999 and guess.verified


def test_another_population_does_not_name_the_columns() -> None:
    rng = np.random.default_rng(0)
    x = made(3000, 0)
    strangers = np.stack([rng.integers(0, 30, 2000), rng.integers(0, 9, 2000), rng.integers(0, 4, 2000)], axis=1)
    values, note = read_whole_numbers(x @ rng.standard_normal((3, 3)), strangers.astype(float), rng)
    assert values is None and note["verified"] is False
    values, note = read_whole_numbers(x @ rng.standard_normal((3, 3)), made(3000, 1), rng)
    assert values is not None and note["verified"]
    np.testing.assert_allclose(values, x)


def test_a_measured_column_is_not_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    people = np.column_stack([made(200, 0), rng.standard_normal(200)])
    assert Grid.of(people) is None
    values, note = read_whole_numbers(people @ rng.standard_normal((4, 4)), people, rng)
    assert values is None and note["result"] == "a column is not on a grid"
    grid = Grid.of(made(200, 0) / 7 - 3)
    assert grid is not None
    np.testing.assert_allclose(grid.unit, 1 / 7)


def test_parts() -> None:
    rng = np.random.default_rng(0)
    x = made(2000, 0).astype(np.int64)
    counts = np.ones(2000)
    mixed = x @ np.array([[1, 0, 3], [2, 1, 0], [0, 0, 1]])
    plain = least_entropy(least_variance(mixed, counts), counts)
    assert sorted(np.ptp(plain, axis=0)) <= sorted(np.ptp(x, axis=0))
    basis = refined(x.astype(float) - x[0], np.diag([2.0, 3.0, 2.0]))
    assert basis is not None and abs(abs(np.linalg.det(basis)) - 1) < 1e-9
    assert refined(rng.standard_normal((50, 3)), np.eye(3)) is None
    move = best_move(5 - x[:, 1], x[:, 1])
    assert (move.sign, move.shift) == (-1, 5) and move.margin > 10
