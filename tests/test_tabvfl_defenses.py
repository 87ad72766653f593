"""What TabVFL's guests could do against the masks: that each remedy does what it says, and which attack undoes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.kept_cells import KeptCells, kept_directions
from attacks.mask_algebra import Step
from attacks.mask_regression import MaskRegression
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run
from vflaudit.errors import InputError
from vflaudit.protocols.base import Protocol
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.ideal import Ideal
from vflaudit.protocols.tabvfl.guest import Guest
from vflaudit.protocols.tabvfl.protocol import TabVFL
from vflaudit.testing import assert_deterministic

SHORT: dict[str, Any] = {"pretrain_epochs": 12, "finetune_epochs": 1, "steps": 2, "patience": None}
THREE = [va.KnownSamples(3, with_ids=True)]


class IdealTabVFL(Ideal):
    """TabVFL's messages about strangers."""

    def imitated(self) -> Protocol:
        return TabVFL(**SHORT, fill="marginal")


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=5, aux=0.3, shares=(0.7, 0.15, 0.15))


def score(of: Run, attack: type[KeptCells] | type[MaskRegression] = KeptCells) -> Any:
    view = of.view(va.Adversary({HOST}, THREE))
    return va.Reconstruction(party="guest1").score(of, attack(party="guest1").run(view, seed=0))


def guest(**parameters: Any) -> Guest:
    values = np.random.default_rng(0).normal(size=(40, 3)) + 5
    return Guest(TabVFL(**parameters), "guest1", values, 2, seed=0)


# --- the remedies do what they say ---------------------------------------------------------------------------


@pytest.mark.parametrize("fill", ["zero", "mean", "marginal"])
def test_masked_cells_hold_what_fill_says_and_kept_cells_stay(fill: str) -> None:
    of = guest(fill=fill)
    of.represent(np.arange(20), masked=True, train=False)
    shown = of.batch * (1 - of.mask) + of._fill() * of.mask
    masked = of.mask.bool()
    assert torch.equal(shown[~masked], of.batch[~masked]) and masked.any()
    if fill == "zero":
        assert (shown[masked] == 0).all()
    elif fill == "mean":
        assert torch.equal(shown, torch.where(masked, of.values.mean(dim=0), of.batch))
    else:
        for column in range(3):  # every draw is somebody's value of the same column, not always the person's own
            drawn = shown[masked[:, column], column]
            assert torch.isin(drawn, of.values[:, column]).all()
            assert not torch.equal(drawn, of.batch[masked[:, column], column])


def test_a_fresh_rotation_each_epoch_keeps_lengths_and_stays_for_serving() -> None:
    plain, turned = guest(), guest(rekey=True)
    rows, sent = np.arange(20), {}
    for epoch in (0, 1):
        sent[epoch] = turned.represent(rows, masked=True, train=False, epoch=epoch)
        same = plain.represent(rows, masked=True, train=False, epoch=epoch)
        np.testing.assert_array_equal(same["mask"], sent[epoch]["mask"])
        lengths = [np.linalg.norm(of["values"], axis=1) for of in (same, sent[epoch])]
        np.testing.assert_allclose(*lengths, rtol=1e-5)
        assert np.abs(same["values"] - sent[epoch]["values"]).max() > 0.1
    before = turned.bottom.turn.clone()
    turned.represent(rows, masked=False, train=False)
    assert torch.equal(before, turned.bottom.turn)
    turned.represent(rows, masked=True, train=False, epoch=2)
    assert not torch.equal(before, turned.bottom.turn)


def test_the_released_model_has_the_last_rotation(cells: VerticalDataset) -> None:
    short = {**SHORT, "pretrain_epochs": 1}
    run = TabVFL(**short, rekey=True).run(cells)
    features = {party: block.values for party, block in run.data.blocks.items()}
    test = run.data.aligned("test")
    found = run.model.predict({party: values[test] for party, values in features.items()}).argmax(axis=1)
    assert float((found == run.data.labels[test]).mean()) == pytest.approx(run.utility["accuracy"])
    assert_deterministic(TabVFL(**short, rekey=True, fill="marginal"), cells)


def test_rekeying_is_for_tabvfl_only(cells: VerticalDataset) -> None:
    with pytest.raises(InputError, match="rekey belongs to variant=tabvfl"):
        TabVFL(variant="le", rekey=True).run(cells)


def test_withheld_masks_never_reach_the_host(cells: VerticalDataset) -> None:
    run = TabVFL(**{**SHORT, "pretrain_epochs": 1}, masks="withheld").run(cells)
    view = run.view(va.Adversary({HOST}, THREE))
    assert not any("mask" in message.arrays for message in view.transcript)
    for attack in (MaskRegression(), KeptCells()):
        with pytest.raises(InputError, match="it needs masks"):
            attack.run(view, seed=0)


def test_noise_goes_onto_what_guests_send_and_nowhere_else(cells: VerticalDataset) -> None:
    short = {**SHORT, "pretrain_epochs": 1}
    plain, noisy = (TabVFL(**short).run(cells, defenses=d) for d in ([], [GaussianNoise(sigma=2.0)]))
    first = [next(iter(run.transcript.select(kind="intermediate"))) for run in (plain, noisy)]
    np.testing.assert_array_equal(first[0].arrays["mask"], first[1].arrays["mask"])
    added = first[1].arrays["values"] - first[0].arrays["values"]
    assert 1.6 < added.std() < 2.4 and abs(added.mean()) < 0.4


# --- and what undoes them ------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(2, 5))
def test_kept_cells_are_found_exactly_whatever_stands_in_masked_cells(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    values, steps = rng.normal(size=(90, width)) + rng.normal(size=width), []
    for _ in range(12):
        for rows in np.split(rng.permutation(90), 3):
            kept = (rng.random((30, width)) < 0.5).astype(float)
            shown = kept * values[rows] + (1 - kept) * rng.normal(size=kept.shape)
            steps.append(Step(rows, kept, shown @ rng.normal(size=(width, width)) + rng.normal(size=width)))
    whole = values @ rng.normal(size=(width, width)) + rng.normal(size=width)
    directions, worst = kept_directions(steps, whole)
    found = whole @ directions
    least = min(abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(found.T, values.T, strict=True))
    assert least > 0.999 and worst < 1e-6


@pytest.mark.parametrize("parameters", [{"fill": "marginal"}, {"rekey": True}, {"fill": "marginal", "rekey": True}])
def test_neither_imputation_nor_rekeying_hides_features(cells: VerticalDataset, parameters: dict[str, Any]) -> None:
    found = score(TabVFL(**SHORT, **parameters).run(cells))
    assert found.metrics["abs_correlation"] > 0.999 and found.interval[0] > 0.9


def test_kept_cells_tell_nothing_about_strangers(cells: VerticalDataset) -> None:
    assert score(IdealTabVFL().run(cells)).interval[0] <= 0


def test_fewer_kept_rows_than_numbers_tell_nothing() -> None:
    step = Step(np.arange(4), np.ones((4, 3)), np.random.default_rng(0).normal(size=(4, 3)))
    directions, _ = kept_directions([step], np.eye(4)[:, :3])
    assert not directions.any()
