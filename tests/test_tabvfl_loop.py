"""TabVFL's training loop: early stopping and mini-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vflaudit as va
from vflaudit.core.dataset import Array
from vflaudit.protocols.tabvfl.loop import Training, fit


def training(**changes: Any) -> Training:
    return replace(Training(20, 4, 2, False, 0.1, 0.0), **changes)


def epochs_of(validation: list[float], **changes: Any) -> int:
    rng = np.random.default_rng(0)
    return len(fit(training(**changes), np.arange(8), rng, lambda rows, epoch: 1.0, lambda epoch: validation[epoch]))


def test_training_stops_when_the_score_has_not_improved_for_longer_than_the_patience() -> None:
    assert epochs_of([1.0, 2.0, 1.0, 2.0, 1.0, *[9.0] * 15]) == 5  # the best is the second; three more are too many
    assert epochs_of(list(range(20))) == 20
    assert epochs_of([1.0] * 20, patience=0) == 2
    assert epochs_of([1.0] * 20, patience=None) == 20
    assert len(fit(training(), np.arange(8), np.random.default_rng(0), lambda rows, epoch: 1.0, None)) == 20


def test_batches_cover_all_rows_but_a_last_single_one() -> None:
    seen: list[Array] = []

    def step(rows: Array, epoch: int) -> float:
        seen.append(rows)
        return float(len(rows))

    losses = fit(training(epochs=1), np.arange(9), np.random.default_rng(0), step, None)
    assert [rows.tolist() for rows in seen] == [[0, 1, 2, 3], [4, 5, 6, 7]] and losses == [4.0]
    seen.clear()
    losses = fit(training(epochs=1, shuffle=True), np.arange(10), np.random.default_rng(0), step, None)
    assert sorted(np.concatenate(seen)) == list(range(10)) and losses == [pytest.approx(3.6)]


def test_divergence_is_said_in_one_sentence() -> None:
    with pytest.raises(va.InputError, match=r"learning_rate below 0\.1"):
        fit(training(), np.arange(8), np.random.default_rng(0), lambda rows, epoch: float("nan"), None)
