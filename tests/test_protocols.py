"""SplitNN is the network it claims to be, its messages are those of the formula, and Ideal's say nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import vflaudit as va
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.preprocess import encode
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.transcript import Recording
from vflaudit.protocols.splitnn import SplitNN, _Training
from vflaudit.protocols.training import GRID, TrainedProtocol
from vflaudit.testing.strategies import vertical_datasets

KINDS = ("activation", "output", "output_gradient", "gradient")


def same(run: Run, other: Run, **tolerance: float) -> None:
    """Both runs ended with the same model."""
    assert set(run.model.parameters) == set(other.model.parameters)
    for name, value in run.model.parameters.items():
        np.testing.assert_allclose(value, other.model.parameters[name], **tolerance)


# --- SplitNN is one network ---------------------------------------------------------------------------------


def plain_training(protocol: SplitNN, data: VerticalDataset, seed: int) -> dict[str, np.ndarray]:
    """The same network in one place: sum of linear maps, ReLU and a linear layer for the MLP; plain torch and Adam."""
    data = protocol.prepare(data)
    initial = _Training(protocol, _session(protocol, data, seed))
    weights = {
        party: [value.detach().clone().requires_grad_() for value in module.parameters()]
        for party, module in {**initial.bottoms, "server": initial.top}.items()
    }
    optimiser = torch.optim.Adam([value for group in weights.values() for value in group], lr=protocol.learning_rate)
    x = {party: torch.tensor(block.values, dtype=torch.float32) for party, block in data.blocks.items()}
    train, rng = data.aligned("train"), stream(seed, "batches")
    labels = data.labels
    if data.task == "regression":
        centre, scale = labels[train].mean(), labels[train].std()
        y = torch.tensor((labels - centre) / scale, dtype=torch.float32)
    else:
        y = torch.tensor(np.array(labels))
    for _ in range(protocol.max_epochs):
        order = rng.permutation(train)
        size = protocol.batch(len(train))
        for start in range(0, len(order), size):
            rows = torch.tensor(order[start : start + size])
            joined = sum(x[party][rows] @ weights[party][0].T + weights[party][1] for party in x)
            out = joined
            if protocol.model == "mlp":
                out = torch.relu(joined) @ weights["server"][0].T + weights["server"][1]
            if data.task == "classification":
                loss = nn.functional.cross_entropy(out, y[rows])
            else:
                loss = ((out[:, 0] - y[rows]) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return {f"{party}.{k}": value.detach().numpy() for party, group in weights.items() for k, value in enumerate(group)}


def _session(protocol: SplitNN, data: VerticalDataset, seed: int) -> Any:
    from defenses.base import Protection
    from vflaudit.core.transcript import Transcript
    from vflaudit.core.wire import Wire
    from vflaudit.protocols.base import Session

    return Session(data, Wire(protocol.parties(data), Transcript()), Protection((), seed), seed)


@pytest.mark.parametrize("model", ["mlp", "lr"])
@pytest.mark.parametrize("source", ["breast-cancer", "wine", "diabetes"])
def test_splitnn_is_the_same_network_trained_in_one_place(model: str, source: str) -> None:
    data = va.load_dataset(source, parties=3)
    protocol = va.load_protocol("splitnn", model=model, aggregation="sum", max_epochs=3, hidden=16)
    run = protocol.run(data, seed=5)
    expected = plain_training(protocol, data, seed=5)
    start = _Training(protocol, _session(protocol, protocol.prepare(data), 5))
    for party, state in run.states.items():
        for k, value in enumerate(state.parameters.values()):
            np.testing.assert_allclose(value, expected[f"{party}.{k}"], rtol=1e-3, atol=1e-4)
    moved = np.abs(run.states["client1"].parameters["0.weight"] - start.bottoms["client1"][0].weight.detach().numpy())
    assert moved.mean() > 100 * 1e-4  # and it did train: the agreement is not that of two networks that stood still


@settings(max_examples=15)
@given(
    data=vertical_datasets(),
    model=st.sampled_from(["mlp", "lr"]),
    aggregation=st.sampled_from(["sum", "concat"]),
    seed=st.integers(0, 9),
)
def test_label_placement_changes_messages_but_not_results(
    data: VerticalDataset, model: str, aggregation: str, seed: int
) -> None:
    places = ("server", "label_owner", "client1")
    runs = [
        va.load_protocol("splitnn", model=model, aggregation=aggregation, max_epochs=2, hidden=8, labels_at=place).run(
            data, seed=seed
        )
        for place in places
    ]
    for run in runs[1:]:
        same(runs[0], run, rtol=0, atol=0)
        assert run.utility == runs[0].utility
    kinds = [set(run.transcript.kinds()) for run in runs]
    assert kinds == [{"activation", "gradient"}, set(KINDS), set(KINDS)]
    receivers = [{m.receiver for m in run.transcript.select(kind="output")} for run in runs]
    assert receivers == [set(), {"label_owner"}, {"client1"}]
    for kind in ("activation", "gradient"):
        for message, other in zip(
            runs[0].transcript.select(kind=kind), runs[1].transcript.select(kind=kind), strict=True
        ):
            np.testing.assert_array_equal(message.arrays["values"], other.arrays["values"])
    assert [run.states[place].labels is not None for run, place in zip(runs, places, strict=True)] == [True] * 3
    assert "label_owner" not in runs[0].spec.parties and "label_owner" not in runs[2].spec.parties


def test_unknown_label_place(cancer: VerticalDataset) -> None:
    with pytest.raises(va.InputError, match="did you mean 'client1'"):
        va.load_protocol("splitnn", labels_at="cleint1").run(cancer)


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels_at", [None, "server", "client2"])
@pytest.mark.parametrize("batch_size", [None, 64, 1000])
def test_message_counts_and_rounds(cancer: VerticalDataset, labels_at: str | None, batch_size: int | None) -> None:
    protocol = va.load_protocol("splitnn", max_epochs=2, hidden=8, labels_at=labels_at, batch_size=batch_size)
    run = protocol.run(cancer)
    rows = len(run.data.aligned("train"))
    steps = 2 * math.ceil(rows / (batch_size or max(32, round(0.01 * rows))))
    clients, apart = 4, labels_at != "server"
    counts = {kind: len(list(run.transcript.select(kind=kind))) for kind in KINDS}
    # two more forward passes, for the validation and the test rows
    assert counts["activation"] == clients * (steps + 2) and counts["gradient"] == clients * steps
    assert counts["output"] == apart * (steps + 2) and counts["output_gradient"] == apart * steps
    assert len(run.transcript) == run.costs.total.messages == sum(counts.values())
    assert run.costs.rounds == (4 if apart else 2) * steps + (2 if apart else 1) * 2
    sent = run.costs.sent["client1"].messages
    assert sent == (steps + 2) + (steps if labels_at == "client1" else 0)
    assert run.utility["epochs"] == 2


def test_bytes_on_the_wire_are_counted(short_run: Run) -> None:
    payload = sum(message.arrays["values"].nbytes for message in short_run.transcript)
    total = short_run.costs.total
    assert payload < total.bytes < payload + 200 * total.messages
    width = 128 // 4
    for message in short_run.transcript.select(kind="activation"):
        assert message.arrays["values"].shape == (len(message.rows), width)  # type: ignore[arg-type]
        assert message.arrays["values"].dtype == np.float32
    silent = va.load_protocol("splitnn", max_epochs=2).run(va.load_dataset("breast-cancer"), recording=Recording.none())
    assert len(silent.transcript) == 0 and silent.costs.total == total


def test_every_training_row_is_sent_once_per_epoch(short_run: Run) -> None:
    train = sorted(short_run.data.aligned("train"))
    for epoch in (0, 1):
        sent = [m.rows for m in short_run.transcript.select(sender="client2", kind="activation", epoch=epoch)]
        assert sorted(np.concatenate(sent)) == train  # type: ignore[arg-type]
    served = [m.rows for m in short_run.transcript.select(sender="client2", kind="activation") if m.epoch is None]
    rest = np.concatenate([short_run.data.aligned("test"), short_run.data.aligned("validation")])
    assert sorted(np.concatenate(served)) == sorted(rest)  # type: ignore[arg-type]


def test_unaligned_rows_never_appear() -> None:
    data = va.load_dataset("breast-cancer", parties=3, overlap=0.8)
    present = np.logical_and.reduce([block.present for block in data.blocks.values()])
    assert 0.4 < present.mean() < 0.6
    run = va.load_protocol("splitnn", max_epochs=1, hidden=4).run(data)
    rows = np.concatenate([m.rows for m in run.transcript])  # type: ignore[misc]
    assert present[rows].all() and set(rows) == set(np.flatnonzero(present))
    central = va.load_protocol("centralized", max_epochs=1, hidden=4).run(data)
    for party, block in data.blocks.items():
        (message,) = central.transcript.select(sender=party)
        np.testing.assert_array_equal(message.rows, np.flatnonzero(block.present))


# --- training -----------------------------------------------------------------------------------------------


def test_accuracy(splitnn_run: Run, cancer: VerticalDataset) -> None:
    local = va.load_protocol("local").run(cancer, seed=0).utility
    clients = [local[f"client{k}_accuracy"] for k in (1, 2, 3, 4)]
    assert splitnn_run.utility["accuracy"] > 0.9
    assert splitnn_run.utility["accuracy"] >= np.median(clients)
    assert local["accuracy"] == max(clients)
    central = va.load_protocol("centralized").run(cancer, seed=0).utility
    assert abs(central["accuracy"] - splitnn_run.utility["accuracy"]) < 0.08


def test_the_released_model_is_the_trained_one(splitnn_run: Run) -> None:
    data = splitnn_run.data
    rows = data.aligned("test")
    predicted = splitnn_run.model.predict({party: block.values[rows] for party, block in data.blocks.items()})
    np.testing.assert_allclose(predicted.sum(axis=1), 1)
    assert (predicted.argmax(axis=1) == data.labels[rows]).mean() == splitnn_run.utility["accuracy"]


@pytest.mark.parametrize("name", ["splitnn", "centralized", "local"])
@pytest.mark.parametrize("model", ["mlp", "lr"])
def test_regression_beats_the_mean(name: str, model: str) -> None:
    data = va.load_dataset("diabetes", parties=3)
    run = va.load_protocol(name, model=model, max_epochs=12).run(data)
    test = data.labels[run.data.aligned("test")]
    mean = np.sqrt(np.mean((test - data.labels[run.data.aligned("train")].mean()) ** 2))
    assert run.utility["rmse"] < 0.95 * mean


@pytest.mark.parametrize(("partition", "parties"), [("quadrants", 4), ("slices", 2)])
@pytest.mark.parametrize("name", ["splitnn", "centralized"])
def test_cnn_on_images(name: str, partition: str, parties: int) -> None:
    data = va.load_dataset("digits:rows=600", partition=partition, parties=parties)
    run = va.load_protocol(name, model="cnn", max_epochs=8).run(data)
    assert run.utility["accuracy"] > 0.6


def test_cnn_needs_patches() -> None:
    for data in (va.load_dataset("digits", parties=4), va.load_dataset("digits", parties=4, partition="slices")):
        with pytest.raises(va.InputError, match="patches of 4x4"):
            va.load_protocol("splitnn", model="cnn").run(data)


def epochs_of(losses: list[float], **parameters: Any) -> int:
    """How many epochs a loss that takes these values in turn is trained for."""
    protocol: TrainedProtocol = va.load_protocol("splitnn", batch_size=10, **parameters)
    values = iter(losses)
    return len(protocol.epochs(lambda rows, epoch: next(values), np.arange(10), 0))


def test_training_stops_when_the_loss_stands_still() -> None:
    falling = [1 / (k + 1) for k in range(50)]
    assert epochs_of(falling, max_epochs=50) == 50
    assert epochs_of([*falling[:10], *[falling[9]] * 40], max_epochs=50) == 10 + 5
    assert epochs_of([*falling[:10], *[falling[9]] * 40], max_epochs=50, patience=2) == 10 + 2
    assert epochs_of([*falling[:10], *[falling[9]] * 40], max_epochs=12) == 12
    # four epochs of standing still, one that moves, and the count begins again
    bumpy = [1.0] * 5 + [0.9] + [0.9] * 5 + [0.1] * 10
    assert epochs_of(bumpy, max_epochs=50) == 11
    assert epochs_of([1.0, 0.99995, 0.9999, 0.99985, 0.9998, 0.99975], max_epochs=50) == 6  # moves below tolerance
    with pytest.raises(va.InputError, match="diverged in epoch 2"):
        epochs_of([1.0, math.nan], max_epochs=5)


def test_batches_are_one_percent_and_at_least_32() -> None:
    protocol = va.load_protocol("splitnn")
    assert [protocol.batch(rows) for rows in (100, 3200, 10_000)] == [32, 32, 100]
    assert va.load_protocol("splitnn", batch_size=7).batch(10_000) == 7


def test_a_grid_of_learning_rates(cancer: VerticalDataset) -> None:
    protocol = va.load_protocol("splitnn", learning_rate="grid", max_epochs=2, hidden=8)
    run = protocol.run(cancer)
    chosen = run.spec.parameters["learning_rate"]
    assert chosen in GRID == (3.0, 2.0, 1.0, 0.1, 0.01, 0.001)
    scores = {}
    for rate in GRID:
        found = va.load_protocol("splitnn", learning_rate=rate, max_epochs=2, hidden=8).run(cancer).utility
        scores[rate] = found["validation_accuracy"]
    assert scores[chosen] == max(scores.values()) > min(scores.values())
    assert run.utility["validation_accuracy"] == scores[chosen]


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"max_epochs": 0}, "max_epochs=0"),
        ({"hidden": -1}, "hidden=-1"),
        ({"batchsize": 3}, "did you mean 'batch_size'"),
        ({"model": "svm"}, "model='svm'"),
    ],
)
def test_bad_parameters(cancer: VerticalDataset, parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(va.InputError) as caught:
        va.load_protocol("splitnn", **parameters).run(cancer)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_rows_to_train_on_are_needed() -> None:
    scattered = va.load_dataset("synthetic:rows=60,features=4", parties=4, overlap=0.05)
    for name in ("splitnn", "centralized", "local", "ideal"):
        with pytest.raises(va.InputError, match="no training row is held by every party"):
            va.load_protocol(name).run(scattered)
    data = va.load_dataset("wine", parties=2, shares=(0.8, 0.0, 0.2))
    with pytest.raises(va.InputError, match="needs validation rows"):
        va.load_protocol("splitnn", learning_rate="grid").run(data)


def test_linear_messages_are_linear(cancer: VerticalDataset) -> None:
    """With the activation at the server and one batch, a client's message is its columns times one matrix."""
    run = va.load_protocol("splitnn", activation_at="server", max_epochs=1, hidden=40, batch_size=1000).run(cancer)
    (message,) = run.transcript.select(sender="client1", epoch=0)
    x = run.data.blocks["client1"].values[message.rows]  # type: ignore[index]
    design = np.hstack([x, np.ones((len(x), 1))])
    solution, *_ = np.linalg.lstsq(design, message.arrays["values"], rcond=None)
    np.testing.assert_allclose(design @ solution, message.arrays["values"], atol=1e-5)
    active = va.load_protocol("splitnn", max_epochs=1, hidden=40, batch_size=1000).run(cancer)
    (message,) = active.transcript.select(sender="client1", epoch=0)
    assert message.arrays["values"].min() == 0


def test_local_clients_see_labels_and_nothing_else(cancer: VerticalDataset) -> None:
    run = va.load_protocol("local", max_epochs=1, hidden=2).run(cancer)
    assert run.transcript.kinds() == ("labels",) and {m.sender for m in run.transcript} == {"label_owner"}


# --- the ideal protocol -------------------------------------------------------------------------------------


def shape(run: Run) -> list[tuple[Any, ...]]:
    return [
        (
            m.sender,
            m.receiver,
            m.kind,
            m.step,
            m.epoch,
            m.arrays["values"].shape,
            m.arrays["values"].dtype,
            list(m.rows),
        )  # type: ignore[arg-type]
        for m in run.transcript
    ]


@settings(max_examples=15)
@given(
    data=vertical_datasets(),
    like=st.sampled_from(["splitnn", "centralized", "local"]),
    seed=st.integers(0, 9),
    noise=st.integers(0, 99),
)
def test_ideal_messages_do_not_depend_on_the_data(data: VerticalDataset, like: str, seed: int, noise: int) -> None:
    rng = np.random.default_rng(noise)
    blocks = {}
    for party, block in data.blocks.items():
        values = 100 * rng.normal(size=block.values.shape)
        for position, column in enumerate(block.columns):
            if column.categories:
                values[:, position] = rng.integers(len(column.categories), size=len(values))
        blocks[party] = replace(block, values=values)
    labels = rng.permutation(data.labels)
    other = replace(data, blocks=blocks, labels=labels, name="other", ids=data.ids[::-1])
    protocol = va.load_protocol("ideal", like=like, max_epochs=2, hidden=4)
    here, there = protocol.run(data, seed=seed), protocol.run(other, seed=seed)
    assert here.transcript.digest() == there.transcript.digest()
    assert protocol.run(data, seed=seed + 1).transcript.digest() != here.transcript.digest()
    real = va.load_protocol(like, max_epochs=2, hidden=4).run(data, seed=seed)
    assert shape(real) == shape(here)
    for party, block in encode(data).blocks.items():  # parties still hold what they hold
        np.testing.assert_array_equal(here.states[party].features, block.values)
    assert here.utility == {} and here.spec.protocol == "ideal"
    for name, value in here.model.parameters.items():
        np.testing.assert_array_equal(value, there.model.parameters[name])


def test_ideal_takes_the_parameters_of_what_it_imitates(cancer: VerticalDataset) -> None:
    run = va.load_protocol("ideal", like="splitnn", labels_at="client2", max_epochs=1).run(cancer)
    assert run.data.label_owner == "client2" and run.states["client2"].labels is not None
    with pytest.raises(va.InputError, match="cannot imitate itself"):
        va.load_protocol("ideal", like="ideal").run(cancer)
    with pytest.raises(va.InputError, match="did you mean 'splitnn'"):
        va.load_protocol("ideal", like="splitn").run(cancer)
    with pytest.raises(va.InputError, match="did you mean 'max_epochs'"):
        va.load_protocol("ideal", max_epoch=3).run(cancer)
