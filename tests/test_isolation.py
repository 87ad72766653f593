"""From a view there is no way to what honest parties hold: checked on random data, and checked to be checkable."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.adversary import Adversary, Known
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Model, PartyState, Run
from vflaudit.core.view import Challenge, View
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter
from vflaudit.testing.invariants import assert_nothing_leads_out, replaced_secrets
from vflaudit.testing.reach import reachable
from vflaudit.testing.strategies import tables, vertical_datasets

SPLITNN = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["mlp", "lr"]),
        "aggregation": st.sampled_from(["concat", "sum"]),
        "activation_at": st.sampled_from(["client", "server"]),
        "labels_at": st.sampled_from([None, "server", "client1", "label_owner"]),
        "max_epochs": st.integers(1, 2),
        "hidden": st.integers(1, 9),
        "batch_size": st.sampled_from([None, 4]),
    }
)


@st.composite
def adversaries(draw: st.DrawFn, run: Run) -> Adversary:
    """Any corrupted parties, colluding or not, with any knowledge that there is to have."""
    corrupts = draw(st.sets(st.sampled_from(run.spec.parties)))
    train = len(run.data.aligned("train"))
    items: list[Known] = [va.FeatureMeans(), va.Moments()]
    items += [va.KnownSamples(draw(st.integers(1, train)), with_ids=draw(st.booleans()))]
    items += [va.LabeledSamples(draw(st.integers(1, train)))]
    if run.data.aux is not None:
        items.append(va.DistributionSample(draw(st.integers(1, len(run.data.aux)))))
    if run.data.task == "classification":
        items.append(va.ClassPriors())
    knows = [item for item in items if draw(st.booleans())]
    access = draw(st.sampled_from([None, "black-box", "white-box"]))
    if access is not None or not corrupts:
        knows.append(va.ReleasedModel(access or "white-box"))
    return Adversary(corrupts, knows)


def check(run: Run, draw: Callable[..., Any]) -> None:
    for _ in range(3):
        adversary = draw(adversaries(run))
        assert_isolated(run, adversary)
        assert_secrets_do_not_matter(run, adversary, seed=draw(st.integers(0, 9)))


@settings(max_examples=150)
@given(data=vertical_datasets(), parameters=SPLITNN, source=st.data())
def test_splitnn_views_are_isolated(data: VerticalDataset, parameters: dict[str, Any], source: st.DataObject) -> None:
    check(va.load_protocol("splitnn", **parameters).run(data, seed=1), source.draw)


@settings(max_examples=60)
@given(
    data=vertical_datasets(),
    name=st.sampled_from(["centralized", "local"]),
    model=st.sampled_from(["mlp", "lr"]),
    source=st.data(),
)
def test_baseline_views_are_isolated(data: VerticalDataset, name: str, model: str, source: st.DataObject) -> None:
    check(va.load_protocol(name, model=model, hidden=4, max_epochs=1).run(data, seed=1), source.draw)


@settings(max_examples=60)
@given(
    data=vertical_datasets(),
    like=st.sampled_from(["splitnn", "centralized", "local"]),
    model=st.sampled_from(["mlp", "lr"]),
    source=st.data(),
)
def test_ideal_views_are_isolated(data: VerticalDataset, like: str, model: str, source: st.DataObject) -> None:
    check(va.load_protocol("ideal", like=like, model=model, hidden=4, max_epochs=1).run(data, seed=1), source.draw)


@settings(max_examples=30)
@given(data=vertical_datasets(), parameters=SPLITNN, name=st.sampled_from(["splitnn", "ideal"]))
def test_protocols_are_deterministic(data: VerticalDataset, parameters: dict[str, Any], name: str) -> None:
    assert_deterministic(va.load_protocol(name, **parameters), data)


def test_determinism_catches_what_is_not(cancer: VerticalDataset) -> None:
    centralized = va.load_protocol("centralized", max_epochs=1, hidden=2)
    assert_deterministic(centralized, cancer, random=False)
    with pytest.raises(AssertionError, match="another seed"):
        assert_deterministic(centralized, cancer)

    class Sloppy(type(va.load_protocol("splitnn"))):  # type: ignore[misc]
        def run(self, data: VerticalDataset, *, seed: int = 0, **more: Any) -> Run:
            return super().run(data, seed=int(np.random.default_rng().integers(2**30)), **more)

    with pytest.raises(AssertionError, match="again with the same seed"):
        assert_deterministic(Sloppy(max_epochs=1, hidden=2), cancer)


def test_challenges_are_isolated(short_run: Run) -> None:
    adversary = Adversary({"server"})
    for game in (va.Membership(), va.Reidentification(party="client1")):
        assert_isolated(short_run, adversary, challenge=game.challenge(short_run))


# --- the invariants notice when they are broken -------------------------------------------------------------


class Box:
    """Something with an attribute."""

    def __init__(self, item: object) -> None:
        self.item = item

    def method(self, features: object) -> object:
        return self.item


def _slotted(item: object) -> object:
    class Slotted:
        __slots__ = ("item",)

    box = Slotted()
    box.item = item
    return box


def _closure(item: object) -> Callable[..., object]:
    return lambda features: item


def _default(item: object) -> Callable[..., object]:
    def predict(features: object, item: object = item) -> object:
        return item

    return predict


def _keyword(item: object) -> Callable[..., object]:
    def predict(features: object, *, item: object = item) -> object:
        return item

    return predict


def _generator(item: object) -> object:
    def numbers() -> Any:
        kept = item
        yield 1
        yield kept

    started = numbers()
    next(started)
    return started


WAYS: dict[str, Callable[[object], object]] = {
    "itself": lambda item: item,
    "attribute": Box,
    "bound method": lambda item: Box(item).method,
    "slot": _slotted,
    "closure": _closure,
    "closure in a closure": lambda item: _closure(_closure(item)),
    "default argument": _default,
    "keyword default": _keyword,
    "partial": lambda item: functools.partial(print, item),
    "generator": _generator,
    "list in a dict in a tuple": lambda item: ({"a": [0, item]},),
    "weak reference": weakref.ref,
}


def tampered(view: View, thing: object) -> View:
    """A view that carries one thing too many, where the model would be."""
    return replace(view, knowledge=replace(view.knowledge, model=thing))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("secret", ["run", "data", "aux"])
def test_a_way_back_is_noticed(short_run: Run, way: str, secret: str) -> None:
    adversary = Adversary({"server"})
    view = short_run.view(adversary)
    assert_nothing_leads_out(view, short_run, adversary)
    item = {"run": short_run, "data": short_run.data, "aux": short_run.data.aux}[secret]
    with pytest.raises(AssertionError, match="can be reached: view"):
        assert_nothing_leads_out(tampered(view, WAYS[way](item)), short_run, adversary)


MEMORY: dict[str, Callable[[np.ndarray], object]] = {
    "slice": lambda values: values[3:7, 1:2],
    "transpose": lambda values: values.T,
    "base": lambda values: np.broadcast_to(values[0], (5, values.shape[1])),
    "object array": lambda values: np.array([None, values[1:2]], dtype=object),
    "memoryview": lambda values: memoryview(values),
    "tensor": lambda values: Box(torch.from_numpy(values)),
    "grad": lambda values: _with_grad(values),
    "closure": lambda values: _closure(values[:1]),
}


def _with_grad(values: np.ndarray) -> torch.Tensor:
    tensor = torch.zeros(values.shape, dtype=torch.float64, requires_grad=True)
    tensor.grad = torch.from_numpy(values)
    return tensor


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("way", MEMORY)
def test_honest_memory_is_noticed(short_run: Run, way: str) -> None:
    adversary = Adversary({"server", "client2"})
    view = short_run.view(adversary)
    values = short_run.data.blocks["client1"].values
    with pytest.raises(AssertionError, match=r"memory of client1's .* can be reached"):
        assert_nothing_leads_out(tampered(view, MEMORY[way](values)), short_run, adversary)
    mine = short_run.view(adversary).states["client2"].features
    assert mine is not None
    assert_nothing_leads_out(tampered(view, MEMORY[way](mine)), short_run, adversary)  # its own columns are its own


def test_labels_and_parameters_are_honest_memory_too(short_run: Run) -> None:
    adversary = Adversary({"server"})
    view = short_run.view(adversary)
    state = short_run.states["client1"]
    for thing, name in (
        (short_run.data.labels[:1], "labels"),
        (next(iter(state.parameters.values()))[:1], "client1's"),
        (short_run.model.parameters, "model's"),
    ):
        with pytest.raises(AssertionError, match=f"memory of .*{name}"):
            assert_nothing_leads_out(tampered(view, thing), short_run, adversary)
    with pytest.raises(AssertionError, match="whole transcript"):
        assert_nothing_leads_out(tampered(view, short_run.transcript), short_run, adversary)


def test_an_autograd_graph_is_noticed(short_run: Run) -> None:
    adversary = Adversary({"server"})
    secret = torch.tensor(np.array(short_run.data.blocks["client1"].values), requires_grad=True)
    with pytest.raises(AssertionError, match="remembers"):
        assert_nothing_leads_out(tampered(short_run.view(adversary), (2 * secret).sum()), short_run, adversary)


class Leaky(Run):
    """A run whose views say more than they should; `leak` makes the extra of the data."""

    leak: Callable[[VerticalDataset], object]

    def view(self, adversary: Adversary, *, challenge: Challenge | None = None, messages: bool = True) -> View:
        return tampered(super().view(adversary, challenge=challenge, messages=messages), type(self).leak(self.data))


def leaky(run: Run, leak: Callable[[VerticalDataset], object]) -> Run:
    kind = type("LeakyRun", (Leaky,), {"leak": staticmethod(leak)})
    return kind(**{name: getattr(run, name) for name in Run.__dataclass_fields__})


@pytest.mark.parametrize(
    "leak",
    [
        lambda data: Model(print, {"w": np.array(data.blocks["client1"].values[5])}),
        lambda data: Model(print, {"w": np.array(data.labels[:20])}),
        lambda data: _closure(np.array(data.blocks["client3"].values[:2])),
        lambda data: PartyState(features=data.blocks["client1"].values.sum(axis=0)),
    ],
    ids=["a row", "labels", "a copy in a closure", "a sum"],
)
def test_a_copied_secret_is_noticed(short_run: Run, leak: Callable[[VerticalDataset], object]) -> None:
    assert_secrets_do_not_matter(short_run, Adversary({"server"}), seed=0)
    with pytest.raises(AssertionError, match=r"view changes|inside the view"):
        assert_secrets_do_not_matter(leaky(short_run, leak), Adversary({"server"}), seed=0)


def test_replacing_secrets_replaces_all_but_what_is_granted(short_run: Run) -> None:
    adversary = Adversary({"server", "client2"}, [va.KnownSamples(30), va.LabeledSamples(10)])
    other = replaced_secrets(short_run, adversary, 0)
    known = adversary.known_rows(short_run)
    secret = np.setdiff1d(np.arange(len(short_run.data)), known)
    for party in ("client1", "client3", "client4"):
        before, after = short_run.data.blocks[party].values, other.data.blocks[party].values
        np.testing.assert_array_equal(before[known], after[known])
        assert (before[secret] != after[secret]).all()
        for name, value in short_run.states[party].parameters.items():
            assert (value != other.states[party].parameters[name]).all()
    np.testing.assert_array_equal(short_run.data.blocks["client2"].values, other.data.blocks["client2"].values)
    assert (short_run.data.labels != other.data.labels).mean() > 0.3
    assert other.transcript is short_run.transcript


def test_moments_survive_the_replacement(short_run: Run) -> None:
    adversary = Adversary({"server"}, [va.KnownSamples(5), va.Moments(), va.ClassPriors()])
    other = replaced_secrets(short_run, adversary, 0)
    changed = short_run.data.blocks["client1"].values != other.data.blocks["client1"].values
    assert changed.any(axis=1).mean() > 0.9
    assert_secrets_do_not_matter(short_run, adversary, seed=0)


def test_reachable_says_where(short_run: Run) -> None:
    view = tampered(short_run.view(Adversary({"server"})), Box({"key": _closure(short_run)}))
    path = next(path for path, item in reachable(view) if item is short_run)
    assert path == "view.knowledge.model.item['key'].<closure item>"


@given(table=tables())
def test_tables_strategy(table: va.Table) -> None:
    assert len(table.columns) == table.values.shape[1] and len(np.unique(table.ids)) == len(table.labels)


def test_strategies_reach_the_special_cases() -> None:
    seen: set[str] = set()

    @settings(max_examples=150, database=None)
    @given(data=vertical_datasets())
    def collect(data: VerticalDataset) -> None:
        seen.update({data.task, f"{len(data.parties)} parties", f"labels at {data.label_owner}"})
        seen.update(column.kind for block in data.blocks.values() for column in block.columns)
        seen.add("pool" if data.aux is not None else "no pool")
        seen.add("missing rows" if any(not block.present.all() for block in data.blocks.values()) else "all rows")
        assert len(data.aligned("train")) >= 4

    collect()
    assert seen >= {"classification", "regression", "numeric", "categorical", "pool", "no pool", "missing rows"}
    assert seen >= {"all rows", "1 parties", "2 parties", "3 parties", "4 parties", "labels at client1"}
