"""FedOnce as a protocol: one message per guest, the paper's tables, and its variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge

import vflaudit as va
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.config import configure
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.loading import load_table
from vflaudit.core.run import Run
from vflaudit.protocols.fedonce import tables
from vflaudit.protocols.fedonce.protocol import FedOnce
from vflaudit.protocols.hosted import guests_of
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.strategies import vertical_datasets

GUESTS = ("guest1", "guest2", "guest3")
SHORT: dict[str, Any] = {"guest_epochs": 2, "host_epochs": 3, "guest_hidden": "8", "host_hidden": "6"}


def fedonce(data: VerticalDataset, seed: int = 0, defenses: Any = (), **parameters: Any) -> Run:
    return FedOnce(**{**SHORT, **parameters}).run(data, seed=seed, defenses=defenses)


@pytest.fixture(scope="module")
def iris() -> VerticalDataset:
    return va.load_dataset("iris", parties=3)


@pytest.fixture(scope="module")
def numbers() -> VerticalDataset:
    return va.load_dataset("diabetes", parties=3)


def training_messages(run: Run) -> list[Any]:
    return [message for message in run.transcript if message.step == 0]


def sent(run: Run, party: str) -> Array:
    (message,) = (each for each in training_messages(run) if each.sender == party)
    return message.arrays["values"]


# --- one shot (Algorithms 1 and 2) --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["l0", "l1", "priv-baseline", "pca"])
def test_every_guest_sends_one_message_and_that_is_all_of_training(cancer: VerticalDataset, variant: str) -> None:
    run = fedonce(cancer, variant=variant)
    messages = training_messages(run)
    assert [message.sender for message in messages] == list(GUESTS)
    assert run.utility["training_rounds"] == 1
    train = run.data.aligned("train")
    for message in messages:
        assert (message.receiver, message.kind) == ("host", "representation")
        np.testing.assert_array_equal(message.rows, train)
        assert message.arrays["values"].shape == (len(train), 3)
        assert message.arrays["values"].dtype == np.float32
    later = [message for message in run.transcript if message.step]
    assert {(m.sender, m.receiver, m.kind) for m in later} == {(g, "host", "representation") for g in GUESTS}
    assert len(later) == 2 * 3  # serving: test rows, validation rows
    assert run.utility["training_bytes"] < 4 * 3 * 3 * len(train) + 3 * 120


def test_the_host_has_the_labels_and_the_first_partys_columns(cancer: VerticalDataset) -> None:
    protocol = FedOnce()
    prepared = protocol.prepare(cancer)
    assert protocol.parties(prepared) == ("host", *GUESTS) and prepared.label_owner == "host"
    assert protocol.default_corrupts() == {"host"} and guests_of(prepared) == GUESTS
    assert prepared.block("host").columns == cancer.block("client1").columns
    assert protocol.prepare(prepared).parties == prepared.parties
    third = FedOnce(host="client3").prepare(cancer)
    assert third.block("host").columns == cancer.block("client3").columns
    assert third.block("guest3").columns == cancer.block("client4").columns
    owner = va.load_dataset("breast-cancer", parties=4, label_owner="client2")
    assert FedOnce().prepare(owner).block("host").columns == cancer.block("client2").columns
    with pytest.raises(va.InputError, match="client9"):
        FedOnce(host="client9").prepare(cancer)


@pytest.mark.parametrize("variant", ["l0", "l1", "multi-round", "splitnn", "pca", "combine"])
def test_the_same_seed_gives_the_same_bytes(iris: VerticalDataset, variant: str) -> None:
    protocol = FedOnce(variant=variant, joint_epochs=1, sigma=1.0, **SHORT)
    assert_deterministic(protocol, iris, random=variant not in ("pca", "combine"))


@pytest.mark.parametrize("variant", ["l0", "l1", "multi-round"])
@pytest.mark.parametrize("corrupted", [{"host"}, {"guest1"}, {"host", "guest2"}])
def test_views_are_isolated(iris: VerticalDataset, variant: str, corrupted: set[str]) -> None:
    run = fedonce(iris, variant=variant, joint_epochs=1, sigma=1.0)
    adversary = va.Adversary(corrupted, [va.KnownSamples(10), va.FeatureMeans()])
    assert_isolated(run, adversary)
    assert_secrets_do_not_matter(run, adversary)
    assert_isolated(run, va.Adversary(corrupted, [va.ReleasedModel(access="white-box")]))


@settings(max_examples=15)
@given(data=vertical_datasets(), variant=st.sampled_from(("l0", "l1", "multi-round", "pca", "combine")))
def test_views_lead_nowhere_whatever_the_data(data: VerticalDataset, variant: str) -> None:
    assume(len(data.parties) > 1)
    run = fedonce(data, variant=variant, joint_epochs=1, guest_epochs=1, host_epochs=1, sigma=1.0)
    knows = [va.KnownSamples(2), va.ReleasedModel("white-box")]
    for corrupts in ({"host"}, {"host", "guest1"}):
        assert_isolated(run, va.Adversary(corrupts, knows))
        assert_secrets_do_not_matter(run, va.Adversary(corrupts, knows), seed=1)


def test_a_guest_learns_nothing_from_anybody(iris: VerticalDataset) -> None:
    run = fedonce(iris)
    assert not list(run.transcript.select(receiver="guest1")) and not list(run.transcript.select(sender="host"))


@pytest.mark.parametrize("data", ["breast-cancer", "diabetes", "iris"])
@pytest.mark.parametrize("variant", ["l0", "multi-round", "pca", "solo", "combine", "linear-combine"])
def test_the_released_model_predicts_what_was_served(data: str, variant: str) -> None:
    run = fedonce(va.load_dataset(data, parties=3), variant=variant, joint_epochs=1)
    rows = run.data.aligned("test")
    predictions = run.model.predict({party: block.values[rows] for party, block in run.data.blocks.items()})
    if run.data.task == "classification":
        assert (predictions.argmax(axis=1) == run.data.labels[rows]).mean() == run.utility["accuracy"]
    else:
        error = np.sqrt(np.mean((predictions - run.data.labels[rows]) ** 2))
        assert error == pytest.approx(run.utility["rmse"], rel=1e-4)


def test_a_host_that_knows_nothing_learns_from_representations_alone() -> None:
    """Its only column is noise: Solo is at chance, whatever FedOnce knows came through R."""
    flowers = load_table("iris")
    noise = np.random.default_rng(0).normal(size=(150, 1))
    columns = (va.Column("noise"), *flowers.columns)
    table = replace(flowers, columns=columns, values=np.hstack([noise, flowers.values]))
    names = [column.name for column in flowers.columns]
    data = va.load_dataset(table, split={"a": ["noise"], "b": names[:2], "c": names[2:]}, aux=0.0)
    accuracy = {name: FedOnce(variant=name).run(data).utility["accuracy"] for name in ("l0", "solo")}
    assert accuracy["solo"] < 0.6 and accuracy["l0"] > 0.8


def test_targets_are_in_the_guests_state_and_nowhere_else(iris: VerticalDataset) -> None:
    run = fedonce(iris)
    targets = run.states["guest1"].parameters["targets"]
    np.testing.assert_allclose(np.linalg.norm(targets, axis=1), 1)
    assert "targets" not in run.states["host"].parameters and not any("targets" in n for n in run.model.parameters)


# --- variants -----------------------------------------------------------------------------------------------


def test_multi_round_starts_where_one_shot_ends(iris: VerticalDataset) -> None:
    one, zero = fedonce(iris), fedonce(iris, variant="multi-round", joint_epochs=0)
    more = fedonce(iris, variant="multi-round", joint_epochs=2)
    for name, value in one.model.parameters.items():
        np.testing.assert_array_equal(value, zero.model.parameters[name])
    np.testing.assert_array_equal(sent(one, "guest1"), sent(more, "guest1"))
    steps = 2 * (len(iris.aligned("train")) // 32)
    assert more.utility["training_rounds"] == 1 + 2 * steps
    assert len(list(more.transcript.select(kind="gradient", receiver="guest2"))) == steps
    changed = [(one.model.parameters[n] != v).any() for n, v in more.model.parameters.items()]
    assert all(changed)


def test_joint_training_is_gradient_descent_on_everything(iris: VerticalDataset) -> None:
    few, many = (
        fedonce(iris, variant="splitnn", host_epochs=epochs, host_learning_rate=0.01).utility["accuracy"]
        for epochs in (1, 60)
    )
    assert many > max(few, 0.8)


def test_the_curve_of_joint_training(cancer: VerticalDataset) -> None:
    """Fig. 6: its first point is one-shot FedOnce, its last one is the model that is served."""
    run = fedonce(cancer, variant="multi-round", joint_epochs=3, curve=True)
    points = [run.utility[f"epoch_{epoch}_accuracy"] for epoch in range(4)]
    assert points[0] == fedonce(cancer).utility["accuracy"] and points[-1] == run.utility["accuracy"]
    spent = [run.utility[f"epoch_{epoch}_bytes"] for epoch in range(4)]
    assert spent == sorted(spent) and spent[-1] == run.utility["training_bytes"]
    assert run.transcript.digest() == fedonce(cancer, variant="multi-round", joint_epochs=3).transcript.digest()


def test_a_budget_stops_joint_training(cancer: VerticalDataset) -> None:
    """SplitNN-Comm (5.2): no more bytes than FedOnce-L0 sends."""
    one = fedonce(cancer)
    comm = fedonce(cancer, variant="splitnn", budget="one-shot", host_epochs=50)
    assert 0 < comm.utility["training_bytes"] <= one.utility["training_bytes"]
    per_step = comm.utility["training_bytes"] / (comm.utility["training_rounds"] / 2)
    assert comm.utility["training_bytes"] + per_step > one.utility["training_bytes"]
    assert fedonce(cancer, variant="splitnn", budget=100).utility["training_bytes"] == 0  # not even one batch fits


def test_late_guests_count_as_zeros(cancer: VerticalDataset) -> None:
    run = fedonce(cancer, laggy=2)
    assert {message.sender for message in run.transcript} == {"guest1"}
    rows = run.data.aligned("test")
    features = {party: block.values[rows] for party, block in run.data.blocks.items()}
    nonsense = {**features, "guest2": features["guest2"] + 9, "guest3": features["guest3"] - 9}
    np.testing.assert_array_equal(run.model.predict(features), run.model.predict(nonsense))
    assert (run.model.predict(features) != run.model.predict({**features, "guest1": features["guest1"] + 9})).any()
    everybody = fedonce(cancer, laggy=3)
    assert len(everybody.transcript) == 0
    with pytest.raises(va.InputError, match="laggy"):
        fedonce(cancer, laggy=4)


def test_pca_sends_principal_components(cancer: VerticalDataset) -> None:
    run = fedonce(cancer, variant="pca")
    values = run.data.blocks["guest1"].values[run.data.aligned("train")]
    expected = PCA(3, svd_solver="full").fit_transform(values)
    np.testing.assert_allclose(np.abs(sent(run, "guest1")), np.abs(expected), atol=1e-4)


@pytest.mark.parametrize("name", ["breast-cancer", "iris", "diabetes"])
def test_linear_combine_is_scikit_learns_model(name: str) -> None:
    run = fedonce(va.load_dataset(name, parties=3), variant="linear-combine")
    order = ("host", "guest1", "guest2")
    columns = np.hstack([run.data.blocks[party].values for party in order])
    train, test = run.data.aligned("train"), run.data.aligned("test")
    features = {party: run.data.blocks[party].values[test] for party in order}
    if run.data.task == "regression":
        expected = Ridge().fit(columns[train], run.data.labels[train]).predict(columns[test])
    else:
        model = LogisticRegression(max_iter=5000).fit(columns[train], run.data.labels[train])
        expected = model.predict_proba(columns[test])
    np.testing.assert_allclose(run.model.predict(features), expected, rtol=1e-3, atol=1e-4)


def test_baselines_send_nothing_or_everything(cancer: VerticalDataset) -> None:
    assert len(fedonce(cancer, variant="solo").transcript) == 0
    kinds = [(m.sender, m.kind) for m in fedonce(cancer, variant="combine").transcript]
    assert kinds == [(guest, "features") for guest in GUESTS]


def test_noise_on_representations_is_the_defense(cancer: VerticalDataset) -> None:
    """5.8: sigma_r on all representations; training of the guests is the same."""
    plain, noisy = fedonce(cancer), fedonce(cancer, defenses=[GaussianNoise(sigma=0.5)])
    noise = np.concatenate([sent(noisy, guest) - sent(plain, guest) for guest in GUESTS])
    assert noise.std() == pytest.approx(0.5, rel=0.05)


def test_two_hundred_parties() -> None:
    """5.4 goes up to k = 200."""
    data = va.load_dataset("synthetic:rows=120,features=200", parties=200)
    run = fedonce(data, guest_epochs=1, host_epochs=1)
    assert len(training_messages(run)) == 199 and run.utility["training_rounds"] == 1


@pytest.mark.parametrize("model", ["cnn0", "cnn1"])
def test_images_with_convolutions(model: str) -> None:
    rng = np.random.default_rng(0)
    pixels = tuple(va.Column(f"p{i}") for i in range(28 * 28))
    labels = rng.integers(2, size=60)
    values = rng.normal(size=(60, 784)) + labels[:, None]
    table = va.Table("pictures", pixels, values, labels, "classification", classes=("a", "b"), image=(28, 28))
    data = va.load_dataset(table, partition="quadrants", aux=0.0)
    for variant in ("l0", "l1", "multi-round"):
        short = {
            "guest_epochs": 1,
            "host_epochs": 1,
            "joint_epochs": 1,
            "guest_batch": 16,
            "host_batch": 16,
            "sigma": 1.0,
        }
        run = fedonce(data, variant=variant, guest_model=model, **short)
        assert len(training_messages(run)) == 3 and 0 <= run.utility["accuracy"] <= 1
    with pytest.raises(va.InputError, match="guest_model=fc"):
        fedonce(va.load_dataset("breast-cancer", parties=2), guest_model=model)
    with pytest.raises(va.InputError, match="guest_model=fc"):
        fedonce(va.load_dataset("digits", partition="quadrants"), guest_model=model)


# --- the paper's tables -------------------------------------------------------------------------------------


def test_settings_come_from_the_tables() -> None:
    """Tables 2, 3, 5 and 10, spot checks against the print."""
    gisette = tables.lookup("gisette", private=False, epsilon=2)
    assert (gisette.guest_hidden, gisette.host_hidden) == ((100, 100, 50), (30, 30))
    indoor = tables.lookup("ujiindoorloc", private=False, epsilon=2)
    assert indoor.guest == tables.Stage(3e-4, 1e-4, 100, 500) and indoor.host == tables.Stage(1e-4, 1e-4, 100, 600)
    mnist = tables.lookup("mnist", private=False, epsilon=2)
    assert (mnist.guest_model, mnist.dimension, mnist.frequency) == ("cnn0", 16, 3)
    phishing = tables.lookup("phishing", private=True, epsilon=2)
    assert (phishing.guest, phishing.host) == (tables.Stage(0.3, 0, 32, 10), tables.Stage(0.3, 0, 32, 30))
    assert (phishing.guest_hidden, phishing.host_hidden, phishing.dimension, phishing.clip) == ((30,), (10,), 3, 1.0)
    assert tables.lookup("phishing", private=True, epsilon=8).clip == 1.5
    assert tables.lookup("phishing", private=True, epsilon=7) == tables.lookup("phishing", private=True, epsilon=6)
    assert tables.lookup("phishing", private=True, epsilon=0.5) == phishing
    assert tables.lookup("mnist", private=True, epsilon=8).guest.batch == 512
    assert tables.listed("covtype", private=False) and not tables.listed("covtype", private=True)


def test_what_is_asked_for_wins_and_what_was_settled_is_public(iris: VerticalDataset) -> None:
    run = fedonce(iris, guest_learning_rate=0.02, dimension=2)
    public = run.spec.parameters
    assert public["guest_learning_rate"] == 0.02 and public["dimension"] == 2 and public["guest_hidden"] == [8]
    assert public["host_batch"] == 32 and public["frequency"] == 1  # from the defaults
    assert FedOnce(guest_hidden="30x20").guest_hidden == (30, 20)


def test_a_host_without_guests_is_refused() -> None:
    with pytest.raises(va.InputError, match="guest"):
        fedonce(va.load_dataset("iris", parties=1))


def test_regression_is_in_the_labels_own_unit(numbers: VerticalDataset) -> None:
    run = fedonce(numbers, guest_epochs=10, host_epochs=60, host_learning_rate=0.01)
    assert run.utility["rmse"] < 0.95 * numbers.labels.std()


def test_parameters_may_come_as_words() -> None:
    words = {"budget": "1000", "guest_hidden": "30x20", "laggy": "1", "sigma": "1.5", "epsilon": "inf"}
    protocol = configure(FedOnce, words, "protocol 'fedonce'")
    assert (protocol.budget, protocol.guest_hidden, protocol.laggy, protocol.sigma) == (1000, (30, 20), 1, 1.5)
    with pytest.raises(va.InputError, match="guest_hidden"):
        configure(FedOnce, {"guest_hidden": "30x-1"}, "protocol 'fedonce'")
