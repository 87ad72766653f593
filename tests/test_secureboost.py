"""SecureBoost: lossless, against trees grown in one place and against a slow oracle; and who sees what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.loading import load_table
from vflaudit.core.run import Run
from vflaudit.protocols.secureboost.objective import Objective
from vflaudit.protocols.secureboost.protocol import SecureBoost
from vflaudit.protocols.secureboost.trees import POINT, Bins, Rule, fixed_point, histograms
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.strategies import vertical_datasets


def boosted(data: VerticalDataset, **parameters: Any) -> Run:
    return SecureBoost(**{"trees": 3, "depth": 3, "bins": 8, **parameters}).run(data, seed=0)


def divided(name: str, parties: int, **more: Any) -> VerticalDataset:
    """Columns in the table's own order at this many parties."""
    names = [column.name for column in load_table(name).columns]
    parts = np.array_split(names, parties)
    return va.load_dataset(name, split={f"p{i}": part.tolist() for i, part in enumerate(parts)}, **more)


def predictions(run: Run, part: str = "test") -> Array:
    rows = run.data.aligned(part)
    return run.model.predict({party: block.values[rows] for party, block in run.data.blocks.items()})


@pytest.mark.parametrize("name", ["breast-cancer", "iris", "diabetes"])
@pytest.mark.parametrize("parties", [2, 4])
def test_lossless(name: str, parties: int) -> None:
    """The same bits as trees grown where all columns are (one party: nothing is sent)."""
    alone, together = boosted(divided(name, 1)), boosted(divided(name, parties))
    assert len(alone.transcript) == 0 and len(together.transcript) > 0
    np.testing.assert_array_equal(predictions(alone), predictions(together))
    np.testing.assert_array_equal(alone.model.parameters["weight"], together.model.parameters["weight"])
    assert alone.utility["epochs"] == together.utility["epochs"] == 3
    owners = together.model.parameters["owner"]
    assert len(set(owners[owners >= 0])) > 1  # more than one party decides something


def slow_tree(codes: Array, gradients: Array, rule: Rule, depth: int) -> dict[str, Any]:
    """A tree by trying every split of every node, in floats."""
    total = gradients.sum(axis=0)
    weight = -total[0] / (total[1] + rule.l2)
    best: tuple[float, int, int] | None = None
    for column in range(codes.shape[1]) if depth else ():
        for cut in range(codes[:, column].max()):
            left = codes[:, column] <= cut
            parts = [gradients[side].sum(axis=0) for side in (left, ~left)]
            if min(part[1] for part in parts) < rule.least_hessian:
                continue
            gain = sum(g**2 / (h + rule.l2) for g, h in parts) - total[0] ** 2 / (total[1] + rule.l2)
            if gain > 1e-6 and (best is None or gain > best[0] + 1e-9):
                best = (gain, column, cut)
    if best is None:
        return {"weight": weight}
    left = codes[:, best[1]] <= best[2]
    below = [slow_tree(codes[side], gradients[side], rule, depth - 1) for side in (left, ~left)]
    return {"column": best[1], "cut": best[2], "below": below}


def slow_margin(tree: dict[str, Any], codes: Array) -> float:
    while "column" in tree:
        tree = tree["below"][int(codes[tree["column"]] > tree["cut"])]
    return float(tree["weight"])


def test_a_tree_is_the_one_of_a_slow_oracle() -> None:
    data = divided("breast-cancer", 3)
    run = boosted(data, trees=1, depth=3, learning_rate=1.0)
    train = run.data.aligned("train")
    order = ("host", "guest1", "guest2")
    codes = np.hstack([Bins.fit(run.data.blocks[party].values, train, 8).codes for party in order])[train]
    gradients = Objective(run.data, train).gradients(np.zeros((len(train), 1)))[:, 0]
    tree = slow_tree(codes, gradients, Rule(), 3)
    margins = np.array([slow_margin(tree, row) for row in codes])
    found = predictions(run, "train")[:, 1]
    np.testing.assert_allclose(np.log(found / (1 - found)), margins, atol=1e-5)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_histograms_add_up(rows: int, columns: int, nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes, gradients = rng.integers(5, size=(rows, columns)), fixed_point(rng.normal(size=(rows, 2, 2)))
    positions = rng.integers(-1, nodes, size=(rows, 2)).astype(np.int16)
    sums = histograms(codes, positions, gradients, 5)
    for node in range(len(sums)):
        inside = gradients[positions == node].astype(np.int64).sum(axis=0)
        np.testing.assert_array_equal(sums[node].sum(axis=1), np.tile(inside, (columns, 1)))  # whatever the column
    split = rng.integers(0, rows + 1)  # of two tables, one after the other
    halves = [histograms(codes[s], positions[s], gradients[s], 5) for s in (slice(0, split), slice(split, None))]
    total = np.zeros_like(sums)
    for half in halves:
        total[: len(half)] += half
    np.testing.assert_array_equal(total, sums)


def test_bins_are_quantiles_of_training_rows() -> None:
    values = np.random.default_rng(0).normal(size=(500, 2)) ** 3
    bins = Bins.fit(values, np.arange(400), 10)
    counts = np.bincount(bins.codes[:400, 0], minlength=10)
    assert counts.max() <= 45 and counts.min() >= 35
    for cut, edge in enumerate(bins.edges[1]):
        np.testing.assert_array_equal(bins.codes[:, 1] <= cut, values[:, 1] <= edge)
    assert Bins.fit(np.ones((10, 1)), np.arange(10), 4).codes.max() == 0


def test_boosting_learns() -> None:
    for name, floor in (("breast-cancer", 0.9), ("iris", 0.85)):
        run = boosted(va.load_dataset(name, parties=3), trees=20, learning_rate=0.3)
        assert run.utility["accuracy"] > floor
    few, many = (boosted(va.load_dataset("diabetes", parties=3), trees=n) for n in (1, 30))
    errors = [
        np.mean((predictions(run, "train") - run.data.labels[run.data.aligned("train")]) ** 2) for run in (few, many)
    ]
    assert errors[1] < 0.7 * errors[0]


# --- who sees what ------------------------------------------------------------------------------------------


def test_messages_of_one_boosting_round() -> None:
    run = boosted(va.load_dataset("breast-cancer", parties=3), trees=1, depth=2)
    served = {"query", "direction"}
    training = [message for message in run.transcript if message.kind not in served]
    counts = Counter((message.sender, message.receiver, message.kind) for message in training)
    for guest in ("guest1", "guest2"):
        assert counts["host", guest, "gradients"] == 1
        assert counts["host", guest, "nodes"] == counts[guest, "host", "histograms"] == 2  # one per level
        assert counts["host", guest, "splits"] == counts[guest, "host", "partition"]
    width = run.data.blocks["guest1"].width
    first = next(message for message in training if message.kind == "histograms" and message.sender == "guest1")
    assert first.arrays["values"].shape == (1, width, 8, 2) and first.rows is None
    train = run.data.aligned("train")
    total = first.arrays["values"].sum(axis=2)[0]
    expected = Objective(run.data, train).gradients(np.zeros((len(train), 1)))[:, 0].sum(axis=0)
    np.testing.assert_allclose(total / POINT, np.tile(expected, (width, 1)), atol=1e-3)


def test_the_host_learns_no_threshold_of_a_guest() -> None:
    run = boosted(va.load_dataset("breast-cancer", parties=3))
    mine = run.states["host"].parameters
    assert len(run.states["guest1"].parameters["thresholds"]) > 0
    owners = mine["owner"]
    assert len(mine["thresholds"]) == (owners == 0).sum()
    assert run.states["guest1"].labels is None


def test_without_encryption_gradients_tell_a_guest_the_labels() -> None:
    """Why SecureBoost encrypts them."""
    run = boosted(va.load_dataset("breast-cancer", parties=2), trees=1)
    (message,) = run.transcript.select(kind="gradients")
    labels = run.data.labels[message.rows]
    np.testing.assert_array_equal(message.arrays["values"][:, 0, 0] < 0, labels == 1)


def test_views_are_isolated_and_runs_repeat() -> None:
    data = va.load_dataset("iris", parties=3)
    run = boosted(data)
    for corrupted in ({"host"}, {"guest1"}):
        adversary = va.Adversary(corrupted, [va.KnownSamples(10), va.ReleasedModel(access="white-box")])
        assert_isolated(run, adversary)
        assert_secrets_do_not_matter(run, adversary)
    assert_deterministic(SecureBoost(trees=1, depth=2), data, random=False)  # nothing is drawn


@settings(max_examples=15)
@given(data=vertical_datasets())
def test_views_lead_nowhere_whatever_the_data(data: VerticalDataset) -> None:
    run = boosted(data, trees=2)
    adversary = va.Adversary({"host"}, [va.KnownSamples(2), va.ReleasedModel("white-box")])
    assert_isolated(run, adversary)
    assert_secrets_do_not_matter(run, adversary, seed=1)


@pytest.mark.parametrize("name", ["breast-cancer", "diabetes"])
def test_serving_predicts_what_the_released_model_predicts(name: str) -> None:
    run = boosted(va.load_dataset(name, parties=3))
    rows, found = run.data.aligned("test"), predictions(run)
    if name == "diabetes":
        assert np.sqrt(np.mean((found - run.data.labels[rows]) ** 2)) == pytest.approx(run.utility["rmse"], rel=1e-12)
    else:
        assert (found.argmax(axis=1) == run.data.labels[rows]).mean() == run.utility["accuracy"]


def test_a_budget_stops_before_it_is_exceeded() -> None:
    data = va.load_dataset("breast-cancer", parties=3)
    whole = boosted(data, trees=5)
    half = boosted(data, trees=5, budget=int(whole.utility["training_bytes"] / 2))
    assert 1 <= half.utility["epochs"] < 5 and half.utility["training_bytes"] <= whole.utility["training_bytes"] / 2
    prefix = boosted(data, trees=int(half.utility["epochs"]))
    np.testing.assert_array_equal(predictions(half), predictions(prefix))
    curve = boosted(data, trees=5, curve=True).utility
    assert curve["epoch_5_bytes"] == whole.utility["training_bytes"]
    assert curve["epoch_5_accuracy"] == whole.utility["accuracy"]
    assert curve[f"epoch_{half.utility['epochs']:.0f}_accuracy"] == prefix.utility["accuracy"]
    nothing = boosted(data, budget=10)
    assert nothing.utility["epochs"] == nothing.utility["training_bytes"] == 0  # as on gisette and phishing in Fig. 5
    np.testing.assert_array_equal(predictions(nothing), 0.5)


def test_paillier_changes_the_bytes_and_not_the_trees() -> None:
    pytest.importorskip("phe")
    data = va.load_dataset("iris", parties=2, rows=60)
    plain, sealed = (boosted(data, trees=1, depth=2, bins=4, encryption=e, key_bits=256) for e in ("none", "paillier"))
    for name, value in plain.model.parameters.items():
        np.testing.assert_array_equal(value, sealed.model.parameters[name])
    (clear,), (hidden,) = (list(run.transcript.select(kind="gradients")) for run in (plain, sealed))
    assert hidden.arrays["values"].shape == (*clear.arrays["values"].shape, 64)  # numbers modulo n squared
    sums = next(iter(sealed.transcript.select(kind="histograms"))).arrays["values"].reshape(-1, 64)
    assert len(np.unique(sums, axis=0)) == len(sums)  # empty bins too are fresh ciphertexts
    assert sealed.utility["training_bytes"] > 5 * plain.utility["training_bytes"]
    equal = np.unique(clear.arrays["values"][:, 0, 0], return_inverse=True)[1] == 0
    assert (
        len(np.unique(hidden.arrays["values"][equal, 0, 0], axis=0)) == equal.sum()
    )  # equal numbers, fresh ciphertexts


def test_bad_parameters_are_told() -> None:
    with pytest.raises(va.InputError, match="client7"):
        boosted(va.load_dataset("iris", parties=2), host="client7")
