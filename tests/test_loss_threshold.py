"""Membership by the loss: found where a model learns by heart, not found in an ideal run, and no matter to masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from attacks.loss_threshold import LossThreshold
from attacks.membership_base import share_above
from vflaudit.core.dataset import Column, Table, VerticalDataset
from vflaudit.core.games import Guess, Membership, Score
from vflaudit.core.run import Run
from vflaudit.errors import InputError

OUTSIDER = va.Adversary((), [va.ReleasedModel()])
SECURE: dict[str, Any] = {"randomness": "seed", "batch_size": 64, "epochs": 3}


def noise_table(classes: int, seed: int) -> VerticalDataset:
    """Labels that have nothing to do with the columns: a model can only learn them by heart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=260)
    columns = tuple(Column(f"x{k}") for k in range(12))
    names = tuple(str(k) for k in range(classes))
    table = Table("noise", columns, rng.standard_normal((260, 12)), labels, "classification", names)
    return va.load_dataset(table, parties=3, seed=seed)


def attack(run: Run, **parameters: Any) -> tuple[Guess, Score]:
    game = Membership()
    guess = LossThreshold(**parameters).run(run.view(OUTSIDER, challenge=game.challenge(run)), seed=run.seed)
    return guess, game.score(run, guess)


@pytest.mark.parametrize("per_class", [False, True])
def test_what_is_learnt_by_heart_is_found(per_class: bool) -> None:
    protocol = va.load_protocol("centralized", max_epochs=200, learning_rate=0.01)
    for seed in range(2):
        _, score = attack(protocol.run(noise_table(3, seed), seed=seed), per_class=per_class)
        # who knows the labels by heart gets one in three others right: 1 - 1/3 * 1/2, or more where it is less sure
        assert score.score > 5 / 6 and score.interval[0] > 0.25


def test_regression_and_the_secure_layer_are_no_exception() -> None:
    data = va.load_dataset("diabetes", parties=3)
    secured = va.load_protocol(
        "vfedsec", **SECURE | {"model": "mlp", "optimiser": "adam", "learning_rate": 0.003, "epochs": 40}
    )
    _, score = attack(secured.run(data, seed=0))
    assert score.score > 0.75 and score.interval[0] > 0.15


def test_masks_change_nothing() -> None:
    data = va.load_dataset("wine", parties=3)
    masked, plain = (va.load_protocol("vfedsec", security=kind, **SECURE) for kind in ("masked", "quantised"))
    (one, score), (other, same) = attack(masked.run(data, seed=0)), attack(plain.run(data, seed=0))
    assert one.membership is not None and other.membership is not None
    assert np.array_equal(one.membership, other.membership) and score.score == same.score
    assert np.ptp(one.membership) > 0


@pytest.mark.parametrize("per_class", [False, True])
def test_nothing_is_found_where_nothing_is(per_class: bool) -> None:
    ideal = va.load_protocol("ideal", like="vfedsec", **SECURE)
    scores = [
        attack(ideal.run(va.load_dataset("breast-cancer", parties=3, seed=seed), seed=seed), per_class=per_class)[1]
        for seed in range(4)
    ]
    low, high = np.min([s.interval for s in scores], axis=0)[0], np.max([s.interval for s in scores], axis=0)[1]
    assert low < 0 < high and abs(np.mean([score.advantage for score in scores])) < 0.05


def test_it_needs_the_model_and_candidates() -> None:
    run = va.load_protocol("vfedsec", **SECURE).run(va.load_dataset("iris", parties=3))
    with pytest.raises(InputError, match="the trained model"):
        LossThreshold().run(run.view(va.Adversary({"server"}), challenge=Membership().challenge(run)))
    with pytest.raises(InputError, match="candidates"):
        LossThreshold().run(run.view(OUTSIDER))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20))
def test_shares_count_ties_half(values: list[int]) -> None:
    loss = np.array(values, dtype=np.float64)
    slow = [np.mean([(other > own) + 0.5 * (other == own) for other in loss]) for own in loss]
    assert np.allclose(share_above(loss), slow)
