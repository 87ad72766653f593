"""Labels from returned gradients: exact for vFedSec's passive parties and SplitNN's guests, and controls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from attacks.label_gradient import LabelFromGradient, at_outputs, bundles
from vflaudit.core.games import LabelInference, Score
from vflaudit.errors import InputError

SECURE: dict[str, Any] = {"randomness": "seed", "epochs": 1, "batch_size": 64}
SEEDS = range(3)


def infer(
    name: str, protocol: str, party: str, seed: int, *knows: Any, batches: int | None = None, **set_: Any
) -> Score:
    data = va.load_dataset(name, parties=3, seed=seed)
    run = va.load_protocol(protocol, **set_).run(data, seed=seed)
    guess = LabelFromGradient(first_batches=batches).run(run.view(va.Adversary({party}, knows)), seed=seed)
    return LabelInference().score(run, guess)


@pytest.mark.parametrize(
    ("protocol", "party", "parameters"),
    [
        ("vfedsec", "passive1", SECURE),
        ("vfedsec", "passive1", SECURE | {"model": "mlp"}),
        ("vfedsec", "passive1", SECURE | {"security": "clear"}),
        ("splitnn", "client1", {"max_epochs": 1}),
        ("splitnn", "client1", {"max_epochs": 1, "activation_at": "server"}),
    ],
)
@pytest.mark.parametrize("name", ["breast-cancer", "wine"])
def test_class_shares_suffice(name: str, protocol: str, party: str, parameters: dict[str, Any]) -> None:
    for seed in SEEDS:
        score = infer(name, protocol, party, seed, va.ClassPriors(), **parameters)
        assert score.score > 0.999
        if name == "wine":
            assert score.baseline == 0.5 and score.interval[0] > 0.3
        else:  # its columns go with the label: without any message they tell much of it
            assert score.metrics["baseline_source"] == "own columns alone" and 0.6 < score.baseline < 0.99
            assert score.advantage > 0.01
        assert score.notes["named_by"] == ["class priors"]
        assert score.verified or name == "wine"  # two of its classes are of nearly the same size


def test_one_batch_is_enough_and_other_rows_get_no_guess() -> None:
    whole = infer("breast-cancer", "vfedsec", "passive1", 0, va.ClassPriors(), **SECURE | {"batch_size": 279})
    assert whole.score == 1.0 and whole.notes["batches"] == 1
    some = infer("breast-cancer", "vfedsec", "passive1", 0, va.ClassPriors(), batches=1, **SECURE)
    assert some.notes["rows"] == 64 and 0.55 < some.score < 0.75  # the rest counts as undecided


def test_many_classes_are_named_by_known_labels() -> None:
    for seed in SEEDS:
        score = infer("digits", "splitnn", "client1", seed, va.LabeledSamples(60), max_epochs=1)
        assert score.metrics["accuracy"] > 0.999 and score.advantage > 0.03  # own columns alone reach 0.95


def test_a_party_uses_known_labels_of_its_own_rows_only() -> None:
    score = infer("wine", "vfedsec", "passive1", 0, va.LabeledSamples(30), **SECURE)
    assert score.score > 0.999 and score.notes["named_by"] == ["known labels"]


def test_gradients_at_the_outputs_carry_the_names() -> None:
    for seed in SEEDS:
        guest = infer("wine", "splitnn", "client1", seed, va.ClassPriors(), max_epochs=1, model="lr")
        server = infer("breast-cancer", "splitnn", "server", seed, max_epochs=1)
        for score in (guest, server):
            assert score.score > 0.999 and score.notes["named_by"] == ["the outputs themselves"]


def test_the_assumption_is_never_corrected_by_the_truth() -> None:
    for seed in SEEDS:  # here the second class is the more frequent one: all labels come out exchanged
        score = infer("breast-cancer", "vfedsec", "passive1", seed, **SECURE)
        assert score.score < 0.001 and score.verified is None and score.notes["named_by"][0].startswith("assumed")


@pytest.mark.parametrize(
    ("like", "party", "parameters"), [("vfedsec", "passive1", SECURE), ("splitnn", "client1", {"max_epochs": 1})]
)
@pytest.mark.parametrize("knows", [va.ClassPriors(), va.LabeledSamples(40)])
def test_nothing_is_found_where_nothing_is(like: str, party: str, parameters: dict[str, Any], knows: Any) -> None:
    for name in ("breast-cancer", "digits"):
        scores = [infer(name, "ideal", party, seed, knows, like=like, **parameters) for seed in SEEDS]
        assert all(score.interval[0] <= 0 for score in scores)
        assert abs(np.mean([score.score for score in scores]) - 0.5) < 0.05


def test_unmet_needs_are_told() -> None:
    with pytest.raises(InputError, match="classes"):
        data = va.load_dataset("diabetes", parties=3)
        run = va.load_protocol("vfedsec", **SECURE).run(data)
        LabelFromGradient().run(run.view(va.Adversary({"passive1"})))
    with pytest.raises(InputError, match="more than two classes"):
        infer("wine", "vfedsec", "passive1", 0, **SECURE)
    with pytest.raises(InputError, match="came back"):
        infer("breast-cancer", "centralized", "client1", 0, max_epochs=1)


@given(st.integers(3, 40), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0.0, 0.9))
def test_two_classes_under_one_layer_are_exact_whatever_is_off(rows: int, hidden: int, seed: int, off: float) -> None:
    """The theorem of the module: signs of rows and units turn the gradients non-negative."""
    rng = np.random.default_rng(seed)
    labels = np.append([True, False], rng.random(rows - 2) < rng.random())
    size = rng.uniform(0.01, 1, rows) * np.where(labels, -1, 1)
    on = rng.random((rows, hidden)) >= off
    on[:, 0] = True  # one unit that is on for everybody connects all rows
    weight = rng.uniform(0.01, 1, hidden) * rng.choice([-1, 1], hidden)
    member, *_ = bundles(size[:, None] * weight * on, 2, 0)
    assert np.array_equal(member == member[0], labels == labels[0])


def test_outputs_are_recognised_by_their_signs_and_sums() -> None:
    chances = np.random.default_rng(0).dirichlet(np.ones(4), 30)
    labels = np.arange(30) % 4
    assert at_outputs(chances - np.eye(4)[labels], 4)
    assert not at_outputs((chances - np.eye(4)[labels]) * [1, 1, 1, 2], 4)
    assert not at_outputs(np.random.default_rng(0).standard_normal((30, 4)), 4)
    assert not at_outputs(np.ones((30, 5)), 4)
