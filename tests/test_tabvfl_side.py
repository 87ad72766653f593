"""TabVFL's other channels: decoder gradients tell the host features; who sees that a guest is offline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.decoder_gradients import Answer, DecoderGradients, solve_answers
from attacks.mask_regression import MaskRegression
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run
from vflaudit.errors import InputError
from vflaudit.protocols.base import Protocol
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.ideal import Ideal
from vflaudit.protocols.tabvfl.protocol import TabVFL

SHORT: dict[str, Any] = {"pretrain_epochs": 15, "finetune_epochs": 1, "steps": 2, "patience": None}
THREE = [va.KnownSamples(3, with_ids=True)]


class IdealTabVFL(Ideal):
    """TabVFL's messages about strangers."""

    def imitated(self) -> Protocol:
        return TabVFL(**SHORT)


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=5, aux=0.3, shares=(0.7, 0.15, 0.15))


def score(of: Run, attack: Any) -> Any:
    view = of.view(va.Adversary({HOST}, THREE))
    return va.Reconstruction(party="guest1").score(of, attack.run(view, seed=0))


# --- decoder gradients ---------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 2), shuffled=st.booleans())
def test_answers_of_made_up_guests_are_solved_up_to_a_factor(seed: int, outputs: int, shuffled: bool) -> None:
    rng = np.random.default_rng(seed)
    values, weights, found = rng.normal(size=(120, 3)), rng.normal(size=(3, outputs)), []
    weights += np.sign(weights)  # a weight next to zero hides its column
    for _ in range(20):
        order = rng.permutation(120) if shuffled else np.arange(120)
        for rows in np.split(order, 3):
            masked, told = (rng.random((40, 3)) < 0.5).astype(float), 0.3 * rng.normal(size=(40, outputs))
            errors = masked * (told @ weights.T - values[rows]) / values[rows].var(axis=0)
            found.append(Answer(rows, masked, told, errors @ weights))
    solved, residual = solve_answers(found, 120, 300)
    assert residual < 1e-8
    assert min(abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(solved.T, values.T, strict=True)) > 0.99


def test_decoder_gradients_tell_features_through_noise_on_intermediate_results(cells: VerticalDataset) -> None:
    run = TabVFL(**SHORT).run(cells, defenses=[GaussianNoise(sigma=5.0)])
    found = score(run, DecoderGradients(party="guest1"))
    assert found.interval[0] > 0.5 and found.metrics["abs_correlation"] > 0.9
    assert score(run, MaskRegression(party="guest1", iterations=20)).metrics["r2"] < found.metrics["r2"]


def test_decoder_gradients_tell_nothing_about_strangers(cells: VerticalDataset) -> None:
    assert score(IdealTabVFL().run(cells), DecoderGradients(party="guest1")).interval[0] <= 0


def test_without_masks_there_is_nothing_to_solve(cells: VerticalDataset) -> None:
    run = TabVFL(**{**SHORT, "pretrain_epochs": 1}, masks="withheld").run(cells)
    with pytest.raises(InputError, match="masks and decoder gradients"):
        score(run, DecoderGradients())


# --- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remedy", ["cache", "zeros"])
def test_the_host_sees_who_is_offline_and_a_guest_sees_no_message_that_says_so(
    cells: VerticalDataset, remedy: str
) -> None:
    run = TabVFL(**{**SHORT, "pretrain_epochs": 5}, p_fail=0.5, on_failure=remedy).run(cells)

    def epochs(who: str, sender: str) -> set[int | None]:
        view = run.view(va.Adversary({who}))
        return {message.epoch for message in view.transcript.select(sender=sender, kind="intermediate")}

    away = {guest: set(range(5)) - epochs(HOST, guest) for guest in run.data.parties}
    assert any(away.values()) and all(0 not in missed for missed in away.values())  # the first epoch has everybody
    assert sum(map(len, away.values())) <= run.utility["offline_epochs"]  # fine-tuning may miss more
    for other in run.data.parties[1:]:  # what guest1 is sent has the same form whoever else is there
        assert not epochs("guest1", other)
    kinds = {
        (message.epoch, message.kind): set(message.arrays)
        for message in run.view(va.Adversary({"guest1"})).transcript.select(receiver="guest1")
    }
    assert all(names == {"values"} for names in kinds.values())
    assert {epoch for epoch, kind in kinds if kind == "decoded"} == set(range(5)) - away["guest1"]


@pytest.mark.parametrize("remedy", ["cache", "zeros"])
def test_failures_do_not_stop_mask_regression(cells: VerticalDataset, remedy: str) -> None:
    run = TabVFL(**SHORT, p_fail=0.2, on_failure=remedy).run(cells)
    assert score(run, MaskRegression(party="guest1")).metrics["abs_correlation"] > 0.99
