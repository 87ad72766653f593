"""Shadow training: all at once is the same as one by one, and a shadow depends on its own rows and seed alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import vflaudit as va
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.adversary import Adversary, Rows
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Model, ProtocolSpec
from vflaudit.errors import InputError
from vflaudit.protocols import networks, splitnn, training
from vflaudit.protocols.apcvfl import autoencoders
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.centralized import Centralized
from vflaudit.protocols.fedonce import shadows as fedonce
from vflaudit.protocols.fedonce.host import train_host
from vflaudit.protocols.fedonce.oneshot import OneShot
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.rap import server as rap_server
from vflaudit.protocols.shadows import stacked, trainer
from vflaudit.testing import assert_isolated

SHADOWS = 4
STEPS: dict[str, Any] = {"batch_size": 16, "max_epochs": 5, "tolerance": 0.0, "hidden": 7}  # 20 steps and more


@pytest.fixture(scope="module")
def people() -> VerticalDataset:
    """Three parties, three classes, and a pool as large as the data."""
    return va.load_dataset("synthetic:rows=300,features=9,classes=3", parties=3, aux=0.5)


@pytest.fixture(scope="module")
def numbers() -> VerticalDataset:
    """The same as a regression."""
    return va.load_dataset("synthetic:rows=300,features=9,task=regression", parties=3, aux=0.5)


def pool_of(protocol: Protocol, data: VerticalDataset) -> tuple[ProtocolSpec, Rows]:
    """What is public of a run on the data, and rows that the adversary has."""
    prepared = protocol.prepare(data)
    assert prepared.aux is not None
    rows = Rows({name: b.values for name, b in prepared.aux.blocks.items()}, labels=prepared.aux.labels)
    return protocol.spec(prepared, protocol.parties(prepared), ()), rows


def subsets(count: int, rows: int) -> np.ndarray:
    """Sixty-some members for each shadow, not equally many, so that the last batches differ in length."""
    rng = np.random.default_rng(0)
    members = np.zeros((count, rows), dtype=bool)
    for place, mine in enumerate(members):
        mine[rng.permutation(rows)[: 62 + 3 * place]] = True
    return members


def sessions_of(protocol: Protocol, data: VerticalDataset, defenses: Sequence[Any] = ()) -> list[Session]:
    """The sessions in which a few shadows are trained."""
    spec, rows = pool_of(protocol, data)
    assert isinstance(spec.trainer, trainer.Trainer)
    pool = spec.trainer.pool(spec, rows)
    return [
        protocol.session(spec.trainer.shadow(pool, mine), 10 + seed, defenses, spec.parties)
        for seed, mine in enumerate(subsets(SHADOWS, len(pool)))
    ]


def both(protocol: Protocol, data: VerticalDataset, defenses: Sequence[Any] = ()) -> tuple[list[Model], list[Model]]:
    """Trained all at once, and one by one by the protocol's own code."""
    at_once = protocol.train_many(sessions_of(protocol, data, defenses))
    return at_once, protocol.train_one_by_one(sessions_of(protocol, data, defenses))


def largest_difference(left: Sequence[Model], right: Sequence[Model]) -> float:
    """Over all parameters of all models."""
    gaps = [
        np.abs(mine.parameters[name] - value).max()
        for mine, other in zip(left, right, strict=True)
        for name, value in other.parameters.items()
    ]
    return float(max(gaps))


@pytest.fixture
def precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protocols that train in float64 instead of float32, so that equal means equal."""

    def double(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float64))

    def seeded(build: Callable[[], nn.Module], seed: int, *path: str) -> nn.Module:
        return original(build, seed, *path).double()

    original = networks.seeded
    for module in (networks, training, splitnn, rap_server, autoencoders):
        monkeypatch.setattr(module, "to_tensor", double)
        monkeypatch.setattr(module, "seeded", seeded)


CASES = [
    ("centralized", {}),
    ("centralized", {"model": "lr"}),
    ("local", {}),
    ("splitnn", {}),
    ("splitnn", {"model": "lr"}),
    ("splitnn", {"aggregation": "sum"}),
    ("splitnn", {"activation_at": "server", "labels_at": "client1"}),
    ("rap", {"precision": "float64"}),
    ("rap", {"precision": "float64", "model": "lr", "standardise": False}),
    ("rap", {"precision": "float64", "variant": "limited-server"}),
]


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("task", ["people", "numbers"])
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n} {' '.join(map(str, s.values()))}" for n, s in CASES])
def test_all_at_once_is_one_by_one(name: str, settings: dict[str, Any], task: str, request: Any) -> None:
    protocol = va.load_protocol(name, **STEPS, **settings)
    at_once, one_by_one = both(protocol, request.getfixturevalue(task))
    assert largest_difference(at_once, one_by_one) < 1e-10
    assert largest_difference(at_once[:-1], one_by_one[1:]) > 1e-2  # and shadows differ from each other


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("name", ["centralized", "splitnn", "rap"])
def test_a_shadow_that_stopped_keeps_its_parameters(
    name: str, people: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = va.load_protocol(name, hidden=7, batch_size=16, max_epochs=40, tolerance=0.01, patience=2)
    ends: list[int] = []
    fit_many = training.TrainedProtocol.fit_many

    def counted(self: training.TrainedProtocol, *args: Any) -> list[list[float]]:
        losses = fit_many(self, *args)
        ends.extend(len(each) for each in losses)
        return losses

    monkeypatch.setattr(training.TrainedProtocol, "fit_many", counted)
    at_once, one_by_one = both(protocol, people)
    assert len(set(ends)) > 2  # they stopped at different times
    assert largest_difference(at_once, one_by_one) < 1e-10


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("l0", {"frequency": 2}),
        ("l0", {"assignment": "nearest", "guest_output": "tanh", "host_loss": "squared"}),
        ("l1", {"sigma": 1.0}),
        ("l1", {"sigma": 1.0, "sampling": "poisson"}),
        ("priv-baseline", {"sigma": 0.5, "clipping": "batch", "assignment": "fixed"}),
    ],
)
def test_fedonce_all_at_once_is_one_by_one(variant: str, settings: dict[str, Any], people: VerticalDataset) -> None:
    protocol = va.load_protocol("fedonce", variant=variant, guest_epochs=7, host_epochs=7, guest_batch=16, **settings)
    runs = [OneShot(protocol, session) for session in sessions_of(protocol, people)]
    tasks = [run.task("guest1") for run in runs]
    guests = fedonce.train_guests(tasks)
    for mine, own in zip(guests, tasks, strict=True):
        np.testing.assert_allclose(mine, own.train().parameters, rtol=0, atol=1e-10)
    received = [{party: run.send(party, run.train) for party in run.guests} for run in runs]
    for mine, run, sent in zip(fedonce.train_hosts(runs, received), runs, received, strict=True):
        own_columns, joined = run.data.blocks[HOST].values[run.train], run.joined(sent, len(run.train))
        start, steps = run.parameters[HOST], run.trainings[HOST]
        host = train_host(run.networks[HOST], start, own_columns, joined, run.loss, steps, run.seed(HOST))
        np.testing.assert_allclose(mine, host.parameters, rtol=0, atol=1e-10)
        assert np.abs(mine - start).max() > 1e-3


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("teacher", [None, "mse", "mae"])
def test_autoencoders_all_at_once_are_one_by_one(teacher: Any) -> None:
    rng, steps = np.random.default_rng(0), autoencoders.Training(epochs=5, batch_size=16)

    def lessons() -> list[autoencoders.Lesson]:
        made = []
        for seed, count in enumerate((60, 64, 71)):
            values = np.random.default_rng(seed).normal(size=(count, 6))
            lesson = autoencoders.first_lesson(values, (8, 5), "selu", seed, "g")
            if teacher is not None:
                joint, known = torch.from_numpy(values[:, :5] ** 2), torch.from_numpy((values[:, 0] > 0) * 1.0)
                reduction = "sum" if teacher == "mse" else "mean"
                lesson = replace(lesson, teacher=autoencoders.Teacher(joint, known, 0.5, teacher, reduction))
            made.append(lesson)
        return made

    at_once, one_by_one = lessons(), lessons()
    autoencoders.train_many(at_once, steps)
    for mine, other in zip(at_once, one_by_one, strict=True):
        autoencoders.train(other.model, other.values, steps, other.rng, teacher=other.teacher)
        values = rng.normal(size=(9, 6))
        np.testing.assert_allclose(mine.model.encode(values), other.model.encode(values), rtol=0, atol=1e-10)
        for left, right in zip(mine.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


LAYERS = dict.fromkeys(("active_layers", "passive_layers", "joint_layers", "distilled_layers"), (8, 6))
RELEASED = [
    ("centralized", STEPS, 1e-5),
    ("local", STEPS, 1e-5),
    ("ldp", STEPS, 0),
    ("splitnn", STEPS, 1e-5),
    ("rap", STEPS, 1e-5),
    ("vfedsec", {"epochs": 5, "batch_size": 16, "security": "clear"}, 1e-5),
    ("vfedsec", {"epochs": 5, "batch_size": 16, "security": "clear", "model": "mlp"}, 1e-5),
    ("vfedsec", {"epochs": 2, "batch_size": 16, "security": "masked", "randomness": "seed"}, 1e-4),  # fixed point
    ("vfedsec", {"epochs": 2, "batch_size": 16, "security": "clear", "average": "clients"}, 0),
    ("fedonce", {"guest_epochs": 5, "host_epochs": 5}, 1e-5),
    ("fedonce", {"guest_epochs": 5, "host_epochs": 5, "variant": "pca", "laggy": 1}, 1e-5),
    ("fedonce", {"guest_epochs": 2, "host_epochs": 2, "variant": "multi-round", "joint_epochs": 1}, 0),
    ("apc-vfl", {"epochs": 3, "folds": None, **LAYERS}, 1e-5),
    ("apc-vfl", {"epochs": 3, "folds": None, "variant": "collaborative", **LAYERS}, 1e-5),
    ("apc-vfl", {"epochs": 3, "folds": None, "variant": "ablation", **LAYERS}, 1e-5),
    ("secureboost", {"trees": 2, "depth": 2}, 0),
]


@pytest.mark.parametrize(("name", "settings", "tolerance"), RELEASED)
def test_released_shadows_agree(name: str, settings: dict[str, Any], tolerance: float, people: VerticalDataset) -> None:
    protocol = va.load_protocol(name, **settings)
    _, rows = pool_of(protocol, people)
    at_once, one_by_one = (
        np.stack([model.predict(rows.features) for model in models]) for models in both(protocol, people)
    )
    assert at_once.shape == (SHADOWS, len(people.aux), 3) and np.allclose(at_once.sum(axis=2), 1)
    np.testing.assert_allclose(at_once, one_by_one, rtol=0, atol=tolerance)
    assert np.abs(at_once[0] - at_once[1]).max() > 1e-3


def test_defenses_go_with_the_shadows(people: VerticalDataset) -> None:
    for name in ("splitnn", "centralized", "rap"):
        protocol, noise = va.load_protocol(name, **STEPS), [GaussianNoise(sigma=1.0)]
        defended, one_by_one = both(protocol, people, noise)
        assert largest_difference(defended, one_by_one) < 1e-3
        assert largest_difference(defended, protocol.train_many(sessions_of(protocol, people))) > 0.05
    run = va.load_protocol("centralized", max_epochs=1, hidden=3).run(people, defenses=noise)
    assert run.spec.trainer.defenses == tuple(noise)  # type: ignore[union-attr]


@settings(max_examples=8)
@given(name=st.sampled_from(["centralized", "splitnn", "rap", "fedonce", "vfedsec"]), seed=st.integers(0, 99))
def test_a_shadow_depends_on_its_own_rows_alone(name: str, seed: int) -> None:
    data = va.load_dataset("synthetic:rows=80,features=6", parties=2, aux=0.5)
    short = {"fedonce": {"guest_epochs": 1, "host_epochs": 1}, "vfedsec": {"epochs": 1, "security": "clear"}}
    protocol = va.load_protocol(name, **short.get(name, {"max_epochs": 2, "hidden": 3}))
    spec, rows = pool_of(protocol, data)
    members = np.random.default_rng(seed).random((3, len(data.aux))) < 0.6
    outside = ~members[0]
    other = Rows(
        {party: np.where(outside[:, None], 3.0, values) for party, values in rows.features.items()},
        labels=np.where(outside, 1 - np.asarray(rows.labels), rows.labels),
    )
    first, second = (spec.train_many(mine, members, [seed, 1, 2]).predict(rows.features) for mine in (rows, other))
    np.testing.assert_allclose(first[0], second[0], rtol=0, atol=1e-5)
    assert np.abs(first[1:] - second[1:]).max() > 1e-4
    alone = spec.train_many(rows, members[:1], [seed]).predict(rows.features)
    np.testing.assert_allclose(first[:1], alone, rtol=0, atol=1e-5)


def test_the_view_trains_shadows_and_stays_isolated(people: VerticalDataset) -> None:
    run = va.load_protocol("splitnn", max_epochs=2, hidden=4).run(people)
    adversary = Adversary({"server"}, [va.DistributionSample(40)])
    assert_isolated(run, adversary)
    view = run.view(adversary)
    pool = view.knowledge.distribution
    assert pool is not None
    members = np.random.default_rng(0).random((4, 40)) < 0.5
    digest = view.digest()
    shadows = view.spec.train_many(pool, members, range(4))
    assert len(shadows) == 4 and view.digest() == digest
    assert shadows.predict(pool.features).shape == (4, 40, 3)
    again = copy.deepcopy(view.spec).train_many(pool, members, range(4))
    np.testing.assert_array_equal(shadows.predict(pool.features), again.predict(pool.features))


def test_regression_shadows_predict_in_the_unit_of_the_label(numbers: VerticalDataset) -> None:
    spec, rows = pool_of(va.load_protocol("splitnn", **{**STEPS, "max_epochs": 30, "model": "lr"}), numbers)
    assert rows.labels is not None
    members = subsets(3, len(rows.labels))
    shifted = replace(rows, labels=100 + 10 * rows.labels)
    found = spec.train_many(shifted, members, range(3)).predict(rows.features)
    assert found.shape == members.shape
    for mine, train in zip(found, members, strict=True):
        errors = mine[train] - shifted.labels[train]
        assert np.mean(errors**2) < 0.8 * np.var(shifted.labels[train])


def test_chunks_bound_the_memory_and_change_nothing(people: VerticalDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, rows = pool_of(va.load_protocol("centralized", **STEPS), people)
    members = subsets(7, len(people.aux))
    together = spec.train_many(rows, members, range(7)).predict(rows.features)
    sizes = []
    fit = stacked.together

    def counted(modules: Sequence[nn.Module], *args: Any) -> list[Any]:
        sizes.append(len(modules))
        return fit(modules, *args)

    monkeypatch.setattr(training, "together", counted)
    monkeypatch.setattr(trainer, "CHUNK_CELLS", 3 * 9 * len(people.aux))
    np.testing.assert_allclose(
        spec.train_many(rows, members, range(7)).predict(rows.features), together, rtol=0, atol=1e-5
    )
    assert sizes == [3, 3, 1]


def test_stacks_are_limited_and_it_changes_nothing(people: VerticalDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, rows = pool_of(va.load_protocol("centralized", **STEPS), people)
    members = subsets(5, len(people.aux))
    together = spec.train_many(rows, members, range(5)).predict(rows.features)
    sizes = []
    build = stacked.stacked

    def counted(modules: Sequence[nn.Module]) -> nn.Module:
        sizes.append(len(modules))
        return build(modules)

    monkeypatch.setattr(stacked, "stacked", counted)
    monkeypatch.setattr(stacked, "LARGEST_STACK", 2 * (9 * 7 + 7 + 7 * 3 + 3) + 1)
    limited = spec.train_many(rows, members, range(5)).predict(rows.features)
    np.testing.assert_allclose(limited, together, rtol=0, atol=1e-5)
    assert max(sizes) == 2


def test_a_subclass_with_another_execute_is_trained_by_it(people: VerticalDataset) -> None:
    class Lazy(Centralized):
        def execute(self, session: Session) -> Outcome:
            shares = np.bincount(session.data.labels[session.data.aligned("train")]) / len(
                session.data.aligned("train")
            )
            return Outcome({}, Model(lambda features: np.tile(shares, (len(features["client1"]), 1))), {})

    spec, rows = pool_of(Lazy(), people)
    found = spec.train_many(rows, subsets(2, len(people.aux)), [0, 1]).predict(rows.features)
    assert np.ptp(found, axis=1).max() == 0 and (found[0] != found[1]).any()


def test_convolutions_are_trained_one_by_one() -> None:
    assert not stacked.stackable(nn.Sequential(nn.Conv2d(1, 2, 3)))
    assert not stacked.stackable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert stacked.stackable(nn.Sequential(nn.Linear(2, 2), nn.SELU(), nn.Sequential()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": np.ones((2, 9), dtype=bool)}, "expected booleans of shape"),
        ({"members": np.ones((2, 150), dtype=int)}, "expected booleans of shape"),
        ({"members": np.zeros((2, 150), dtype=bool)}, "no row to train on"),
        ({"seeds": [1]}, "1 seeds for 2 shadows"),
        ({"labels": None}, "needs labels"),
        ({"features": {}}, "columns of every party: those of 'client1' are unknown"),
    ],
)
def test_bad_input_is_told(change: dict[str, Any], message: str, people: VerticalDataset) -> None:
    spec, rows = pool_of(va.load_protocol("centralized", **STEPS), people)
    asked = {"members": np.ones((2, 150), dtype=bool), "seeds": [1, 2], "features": rows.features}
    asked |= {"labels": rows.labels} | change
    with pytest.raises(InputError, match=message):
        spec.train_many(Rows(asked["features"], labels=asked["labels"]), asked["members"], asked["seeds"])
    with pytest.raises(InputError, match="no trainer"):
        replace(spec, trainer=None).train_many(rows, asked["members"], asked["seeds"])
