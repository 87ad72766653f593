"""Labels from lengths, embeddings, model completion and plain sums: positive and negative controls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import vflaudit as va
from attacks.base import Attack
from attacks.label_completion import ModelCompletion
from attacks.label_direct import DirectLabel
from attacks.label_embedding import LabelFromEmbedding
from attacks.label_gradient import LabelFromGradient, returned_gradients
from vflaudit import registry
from vflaudit.core.games import LabelInference, Score
from vflaudit.core.run import Run
from vflaudit.errors import InputError
from vflaudit.protocols.splitnn import stretched_step

PRIORS = (va.ClassPriors(),)
NOISE: Any = registry.load("defenses", "gaussian-noise")


def train(
    protocol: str = "splitnn", seed: int = 0, *, name: str = "breast-cancer", sigma: float = 0, **set_: Any
) -> Run:
    data = va.load_dataset(name, parties=3, seed=seed)
    defenses = [NOISE(at="gradients_out", sigma=sigma)] if sigma else []
    return va.load_protocol(protocol, **set_).run(data, seed=seed, defenses=defenses)


def infer(run: Run, attack: Attack, *parties: str, knows: tuple[Any, ...] = PRIORS) -> Score:
    view = run.view(va.Adversary(parties or ("client1",), knows))
    return LabelInference().score(run, attack.run(view, seed=run.seed))


@pytest.fixture(scope="module")
def strangers() -> list[Run]:
    """Negative controls: the guest's messages are about made-up people, its columns are its own."""
    return [train("ideal", seed, like="splitnn", max_epochs=2) for seed in range(3)]


@pytest.mark.parametrize(
    ("attack", "knows"),
    [
        (LabelFromGradient(first_epochs=2), PRIORS),
        (LabelFromGradient(score="norm"), PRIORS),
        (LabelFromEmbedding(), PRIORS),
        (ModelCompletion(), (va.LabeledSamples(10),)),
        (ModelCompletion(head="logistic"), (va.LabeledSamples(40),)),
    ],
)
def test_nothing_is_found_where_nothing_is(strangers: list[Run], attack: Attack, knows: Any) -> None:
    scores = [infer(run, attack, knows=knows) for run in strangers]
    assert all(score.interval[0] <= 0 for score in scores)
    assert abs(np.mean([score.score for score in scores]) - 0.5) < 0.1


def test_bare_columns_are_no_leak() -> None:
    """The same attack on columns alone must not beat the guess without the protocol."""
    score = infer(train(max_epochs=1), LabelFromEmbedding(inputs="columns"), knows=PRIORS)
    assert score.score > 0.9 and score.interval[0] <= 0


def test_plain_sums_tell_the_label_and_strangers_do_not() -> None:
    for name in ("breast-cancer", "wine"):
        score = infer(train(name=name, model="lr", max_epochs=1), DirectLabel(), knows=())
        assert score.metrics["accuracy"] == 1.0 and score.verified and score.interval[0] > 0
    score = infer(train("ideal", like="splitnn", model="lr", max_epochs=1), DirectLabel(), knows=())
    assert score.interval[0] <= 0 and abs(score.score - 0.5) < 0.1
    with pytest.raises(InputError, match="one number per class"):
        infer(train(max_epochs=1), DirectLabel())


def test_noise_that_is_drawn_apart_is_averaged_away_by_colluding_guests() -> None:
    run = train(model="lr", max_epochs=3, sigma=0.01)
    alone = infer(run, DirectLabel(first_epochs=3), knows=())
    together = infer(run, DirectLabel(first_epochs=3), "client1", "client2", knows=())
    assert not alone.verified and 0.7 < alone.score < together.score - 0.01
    assert together.notes["guests"] == 2


def test_epochs_are_joined_by_row_and_batch_sizes_undone() -> None:
    run = train(max_epochs=2)
    view = run.view(va.Adversary({"client1", "client2"}))
    both, first = returned_gradients(view, epochs=2), returned_gradients(view)
    assert len(both) == 2 and sorted(first[0].rows) == sorted(run.data.aligned("train"))
    row, total = int(first[0].rows[0]), np.zeros(first[0].values.shape[1])
    for message in run.transcript.select(receiver="client1", kind="gradient"):
        assert message.rows is not None
        at = np.flatnonzero(message.rows == row)
        if len(at):
            total += message.arrays["values"][at[0]] * len(message.rows) / 2
    assert np.allclose(both[0].values[0], total)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # one number has two signs
def test_colluding_guests_put_their_gradients_side_by_side() -> None:
    # one number per guest cannot hold three directions; two guests' numbers can
    run = train(name="wine", hidden=3, max_epochs=1)
    alone = infer(run, LabelFromGradient(), knows=(va.LabeledSamples(30),))
    together = infer(run, LabelFromGradient(), "client1", "client2", knows=(va.LabeledSamples(30),))
    assert together.metrics["accuracy"] > alone.metrics["accuracy"] + 0.1


def test_rows_that_the_first_epoch_left_out_come_with_later_ones() -> None:
    run = train("fedonce", variant="multi-round")
    one = infer(run, LabelFromGradient(), "guest1")
    ten = infer(run, LabelFromGradient(first_epochs=10), "guest1")
    assert one.notes["rows"] < ten.notes["rows"] == len(run.data.aligned("train"))
    assert ten.score >= one.score > 0.9


@pytest.mark.parametrize("variant", ["le", "lt"])
def test_a_guest_of_tabvfl_reads_labels_where_the_host_has_one_layer(variant: str) -> None:
    run = train("tabvfl", variant=variant, pretrain_epochs=1, finetune_epochs=1)
    score = infer(run, LabelFromGradient(), "guest1")
    assert score.score > 0.999 and score.verified


def test_unclear_bundles_are_not_verified() -> None:
    run = train("tabvfl", pretrain_epochs=1, finetune_epochs=1)
    score = infer(run, LabelFromGradient(), "guest1")
    assert score.verified is False and score.notes["blur"] > 0.05


def test_lengths_tell_the_rarer_class_where_the_model_knows_the_shares() -> None:
    """Li et al.: at p = the class shares, |p - y| is larger for the rarer class."""
    rng = np.random.default_rng(0)
    labels = rng.random(300) < 0.2
    gradients = (0.2 - labels)[:, None] * rng.uniform(0.5, 1, 8)
    run = train(max_epochs=1)
    view = run.view(va.Adversary({"client1"}, PRIORS))
    values, source = LabelFromGradient(score="norm")._by_norm(view, gradients, np.full(300, -1))
    assert source == ["class priors"]
    rarer = int(np.argmin(np.bincount(run.data.labels[run.data.aligned("train")])))
    assert np.array_equal((values if rarer == 1 else -values) > values.mean() * (1 if rarer == 1 else -1), labels)
    with pytest.raises(InputError, match="two classes"):
        infer(train(name="wine", max_epochs=1), LabelFromGradient(score="norm"))


def test_a_trained_bottom_separates_classes_that_the_columns_do_not() -> None:
    """Positive control: the columns' largest direction is noise, and training turns the bottom towards the label."""
    rng = np.random.default_rng(0)
    run = _noisy_guest(rng)
    found = infer(run, LabelFromEmbedding(), "client1")
    bare = infer(run, LabelFromEmbedding(inputs="columns"), "client1")
    assert found.score > 0.9 and found.score > bare.score + 0.2
    few = (va.LabeledSamples(10),)
    found = infer(run, ModelCompletion(), "client1", knows=few)
    bare = infer(run, ModelCompletion(inputs="columns"), "client1", knows=few)
    assert found.interval[0] > 0 and found.score > bare.score + 0.1


def _noisy_guest(rng: np.random.Generator) -> Run:
    """One informative column among thirty noisy ones at the guest, and training that finds it."""
    from dataclasses import replace

    data = va.load_dataset("breast-cancer", parties=2)
    labels = data.labels.astype(np.float64)
    block = data.blocks["client1"]
    values = rng.standard_normal(block.values.shape)
    values[:, 0] = labels * 2 - 1 + 0.2 * rng.standard_normal(len(labels))
    other = data.blocks["client2"]
    blocks = {"client1": replace(block, values=values), "client2": replace(other, values=other.values * 0)}
    protocol = va.load_protocol("splitnn", max_epochs=60, hidden=16, activation_at="server")
    return protocol.run(replace(data, blocks=blocks, aux=None), seed=0)


def test_completion_needs_labels_of_two_classes() -> None:
    run = train(max_epochs=1)
    with pytest.raises(InputError, match="known labels"):
        infer(run, ModelCompletion())
    only = infer(run, ModelCompletion(), knows=(va.LabeledSamples(1),))
    assert only.score == 0.5 and only.notes["known_classes"] == 1
    with pytest.raises(InputError, match="inputs=columns"):
        secure = train("vfedsec", randomness="seed", epochs=1)
        infer(secure, ModelCompletion(), "passive1", knows=(va.LabeledSamples(40),))


def test_a_stretched_step_goes_on_where_the_gradient_keeps_its_sign() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([1.0, 1.0, -1.0, 0.0])
    last = stretched_step(optimiser, [])
    assert torch.equal(weight.data, torch.tensor([-1.0, -1.0, 1.0, 0.0]))
    weight.grad = torch.tensor([1.0, -1.0, -9.0, 1.0])
    stretched_step(optimiser, last)
    assert torch.equal(weight.data, torch.tensor([-3.0, 0.0, 46.0, -1.0]))


def test_a_malicious_client_moves_further_and_must_exist() -> None:
    honest, greedy = train(max_epochs=5), train(max_epochs=5, malicious="client1")
    size = [float(np.linalg.norm(run.states["client1"].parameters["0.weight"])) for run in (honest, greedy)]
    assert size[1] > 1.05 * size[0]
    with pytest.raises(InputError, match="malicious"):
        train(max_epochs=1, malicious="client9")
