"""Other ways to undo TabVFL's FC layer: without the masks, and from people whose columns are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.component_matching import from_shapes, match
from attacks.hidden_planes import find
from attacks.inversion import RepresentationInversion
from attacks.unmixing import BlindUnmixing
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.protocols.ideal import Ideal
from vflaudit.protocols.tabvfl.protocol import TabVFL

SHORT: dict[str, Any] = {"pretrain_epochs": 5, "finetune_epochs": 1, "steps": 2, "patience": None}
THREE = [va.KnownSamples(3, with_ids=True)]
PEOPLE = [va.DistributionSample(100)]


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=5, aux=0.3, shares=(0.7, 0.15, 0.15))


@pytest.fixture(scope="module")
def withheld(cells: VerticalDataset) -> Run:
    return TabVFL(**SHORT, masks="withheld").run(cells)


@pytest.fixture(scope="module")
def strangers(cells: VerticalDataset) -> Run:
    return Ideal(like="tabvfl", **SHORT).run(cells)


def score(attack: Any, of: Run, knows: Any) -> Any:
    guess = attack.run(of.view(va.Adversary({"host"}, list(knows))), seed=0)
    return va.Reconstruction(party="guest1").score(of, guess)


def unmixed(of: Run, knows: Any, **parameters: Any) -> Any:
    return score(BlindUnmixing(party="guest1", **parameters), of, knows)


# --- hyperplanes without masks -------------------------------------------------------------------------------


def message(rng: np.random.Generator, width: int, rows: int, hidden: float) -> tuple[Array, Array]:
    """Masked rows, and what is sent about them."""
    cells = rng.normal(size=(rows, width)) * (rng.random((rows, width)) >= hidden)
    return cells, (cells - cells.mean(axis=0)) @ rng.normal(size=(width, width))


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(2, 6))
def test_hyperplanes_are_found_without_masks(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    cells, sent = message(rng, width, 64, 0.5)
    normal = find([sent], rng, draws=4000, keep=100)
    seen = np.abs(np.corrcoef((sent @ normal).T, cells.T)[: normal.shape[1], normal.shape[1] :])
    assert normal.shape[1] == width
    assert seen.max(axis=0).min() > 0.9999 and len(set(seen.argmax(axis=0))) == width


def test_where_no_cell_is_masked_no_hyperplane_is_found() -> None:
    rng = np.random.default_rng(0)
    _, sent = message(rng, 5, 64, 0.0)
    assert find([sent], rng, draws=4000, keep=100).shape == (5, 0)


# --- names for components ------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 6))
def test_swapping_and_turning_never_ends_further_from_the_correlations_than_it_begins(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(500, 2)) @ rng.normal(size=(2, width)) + rng.normal(size=(500, width))
    wanted, order = np.atleast_2d(np.corrcoef(columns.T)), rng.permutation(width)
    signs = rng.choice([-1.0, 1.0], size=width)
    seen = np.outer(signs, signs) * wanted[np.ix_(order, order)]
    found = match(np.zeros((width, width, 2)), seen, wanted, 500)
    turned = seen[np.ix_(found.component, found.component)] * np.outer(found.sign, found.sign)
    assert sorted(found.component) == list(range(width))
    assert ((turned - wanted) ** 2).sum() <= ((seen - wanted) ** 2).sum() + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_shapes_tell_the_order_and_the_signs_of_columns_that_differ(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def people(count: int) -> Array:
        drawn = np.stack([rng.exponential(size=count), rng.normal(size=count) ** 3, rng.beta(0.5, 0.2, count)], axis=1)
        return (drawn - drawn.mean(axis=0)) / drawn.std(axis=0)

    order, signs = rng.permutation(3), rng.choice([-1.0, 1.0], size=3)
    found = match(from_shapes(people(300), people(300)[:, order] * signs), None, None, 0)
    np.testing.assert_array_equal(order[found.component], [0, 1, 2])
    turn = found.sign * signs[found.component]
    assert turn[0] == turn[2] == 1.0  # the second column is symmetric: its sign cannot be told


# --- controls ------------------------------------------------------------------------------------------------


def test_withholding_masks_does_not_help(withheld: Run) -> None:
    found = unmixed(withheld, THREE)
    assert found.notes["directions"]["guest1"] == 6
    assert found.score > 0.999 and found.interval[0] > 0.3


def test_with_a_sample_of_the_population_instead_of_known_people(withheld: Run) -> None:
    found = unmixed(withheld, PEOPLE)
    assert found.interval[0] > 0.1


def test_independent_components_are_the_weaker_way(withheld: Run) -> None:
    known = [va.KnownSamples(10, with_ids=True)]
    weaker, planes = unmixed(withheld, known, method="fastica"), unmixed(withheld, known)
    assert weaker.interval[0] > 0.1 and planes.score > 0.999 > weaker.score


@pytest.mark.parametrize("method", ["planes", "fastica"])
@pytest.mark.parametrize("knows", [THREE, PEOPLE])
def test_negative_control(strangers: Run, method: str, knows: Any) -> None:
    assert unmixed(strangers, knows, method=method).interval[0] <= 0


def test_a_narrow_layer_has_no_hyperplanes(cells: VerticalDataset) -> None:
    narrow = TabVFL(**SHORT, masks="withheld", fc_width=3).run(cells)
    with pytest.raises(va.InputError, match="'guest1' sends 3 for 6"):
        unmixed(narrow, THREE)
    assert unmixed(narrow, THREE, method="fastica").notes["directions"]["guest1"] == 3


def test_it_says_what_it_needs(cells: VerticalDataset, withheld: Run) -> None:
    with pytest.raises(va.InputError, match="it needs people"):
        unmixed(withheld, [])
    local = TabVFL(**SHORT, variant="lt").run(cells)
    with pytest.raises(va.InputError, match="it needs intermediate results"):
        unmixed(local, THREE)


# --- inversion from known people -----------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [{}, {"fc": False}])
def test_twenty_known_people_undo_the_layer_in_either_phase(cells: VerticalDataset, layer: dict[str, Any]) -> None:
    run, known = TabVFL(**SHORT, **layer).run(cells), [va.KnownSamples(20, with_ids=True)]
    attack = RepresentationInversion(party="guest1", learners=("ridge", "kernel"))
    finetuning = score(attack.model_copy(update={"kind": "representation"}), run, known)
    pretraining = score(attack.model_copy(update={"kind": "intermediate"}), run, known)
    assert finetuning.score > 0.99 > pretraining.score and pretraining.interval[0] > 0
    assert score(attack, run, known).score == finetuning.score  # by default what was sent about all rows


@pytest.mark.parametrize("kind", ["representation", "intermediate"])
def test_inversion_of_strangers_finds_nothing(strangers: Run, kind: str) -> None:
    attack = RepresentationInversion(party="guest1", learners=("ridge", "kernel"), kind=kind)
    assert score(attack, strangers, [va.KnownSamples(20, with_ids=True)]).interval[0] <= 0
