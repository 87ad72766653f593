"""TabVFL and its baselines: what is sent, that the split changes nothing, and what the options do."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import vflaudit as va
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.tabvfl import blocks
from vflaudit.protocols.tabvfl.blocks import ConcatHead, Shape, reconstruction_loss, seeded_tabnet
from vflaudit.protocols.tabvfl.guest import make_modules
from vflaudit.protocols.tabvfl.protocol import TabVFL
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.strategies import vertical_datasets

GUESTS = ("guest1", "guest2", "guest3")
VARIANTS = ("tabvfl", "le", "lt", "ct")
SHORT: dict[str, Any] = {"pretrain_epochs": 2, "finetune_epochs": 2, "steps": 2}


def tabvfl(data: VerticalDataset, seed: int = 0, **parameters: Any) -> Run:
    return TabVFL(**{**SHORT, **parameters}).run(data, seed=seed)


@pytest.fixture(scope="module")
def cells() -> VerticalDataset:
    """130 people of breast cancer at three guests: 91 to train on, two batches an epoch."""
    return va.load_dataset("breast-cancer", parties=3, rows=130, aux=0.0, shares=(0.7, 0.15, 0.15))


@pytest.fixture(scope="module")
def short(cells: VerticalDataset) -> Run:
    return tabvfl(cells)


def sent(run: Run, kind: str, **where: Any) -> list[Any]:
    return list(run.transcript.select(kind=kind, **where))


# --- who, and what is sent ----------------------------------------------------------------------------------


def test_all_columns_are_at_guests_and_the_host_has_the_labels(cells: VerticalDataset) -> None:
    protocol = TabVFL()
    prepared = protocol.prepare(cells)
    assert protocol.parties(prepared) == (HOST, *GUESTS) and prepared.label_owner == HOST
    assert protocol.default_corrupts() == {HOST} and protocol.prepare(prepared).parties == prepared.parties
    assert prepared.block("guest2").columns == cells.block("client2").columns


def test_a_pretraining_step_sends_results_and_masks_up_parts_down_losses_up_gradients_down(short: Run) -> None:
    first = [message for message in short.transcript if message.step < 4]
    kinds = [(m.step, m.sender, m.receiver, m.kind) for m in first]
    expected = [(0, guest, HOST, "intermediate") for guest in GUESTS]
    expected += [(1, HOST, guest, "decoded") for guest in GUESTS]
    expected += [(2, guest, HOST, kind) for guest in GUESTS for kind in ("loss", "decoded_gradient")]
    expected += [(3, HOST, guest, "intermediate_gradient") for guest in GUESTS]
    assert kinds == expected
    batch = short.data.aligned("train")[:64]
    parts = dict(zip(GUESTS, TabVFL().chunks(3), strict=True))
    assert list(parts.values()) == [2, 2, 1]
    for message in first:
        guest = message.receiver if message.sender == HOST else message.sender
        width = short.data.block(guest).width
        shape = {
            "intermediate": (64, width),
            "decoded": (64, parts[guest]),
            "decoded_gradient": (64, parts[guest]),
            "intermediate_gradient": (64, width),
            "loss": (1,),
        }[message.kind]
        assert message.arrays["values"].shape == shape and message.epoch == 0
        if message.kind != "loss":
            np.testing.assert_array_equal(message.rows, batch)
    assert set(sent(short, "intermediate")[0].arrays) == {"values", "mask"}


def test_a_finetuning_step_sends_representations_up_and_gradients_down(short: Run) -> None:
    late = [m for m in short.transcript if m.epoch is not None and m.epoch >= 2]
    assert {(m.kind, m.sender == HOST) for m in late} == {("representation", False), ("gradient", True)}
    assert all(set(m.arrays) == {"values"} for m in late)
    assert sorted({m.epoch for m in late}) == [2, 3]  # epochs count on after the two of pretraining


def test_masks_hide_the_share_that_was_asked_for(cells: VerticalDataset) -> None:
    for ratio in (0.0, 0.3, 1.0):
        masks = [m.arrays["mask"] for m in sent(tabvfl(cells, mask_ratio=ratio, finetune_epochs=0), "intermediate")]
        cells_seen = np.concatenate([mask.ravel() for mask in masks])
        assert cells_seen.mean() == pytest.approx(ratio, abs=4 * np.sqrt(ratio * (1 - ratio) / len(cells_seen)))


def affine_residual(run: Run, message: Any) -> float:
    """How far a message is from an affine function of the masked columns of its rows, relative to its size."""
    columns = run.data.block(message.sender).values[message.rows]
    if "mask" in message.arrays:
        columns = columns * (1 - message.arrays["mask"])
    inputs = np.hstack([columns, np.ones((len(columns), 1))])
    values = message.arrays["values"].astype(float)
    rest = values - inputs @ np.linalg.lstsq(inputs, values, rcond=None)[0]
    return float(np.linalg.norm(rest) / np.linalg.norm(values))


@pytest.mark.parametrize("extra", [{}, {"fc": False}, {"fc_width": 4}])
def test_what_a_guest_sends_is_affine_in_its_masked_columns(cells: VerticalDataset, extra: dict[str, Any]) -> None:
    run = tabvfl(cells, **extra)
    for message in [*sent(run, "intermediate"), *sent(run, "representation")]:
        assert message.arrays["values"].shape[1] == extra.get("fc_width", run.data.block(message.sender).width)
        assert len(message.rows) < 25 or affine_residual(run, message) < 1e-5


def test_without_the_fc_layer_every_column_is_sent_as_it_is_up_to_scale(cells: VerticalDataset) -> None:
    bare, full = (tabvfl(cells, fc=fc) for fc in (False, True))
    found = []
    for run in (bare, full):
        message = sent(run, "representation")[0]
        truth = run.data.block("guest1").values[message.rows]
        pairs = zip(truth.T, message.arrays["values"].T, strict=True)
        found.append(min(abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs))
    assert found[0] > 0.9999 and found[1] < 0.9


def test_withheld_masks_are_not_sent(cells: VerticalDataset) -> None:
    run = tabvfl(cells, masks="withheld")
    assert all(set(message.arrays) == {"values"} for message in sent(run, "intermediate"))


def test_le_sends_every_decision_step_and_no_mask(cells: VerticalDataset) -> None:
    run = tabvfl(cells, variant="le")
    assert all(m.arrays["values"].shape[1:] == (2, 5) and "mask" not in m.arrays for m in sent(run, "intermediate"))
    assert all(m.arrays["values"].shape[1:] == (5,) for m in sent(run, "representation"))


def test_lt_pretrains_without_a_message_and_shares_the_latent_dimension(cells: VerticalDataset) -> None:
    run = tabvfl(cells, variant="lt", finetune_epochs=0)
    assert [(m.kind, m.arrays["values"].shape[1]) for m in run.transcript] == [
        ("representation", part) for part in (2, 2, 1)
    ]
    untrained = tabvfl(cells, variant="lt", finetune_epochs=0, pretrain_epochs=0)
    weights = "bottom.encoder.initial_splitter.shared.glu_layers.0.fc.weight"
    before, after = (each.states["guest1"].parameters[weights] for each in (untrained, run))
    assert not np.allclose(before, after)
    assert set(tabvfl(cells, variant="lt").transcript.kinds()) == {"representation", "gradient"}


def test_ct_sends_the_columns_in_the_open(cells: VerticalDataset) -> None:
    run = tabvfl(cells, variant="ct")
    assert run.transcript.kinds() == ("features",) and len(run.transcript) == 3
    message = next(iter(run.transcript))
    np.testing.assert_allclose(message.arrays["values"], run.data.block("guest1").values, atol=1e-6)


# --- the order of rows --------------------------------------------------------------------------------------


def test_rows_are_in_the_same_order_each_epoch_unless_shuffled(cells: VerticalDataset, short: Run) -> None:
    def batches(run: Run, kind: str) -> list[list[Any]]:
        rows = [m.rows for m in sent(run, kind, sender="guest1") if m.epoch is not None and m.arrays["values"].size]
        size = len(rows) // 2
        return [rows[:size], rows[size:]]

    for kind in ("intermediate", "representation"):
        first, second = batches(short, kind)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    shuffled = tabvfl(cells, order="shuffled")
    first, second = batches(shuffled, "intermediate")
    assert not np.array_equal(first[0], second[0])
    assert set(np.concatenate(first)) == set(np.concatenate(second))


def test_unlinkable_rows_have_no_handles_in_pretraining_only(cells: VerticalDataset) -> None:
    run = tabvfl(cells, order="unlinkable")
    pretraining = ("intermediate", "decoded", "decoded_gradient", "intermediate_gradient")
    assert all(message.rows is None for kind in pretraining for message in sent(run, kind))
    assert all(message.rows is not None for message in sent(run, "representation"))


# --- the split is TabNet ------------------------------------------------------------------------------------


def whole(data: VerticalDataset, protocol: TabVFL, seed: int) -> tuple[dict[str, nn.ModuleDict], ConcatHead, nn.Module]:
    """The modules of a run before training, all at one place."""
    chunks = protocol.chunks(len(data.parties))
    guests = {
        party: make_modules(protocol, party, block.width, chunk, seed)
        for (party, block), chunk in zip(data.blocks.items(), chunks, strict=True)
    }
    widths = [block.width for block in data.blocks.values()]
    head = seeded_tabnet(lambda: ConcatHead(widths, protocol.shape, 2), seed, "tabvfl", HOST)
    return guests, head, seeded_tabnet(protocol.shape.decoder, seed, "tabvfl", HOST, "decoder")


def differences(run: Run, guests: dict[str, nn.ModuleDict], head: nn.Module) -> dict[str, float]:
    """The largest difference of any parameter, by party."""
    modules = {**{party: (modules, "") for party, modules in guests.items()}, HOST: (head, "head.")}
    return {
        party: max(
            float(np.abs(value.numpy() - run.states[party].parameters[prefix + name]).max())
            for name, value in module.state_dict().items()
        )
        for party, (module, prefix) in modules.items()
    }


def test_gradients_over_the_wire_are_those_of_the_whole_network(cells: VerticalDataset) -> None:
    """One batch of pretraining, then one of fine-tuning, against plain autograd on the joined network."""
    protocol = TabVFL(pretrain_epochs=1, finetune_epochs=1, batch_size=91, patience=None, steps=2, learning_rate=0.01)
    run = protocol.run(cells, seed=3)
    data, rows = run.data, run.data.aligned("train")
    guests, head, decoder = whole(data, protocol, seed=3)
    values = {party: torch.tensor(block.values[rows], dtype=torch.float32) for party, block in data.blocks.items()}
    masks = {
        party: torch.from_numpy(
            stream(3, "tabvfl", party, "masks").random(tuple(x.shape), dtype=np.float32) < 0.5
        ).float()
        for party, x in values.items()
    }
    adam = protocol.training(finetuning=False).adam(*guests.values(), head, decoder)
    parts = [modules["bottom"].masked(values[party], masks[party]) for party, modules in guests.items()]
    decoded = decoder(head.steps(parts, list(masks.values()))).split(protocol.chunks(3), dim=1)
    loss = sum(
        reconstruction_loss(modules["reconstruct"](part), values[party], masks[party])
        for part, (party, modules) in zip(decoded, guests.items(), strict=True)
    )
    loss.backward()
    assert adam is not None
    adam.step()
    bottoms = [modules["bottom"] for modules in guests.values()]
    adam = protocol.training(finetuning=True).adam(*bottoms, head)
    assert adam is not None
    adam.zero_grad()
    latent, sparsity = head.latent([bottom(values[party]) for party, bottom in zip(guests, bottoms, strict=True)])
    labels = torch.from_numpy(data.labels[rows].copy())
    (nn.functional.cross_entropy(head.final_mapping(latent), labels) - 1e-4 * sparsity).backward()
    adam.step()
    assert max(differences(run, guests, head).values()) < 1e-5
    start, untrained, _ = whole(data, protocol, seed=3)
    assert min(differences(run, start, untrained).values()) > 1e-3  # so the comparison could have failed


def test_encoder_decoder_and_last_layer_are_tabnets_pretraining_model() -> None:
    from pytorch_tabnet.tab_network import TabNetPretraining

    protocol = TabVFL(variant="ct", latent=6, steps=3)
    ours = make_modules(protocol, HOST, 9, 6, seed=0).eval()
    theirs = TabNetPretraining(
        9,
        n_d=6,
        n_a=2,
        n_steps=3,
        gamma=1.5,
        n_independent=1,
        n_shared=1,
        epsilon=1e-9,
        momentum=0.9,
        group_attention_matrix=torch.eye(9),
    ).eval()
    theirs.encoder.load_state_dict(ours["bottom"].encoder.state_dict())
    decoder = ours["decoder"].state_dict() | {"reconstruction_layer.weight": ours["reconstruct"].weight}
    theirs.decoder.load_state_dict(decoder)
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 9))).float()
    with torch.no_grad():
        steps = ours["bottom"].masked(values, torch.zeros_like(values))
        found = ours["reconstruct"](ours["decoder"](list(steps.unbind(dim=1))))
        torch.testing.assert_close(found, theirs(values)[0])


def test_the_reconstruction_loss_is_tabnets_but_for_constant_columns() -> None:
    from pytorch_tabnet.metrics import UnsupervisedLoss

    rng = np.random.default_rng(0)
    found, values = (torch.from_numpy(rng.normal(size=(32, 5))) for _ in range(2))
    mask = torch.from_numpy(rng.random((32, 5)) < 0.5).double()
    torch.testing.assert_close(reconstruction_loss(found, values, mask), UnsupervisedLoss(found, values, mask))
    values[:, 2] = -0.1
    assert UnsupervisedLoss(found, values, torch.ones_like(mask)) < 0 < reconstruction_loss(found, values, mask)
    assert torch.isfinite(reconstruction_loss(found[:1], values[:1], mask[:1]))


def test_finetuning_goes_on_with_the_pretrained_layers(cells: VerticalDataset) -> None:
    protocol = {"pretrain_epochs": 2, "steps": 2}
    pretrained = TabVFL(**protocol, finetune_epochs=0).run(cells)
    message = sent(TabVFL(**protocol, finetune_epochs=1).run(cells), "representation")[0]
    parameters = pretrained.states["guest1"].parameters
    values = pretrained.data.block("guest1").values[message.rows]
    normal = (values - values.mean(axis=0)) / np.sqrt(values.var(axis=0) + 1e-5)
    layer = normal * parameters["bottom.bn.weight"] + parameters["bottom.bn.bias"]
    np.testing.assert_allclose(message.arrays["values"], layer @ parameters["bottom.fc.weight"].T, atol=1e-4)


# --- invariants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_seed_gives_the_same_bytes(cells: VerticalDataset, variant: str) -> None:
    protocol = TabVFL(**SHORT, variant=variant, order="shuffled", p_fail=0.0 if variant == "ct" else 0.3)
    assert_deterministic(protocol, cells, random=variant != "ct")


def test_global_randomness_is_neither_used_nor_changed(cells: VerticalDataset, short: Run) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert tabvfl(cells).transcript.digest() == short.transcript.digest()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("corrupted", [{HOST}, {"guest1"}, {HOST, "guest2"}])
def test_views_are_isolated(cells: VerticalDataset, variant: str, corrupted: set[str]) -> None:
    run = tabvfl(cells, variant=variant, pretrain_epochs=1, finetune_epochs=1)
    adversary = va.Adversary(corrupted, [va.KnownSamples(10), va.FeatureMeans()])
    assert_isolated(run, adversary)
    assert_secrets_do_not_matter(run, adversary)
    assert_isolated(run, va.Adversary(corrupted, [va.ReleasedModel(access="white-box")]))


@settings(max_examples=12)
@given(data=vertical_datasets(), variant=st.sampled_from(VARIANTS))
def test_any_data_will_do(data: VerticalDataset, variant: str) -> None:
    run = tabvfl(data, variant=variant, pretrain_epochs=1, finetune_epochs=1)
    for corrupted in ({HOST}, {"guest1"}):
        adversary = va.Adversary(corrupted, [va.KnownSamples(2)])
        assert_isolated(run, adversary)
        assert_secrets_do_not_matter(run, adversary, seed=1)


@pytest.mark.parametrize("data", ["iris", "diabetes"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_released_model_predicts_what_was_served(data: str, variant: str) -> None:
    run = tabvfl(va.load_dataset(data, parties=2), variant=variant)
    rows = run.data.aligned("test")
    found = run.model.predict({party: block.values[rows] for party, block in run.data.blocks.items()})
    if data == "iris":
        assert (found.argmax(axis=1) == run.data.labels[rows]).mean() == run.utility["accuracy"]
    else:
        error = np.sqrt(np.mean((found - run.data.labels[rows]) ** 2))
        assert error == pytest.approx(run.utility["rmse"], rel=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_learns(variant: str) -> None:
    data = va.load_dataset("breast-cancer", parties=3, shares=(0.7, 0.15, 0.15))
    run = TabVFL(variant=variant, pretrain_epochs=5, finetune_epochs=25, learning_rate=0.02).run(data)
    assert run.utility["accuracy"] > 0.85  # the larger class has 0.63


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"latent": 2}, "latent=2: with 3 guests it must be 3 or more"),
        ({"variant": "le", "fc": False}, "belong to variant=tabvfl"),
        ({"fc": False, "fc_width": 3}, "fc_width"),
        ({"variant": "ct", "p_fail": 0.2}, "nobody can fail"),
        ({"variant": "lt", "processes": True}, "not lt"),
        ({"order": "unlinkable", "p_fail": 0.2}, "cannot cache"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(cells: VerticalDataset, parameters: Any, words: str) -> None:
    with pytest.raises(va.InputError, match=words):
        tabvfl(cells, **parameters)


def test_tabnet_that_is_not_installed_is_said_in_one_sentence(
    cells: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_tabnet", None)
    with pytest.raises(va.InputError, match=r"pip install 'vflaudit\[tabnet\]'"):
        tabvfl(cells)


def test_a_narrow_fc_layer_gets_the_masked_share_as_its_prior() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    assert blocks._as_wide(mask, 4) is mask
    assert blocks._as_wide(mask, 2).tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert isinstance(Shape(5, 2, 2, 1.5, 0.9).encoder(4, normalise=False).initial_bn, nn.Identity)
