"""RAP is the protocol of the paper: its transformations (2.3), its messages (algorithm 1), its accuracy (table 3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.dataset import Column, Table, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.protocols.rap.transforms import CategoricalLabel, FeatureTransform, NumericLabel
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.strategies import vertical_datasets

SERVER = va.Adversary({"server"})


def rap(data: VerticalDataset, seed: int = 0, **parameters: Any) -> Run:
    return va.load_protocol("rap", **{"max_epochs": 2, "hidden": 8, **parameters}).run(data, seed=seed)


@pytest.fixture(scope="module")
def small() -> VerticalDataset:
    return va.load_dataset("synthetic:rows=150,features=6,categorical=1", parties=3)


@pytest.fixture(scope="module")
def numbers() -> VerticalDataset:
    return va.load_dataset("synthetic:rows=150,features=6,task=regression", parties=3)


# --- transformations (2.1, 2.3) -----------------------------------------------------------------------------


@given(st.integers(2, 12), st.lists(st.integers(0, 10_000), max_size=60), st.integers(0, 2**32 - 1))
def test_decoding_inverts_encoding_for_any_class_labels(classes: int, raw: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.array(raw, dtype=np.int64) % classes
    transform = CategoricalLabel.draw(classes, rng)
    assert sorted(transform.codes.ravel().tolist()) == list(range(2 * classes))  # disjoint, and all 2C are used
    codes = transform.encode(labels, rng)
    np.testing.assert_array_equal(transform.decode(codes), labels)
    np.testing.assert_array_equal(transform.merge(np.eye(2 * classes)[codes]).argmax(axis=1), labels)


def test_both_codes_of_a_class_are_used_equally_often() -> None:
    rng = np.random.default_rng(0)
    transform = CategoricalLabel.draw(3, rng)
    labels = np.repeat([0, 1, 2], [20_000, 6_000, 2_000])
    counts = np.bincount(transform.encode(labels, rng), minlength=6)[transform.codes]
    gap = (counts[:, 0] - counts[:, 1]) / np.sqrt(counts.sum(axis=1))
    assert np.abs(gap).max() < 4


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(0, 2**32 - 1))
def test_numeric_labels_decode_exactly(raw: list[float], seed: int) -> None:
    rng, labels = np.random.default_rng(seed), np.array(raw)
    transform = NumericLabel.draw(labels, rng)
    error = np.abs(transform.decode(transform.encode(labels, rng)) - labels).max()
    assert error <= 1e-12 * np.linalg.cond(transform.matrix) * max(1.0, np.abs(labels).max())


@given(st.floats(1.5, 50.0), st.integers(0, 2**32 - 1))
def test_a_bound_on_the_label_matrix_is_kept_and_still_decodes(bound: float, seed: int) -> None:
    labels = np.linspace(-3.0, 5.0, 40)
    bounded = NumericLabel.draw(labels, np.random.default_rng(seed), condition=bound)
    plain = NumericLabel.draw(labels, np.random.default_rng(seed))
    assert np.linalg.cond(bounded.matrix) <= bound
    if np.linalg.cond(plain.matrix) <= bound:  # a good first draw is kept
        np.testing.assert_array_equal(bounded.matrix, plain.matrix)
    np.testing.assert_array_equal(plain.matrix, np.random.default_rng(seed).standard_normal((2, 2)))  # as printed
    rng = np.random.default_rng(seed + 1)
    np.testing.assert_allclose(bounded.decode(bounded.encode(labels, rng)), labels, atol=1e-9)


def test_nearly_singular_label_matrices_are_common_and_multiply_errors() -> None:
    rng, labels = np.random.default_rng(0), np.zeros(5)
    draws = [NumericLabel.draw(labels, rng).matrix for _ in range(4000)]
    for limit in (5.0, 20.0):  # a 2x2 Gaussian matrix has condition above k with probability 2k / (1 + k^2)
        share = np.mean([np.linalg.cond(matrix) > limit for matrix in draws])
        assert abs(share - 2 * limit / (1 + limit**2)) < 0.03
    # the same small error of both models, decoded through a poor and through a good matrix
    poor, good = NumericLabel(np.array([[1.0, 1.0], [1.0, 1.05]]), 0, 1), NumericLabel(np.eye(2), 0, 1)
    error = np.array([[0.1, -0.1]])
    assert abs(good.decode(error)[0]) == pytest.approx(0.1) and abs(poor.decode(error)[0]) > 2


def test_the_pseudo_feature_has_the_columns_moments_and_is_fresh_every_time() -> None:
    rng = np.random.default_rng(1)
    column = rng.gamma(2.0, 3.0, (20_000, 1))
    transform = FeatureTransform.draw(column, rng, pseudo=True)
    both = [np.linalg.solve(transform.matrix.T, transform(column, rng).T).T for _ in range(2)]
    for plain in both:
        np.testing.assert_allclose(plain[:, :1], column, atol=1e-8)
        assert abs(plain[:, 1].mean() - column.mean()) < 0.15 and abs(plain[:, 1].std() / column.std() - 1) < 0.03
    assert abs(np.corrcoef(both[0][:, 1], both[1][:, 1])[0, 1]) < 0.05  # serving draws it anew
    assert abs(np.corrcoef(both[0].T)[0, 1]) < 0.05


@pytest.mark.parametrize("width", [2, 3, 8])
def test_no_sent_column_is_an_affine_copy_of_a_column(width: int) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((500, width))
        assert copies(values, FeatureTransform.draw(values, rng, pseudo=True)(values, rng)) < 1 - 1e-9


def test_near_copies_happen_by_chance() -> None:
    # a x + b z has |corr| > 0.99 with x if |b / a| < 0.1425: 9% of columns, so 17% of one-feature clients, whose
    # pseudo feature then hides nothing, and a third of two-feature clients (with either column)
    rng, near = np.random.default_rng(0), {1: 0, 2: 0}
    for _ in range(400):
        for width in near:
            values = rng.standard_normal((300, width))
            near[width] += copies(values, FeatureTransform.draw(values, rng, pseudo=True)(values, rng)) > 0.99
    assert 0.11 < near[1] / 400 < 0.24 and 0.25 < near[2] / 400 < 0.42


@pytest.mark.parametrize("seed", range(5))
def test_the_exceptions_one_column_without_pseudo_feature_and_one_binary_category(seed: int) -> None:
    rng = np.random.default_rng(seed)
    single = rng.standard_normal((300, 1))
    assert copies(single, FeatureTransform.draw(single, rng, pseudo=True)(single, rng)) < 1 - 1e-9
    assert copies(single, FeatureTransform.draw(single, rng, pseudo=False)(single, rng)) > 1 - 1e-9
    # one binary category is two one-hot columns that sum to one: what is sent are two affine copies of it
    binary = np.eye(2)[rng.integers(2, size=300)]
    assert copies(binary, FeatureTransform.draw(binary, rng, pseudo=True)(binary, rng)) > 1 - 1e-9
    three = np.eye(3)[rng.integers(3, size=300)]
    assert copies(three, FeatureTransform.draw(three, rng, pseudo=True)(three, rng)) < 1 - 1e-9


def copies(values: np.ndarray, sent: np.ndarray) -> float:
    """The greatest |correlation| of a sent column with a column."""
    return float(np.abs(np.corrcoef(values.T, sent.T)[: values.shape[1], values.shape[1] :]).max())


def test_a_binary_client_is_an_affine_copy_in_a_run_too() -> None:
    rng = np.random.default_rng(0)
    sex = Column("sex", "categorical", ("f", "m"))
    values = np.column_stack([rng.integers(2, size=200), rng.standard_normal((200, 2))])
    table = Table("people", (sex, Column("a"), Column("b")), values, values[:, 0], "classification", ("0", "1"))
    data = va.load_dataset(table, split={"client1": ["sex"], "client2": ["a", "b"]})
    run = rap(data)
    sent = run.view(SERVER).table_of("client1")
    assert copies(run.data.blocks["client1"].values[sent.rows], sent.values) > 1 - 1e-6
    assert len(np.unique(sent.values.round(4), axis=0)) == 2


# --- messages (algorithm 1) ---------------------------------------------------------------------------------


def kinds(run: Run) -> list[tuple[str, str, str, int]]:
    return [(m.sender, m.receiver, m.kind, m.step) for m in run.transcript]


def test_every_client_speaks_once_before_training_and_serving_is_two_rounds(small: VerticalDataset) -> None:
    run = rap(small)
    clients = list(run.data.parties)
    first = [(s, r, k) for s, r, k, step in kinds(run) if step == 0]
    assert Counter(first) == Counter(
        [(c, "server", "features") for c in clients] + [("label_owner", "server", "labels")]
    )
    # then test and validation rows are served: features in, predictions out
    assert run.costs.rounds == 5 and len(list(run.transcript)) == len(clients) + 1 + 2 * (len(clients) + 1)
    for message in run.transcript.select(kind="predictions"):
        assert message.receiver == "label_owner" and message.arrays["values"].dtype.kind == "i"
    longer = rap(small, max_epochs=7)
    assert kinds(longer) == kinds(run) and longer.costs.total.bytes == run.costs.total.bytes  # epochs cost no message


def test_what_is_sent_is_x_times_the_private_matrix(small: VerticalDataset) -> None:
    run = rap(small, precision="float64")
    for party, block in run.data.blocks.items():
        for message in run.transcript.select(sender=party):
            matrix = run.states[party].parameters["matrix"]
            np.testing.assert_allclose(message.arrays["values"], block.values[message.rows] @ matrix, atol=1e-12)
    codes = next(iter(run.transcript.select(kind="labels"))).arrays["values"]
    assert codes.min() >= 0 and codes.max() < 2 * len(run.data.classes)


def test_the_limited_server_exchanges_outputs_and_gradients_instead_of_labels(small: VerticalDataset) -> None:
    run = rap(small, variant="limited-server")
    found = Counter(kind for *_, kind, _ in kinds(run))
    steps = -(-len(run.data.aligned("train")) // 32)
    assert "labels" not in found and found["output"] == found["output_gradient"] == 2 * steps
    assert found["features"] == 3 * len(run.data.parties)
    assert run.costs.rounds == 1 + 2 * 2 * steps + 4


@pytest.mark.parametrize("variant, networks", [("full", 2), ("limited-server", 1)])
def test_regression_trains_two_networks_unless_the_server_is_limited(
    numbers: VerticalDataset, variant: str, networks: int
) -> None:
    run = rap(numbers, variant=variant, max_epochs=30, hidden=16)
    assert {name.split(".")[0] for name in run.model.parameters} == {str(k) for k in range(networks)}
    spread = float(numbers.labels[numbers.split["test"]].std())
    assert run.utility["rmse"] < 1.1 * spread
    predicted = run.model.predict({party: block.values[:5] for party, block in run.data.blocks.items()})
    assert predicted.shape == (5,)


@pytest.mark.parametrize("parties", [2, 5, 10])
def test_any_number_of_clients(parties: int) -> None:
    run = rap(va.load_dataset("breast-cancer", parties=parties), max_epochs=15, hidden=32)
    assert len(run.view(SERVER).victims) == parties and run.utility["accuracy"] > 0.85


def test_one_feature_clients_send_two_columns_and_the_model_still_learns() -> None:
    names = [column.name for column in va.load_dataset("breast-cancer", parties=1).blocks["client1"].columns]
    split = {f"client{k + 1}": [name] for k, name in enumerate(names[:3])} | {"client4": names[3:]}
    data = va.load_dataset("breast-cancer", split=split)
    run = rap(data, max_epochs=15, hidden=32)
    view = run.view(SERVER)
    assert [view.table_of(party).values.shape[1] for party in split] == [2, 2, 2, 27]
    assert run.utility["accuracy"] > 0.85
    bare = rap(data, pseudo_feature=False).view(SERVER)
    assert bare.table_of("client1").values.shape[1] == 1


@pytest.mark.parametrize("count", [0, 1, 5])
def test_some_one_feature_clients_of_ten(count: int) -> None:
    data = va.load_dataset("breast-cancer", parties=10, partition=f"one-feature:{count}", seed=3)
    widths = [block.width for block in data.blocks.values()]
    assert widths[:count] == [1] * count and min(widths[count:]) > 1 and sum(widths) == 30 and len(widths) == 10
    run = rap(data, max_epochs=1)
    sent = [run.view(SERVER).table_of(party).values.shape[1] for party in data.parties]
    assert sent == [max(2, width) for width in widths]


@pytest.mark.parametrize("partition", ["one-feature:11", "one-feature:3", "one-feature:x", "one-feature"])
def test_impossible_one_feature_clients_are_told(partition: str) -> None:
    with pytest.raises(va.InputError, match=r"one-feature:COUNT|cannot be dealt"):
        va.load_dataset("diabetes", parties=10, partition=partition)  # ten columns


def test_the_bound_reaches_the_run(numbers: VerticalDataset) -> None:
    for seed in range(6):
        run = rap(numbers, seed=seed, max_epochs=1, label_condition=2.0)
        assert np.linalg.cond(run.states["label_owner"].parameters["label_map"]) <= 2.0


def test_raw_units_are_scaled_by_the_server() -> None:
    run = rap(va.load_dataset("breast-cancer", parties=4), standardise=False, max_epochs=15, hidden=32)
    assert not run.spec.standardised and run.utility["accuracy"] > 0.8
    assert np.abs(run.view(SERVER).table_of("client1").values).max() > 50


def test_accuracy_is_within_a_few_points_of_centralized(cancer: VerticalDataset) -> None:
    gaps = []
    for seed in range(5):
        found = [
            va.load_protocol(name, max_epochs=12, hidden=64).run(cancer, seed=seed).utility["accuracy"]
            for name in ("centralized", "rap")
        ]
        gaps.append(found[0] - found[1])
    assert abs(np.mean(gaps)) < 0.04, gaps


# --- isolation, determinism, the ideal ----------------------------------------------------------------------


@settings(max_examples=6)
@given(data=vertical_datasets(), variant=st.sampled_from(("full", "limited-server")))
def test_views_of_rap_lead_nowhere(data: VerticalDataset, variant: str) -> None:
    run = rap(data, max_epochs=1, variant=variant)
    knows = [va.KnownSamples(2), va.ReleasedModel("white-box")]
    for corrupts in ({"server"}, {"server", "client1"}):
        assert_isolated(run, va.Adversary(corrupts, knows))
        assert_secrets_do_not_matter(run, va.Adversary(corrupts, knows), seed=1)


@pytest.mark.parametrize("variant", ["full", "limited-server"])
def test_the_same_seed_sends_the_same_bytes(small: VerticalDataset, numbers: VerticalDataset, variant: str) -> None:
    for data in (small, numbers):
        assert_deterministic(va.load_protocol("rap", max_epochs=1, hidden=4, variant=variant), data)


@pytest.mark.parametrize("variant", ["full", "limited-server"])
def test_ideal_like_rap_has_its_kinds_and_shapes(small: VerticalDataset, variant: str) -> None:
    def shapes(run: Run) -> list[Any]:
        return [
            (m.sender, m.receiver, m.kind, m.step, {name: (a.shape, a.dtype) for name, a in m.arrays.items()})
            for m in run.transcript
        ]

    settings = {"max_epochs": 1, "hidden": 4, "tolerance": 0, "variant": variant}
    ideal = va.load_protocol("ideal", like="rap", **settings).run(small, seed=0)
    assert shapes(ideal) == shapes(va.load_protocol("rap", **settings).run(small, seed=0))


def test_bad_input_is_one_sentence(small: VerticalDataset) -> None:
    data = va.load_dataset("synthetic:rows=60,features=4", parties=2, label_owner="server")
    with pytest.raises(va.InputError, match="another party must own"):
        rap(data)
    with pytest.raises(va.InputError, match="pseudo_feature"):
        va.load_protocol("rap", pseudo_featur=True)
