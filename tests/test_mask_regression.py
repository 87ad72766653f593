"""The masks undo the FC layer: the algebra on made-up messages, then the attack on TabVFL with its controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.mask_algebra import Step, blocks_of, solve
from attacks.mask_planes import normals, readings, window
from attacks.mask_regression import MaskRegression
from vflaudit.core.dataset import Array, Table, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.protocols.base import Protocol
from vflaudit.protocols.ideal import Ideal
from vflaudit.protocols.tabvfl.protocol import TabVFL

SHORT: dict[str, Any] = {"pretrain_epochs": 12, "finetune_epochs": 1, "steps": 2, "patience": None}
THREE = [va.KnownSamples(3, with_ids=True)]


class IdealTabVFL(Ideal):
    """TabVFL's messages about strangers."""

    def imitated(self) -> Protocol:
        return TabVFL(**SHORT)


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=5, aux=0.3, shares=(0.7, 0.15, 0.15))


@pytest.fixture(scope="module")
def run(cells: VerticalDataset) -> Run:
    return TabVFL(**SHORT).run(cells)


def score(of: Run, knows: Any = (), **parameters: Any) -> Any:
    adversary = va.Adversary({"host"}, list(knows))
    guess = MaskRegression(party="guest1", **parameters).run(of.view(adversary), seed=0)
    return va.Reconstruction(party="guest1").score(of, guess)


# --- algebra -------------------------------------------------------------------------------------------------


def made_up(
    rng: np.random.Generator, *, width: int, outputs: int, epochs: int, drift: float, shuffled: bool
) -> tuple[Array, list[Step], Step]:
    """90 people in three batches; each batch has a map of its own, whose columns it scales as a batch norm does."""
    values = rng.normal(size=(100, width)) + rng.normal(size=width)
    weights = rng.normal(size=(width, outputs))
    steps = []
    for _ in range(epochs):
        order = rng.permutation(90) if shuffled else np.arange(90)
        for rows in np.split(order, 3):
            kept = (rng.random((30, width)) < 0.5).astype(float)
            weights = weights + drift * rng.normal(size=weights.shape)
            inputs = kept * values[rows]
            sent = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0) @ weights + rng.normal(size=outputs)
            steps.append(Step(rows, kept, sent))
    whole = values @ weights + rng.normal(size=outputs)
    return values, steps, Step(np.arange(100), np.ones((100, width)), whole)


def correlations(found: Array, truth: Array) -> Array:
    return np.array([abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(found.T, truth.T, strict=True)])


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 5), shuffled=st.booleans())
def test_rows_are_recovered_exactly_up_to_one_factor_per_column(seed: int, width: int, shuffled: bool) -> None:
    rng = np.random.default_rng(seed)
    values, steps, whole = made_up(rng, width=width, outputs=width, epochs=12, drift=0.02, shuffled=shuffled)
    found = solve(steps, whole, 100, 400)
    assert found.residual < 1e-6
    assert correlations(found.values, values).min() > 0.999  # the last ten rows were never masked


def test_an_fc_layer_narrower_than_the_columns_hides_nothing_of_rows_that_were_masked() -> None:
    values, steps, whole = made_up(np.random.default_rng(0), width=6, outputs=3, epochs=30, drift=0.01, shuffled=False)
    found = solve(steps, whole, 100, 400)
    assert correlations(found.values[:90], values[:90]).min() > 0.999
    assert correlations(found.values[90:], values[90:]).mean() < 0.99  # three numbers cannot tell six


def test_without_what_was_served_each_batch_keeps_a_factor_of_its_own() -> None:
    values, steps, _ = made_up(np.random.default_rng(0), width=4, outputs=4, epochs=20, drift=0.01, shuffled=False)
    found = solve(steps, None, 100, 400)
    np.testing.assert_array_equal(found.rows, np.arange(90))
    for rows in np.split(np.arange(90), 3):
        assert correlations(found.values[rows], values[rows]).min() > 0.9999


def test_wrong_masks_explain_nothing() -> None:
    rng = np.random.default_rng(0)
    values, steps, whole = made_up(rng, width=4, outputs=4, epochs=20, drift=0.01, shuffled=False)
    wrong = [replace(step, kept=rng.permutation(step.kept)) for step in steps]
    right, other = solve(steps, whole, 100, 400), solve(wrong, whole, 100, 400)
    assert right.residual < 1e-9 and other.residual > 0.05
    assert correlations(other.values, values).mean() < 0.9 < correlations(right.values, values).min()


def test_rows_that_share_no_step_are_in_different_blocks() -> None:
    def step(rows: list[int]) -> Step:
        return Step(np.array(rows), np.ones((len(rows), 1)), np.ones((len(rows), 1)))

    blocks = blocks_of([step([0, 1]), step([2, 3]), step([3, 4])], 6)
    assert blocks[0] == blocks[1] != blocks[2] == blocks[3] == blocks[4] and blocks[5] == -1


# --- controls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaky", [{}, {"fc": False}])
def test_positive_control(cells: VerticalDataset, run: Run, leaky: dict[str, Any]) -> None:
    found = score(TabVFL(**SHORT, **leaky).run(cells) if leaky else run, THREE)
    assert found.score > 0.999 and found.interval[0] > 0.3


@pytest.mark.parametrize("knows", [[], THREE, [va.DistributionSample(100)]])
def test_negative_control(cells: VerticalDataset, knows: Any) -> None:
    assert score(IdealTabVFL(like="tabvfl").run(cells), knows).interval[0] <= 0


def test_without_any_knowledge_the_sign_is_open_and_the_rest_is_not(run: Run) -> None:
    assert score(run).score == pytest.approx(0.0, abs=1e-6)  # either sign: the mean is the best guess
    assert score(run, signs="arbitrary").metrics["abs_correlation"] > 0.9999


def test_a_sample_of_the_population_tells_the_sign_of_skewed_columns(run: Run) -> None:
    assert score(run, [va.DistributionSample(100)]).score > 0.5


def test_rows_that_were_never_trained_on_are_read_too(run: Run) -> None:
    guess = MaskRegression(party="guest1").run(run.view(va.Adversary({"host"}, THREE)))
    made, rows = guess.features["guest1"], run.data.aligned("test")
    values = made.values[np.searchsorted(made.rows, rows)]
    np.testing.assert_allclose(values, run.data.block("guest1").values[rows], atol=0.02)


def test_fewer_epochs_and_pretraining_alone_tell_less(run: Run) -> None:
    full, pretraining, one = (
        score(run, signs="arbitrary", **how).metrics["abs_correlation"]
        for how in ({}, {"served": False}, {"epochs": 1})
    )
    assert full > pretraining > 0.9 and one > 0.9


@pytest.fixture(scope="module")
def one_hot() -> VerticalDataset:
    rng = np.random.default_rng(1)
    codes = rng.integers(3, size=(300, 2))
    columns = (*(va.Column(f"c{k}", "categorical", ("a", "b", "c")) for k in range(2)), va.Column("x"), va.Column("y"))
    values = np.hstack([codes, rng.normal(size=(300, 2))])
    table = Table("made up", columns, values, codes[:, 0] % 2, "classification", classes=("no", "yes"))
    return va.load_dataset(table, split={"a": ["c0", "c1", "x"], "b": ["y"]}, aux=0.0)


def test_one_hot_columns_need_no_knowledge_at_all(one_hot: VerticalDataset) -> None:
    found = score(TabVFL(**{**SHORT, "pretrain_epochs": 25}).run(one_hot))
    assert found.metrics["category_accuracy"] > 0.99 > 0.6 > found.metrics["category_accuracy_baseline"]


# --- methods -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlinkable(cells: VerticalDataset) -> Run:
    return TabVFL(**{**SHORT, "pretrain_epochs": 4}, order="unlinkable").run(cells)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 6))
def test_one_message_and_its_masks_give_every_cell_that_was_kept(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    values, steps, _ = made_up(rng, width=width, outputs=width, epochs=1, drift=0.0, shuffled=True)
    used = window(steps, len(steps) - 1)
    normal = normals(used)
    for step in used:
        cells = readings(step, normal)
        for column in range(width):
            kept = step.kept[:, column] == 1
            if 3 <= kept.sum() < len(kept):
                truth = values[step.rows[kept], column]
                assert correlations(cells[kept][:, [column]], truth[:, None])[0] > 0.9999


def test_a_column_needs_as_many_masked_rows_as_numbers_are_sent() -> None:
    rng = np.random.default_rng(0)
    _, steps, _ = made_up(rng, width=4, outputs=4, epochs=3, drift=0.0, shuffled=False)
    few = [replace(step, kept=np.where(np.arange(30)[:, None] < 4, step.kept, 1.0)) for step in steps]
    assert len(window(steps, 8)) == 1
    assert len(window(few, 8)) > 3


def test_methods(run: Run) -> None:
    exact, nearly, rough = (score(run, THREE, method=of).score for of in ("bilinear", "null-space", "per-sample"))
    assert exact > 0.9999 > nearly > 0.999  # null-space: the layer takes a step between the phases
    assert nearly > rough > 0.7


def test_rows_in_a_secret_order_do_not_help(unlinkable: Run) -> None:
    found = score(unlinkable, THREE)
    assert found.score > 0.999 and found.notes["method"]["guest1"] == "null-space"


def test_in_pretraining_alone_a_secret_order_leaves_the_cells_that_were_kept(cells: VerticalDataset) -> None:
    kept = TabVFL(**{**SHORT, "pretrain_epochs": 1}, order="unlinkable", mask_ratio=0.3).run(cells)
    found = score(kept, signs="arbitrary", served=False)
    assert 0.7 < found.metrics["abs_correlation"] < 0.999
    ideal = Ideal(like="tabvfl", order="unlinkable", mask_ratio=0.3, **{**SHORT, "pretrain_epochs": 1}).run(cells)
    assert score(ideal, signs="arbitrary", served=False).metrics["abs_correlation"] < 0.15


def test_null_space_on_strangers_finds_nothing(cells: VerticalDataset) -> None:
    assert score(IdealTabVFL(like="tabvfl").run(cells), THREE, method="null-space").interval[0] <= 0


def test_null_space_needs_as_many_numbers_as_columns(cells: VerticalDataset) -> None:
    narrow = TabVFL(**{**SHORT, "pretrain_epochs": 1}, fc_width=3).run(cells)
    with pytest.raises(va.InputError, match="'guest1' sends 3 for 6"):
        score(narrow, method="null-space")


def test_one_hot_columns_by_null_space(one_hot: VerticalDataset) -> None:
    run = TabVFL(**{**SHORT, "pretrain_epochs": 3}, order="unlinkable").run(one_hot)
    found = score(run)
    assert found.metrics["category_accuracy"] > 0.99 > 0.6 > found.metrics["category_accuracy_baseline"]


# --- what it needs -------------------------------------------------------------------------------------------


def test_without_masks_or_links_it_says_what_it_needs(cells: VerticalDataset, run: Run, unlinkable: Run) -> None:
    blind = TabVFL(**{**SHORT, "pretrain_epochs": 1}, masks="withheld").run(cells)
    with pytest.raises(va.InputError, match="it needs masks"):
        score(blind)
    with pytest.raises(va.InputError, match="method=bilinear needs messages that name their rows"):
        score(unlinkable, method="bilinear")
    with pytest.raises(va.InputError, match="no masks from 'guest1'"):
        MaskRegression(party="guest1").run(run.view(va.Adversary({"guest2"})))
