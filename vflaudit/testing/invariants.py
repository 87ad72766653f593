"""Privacy invariants of a run: what must hold for any protocol, whatever it computes.

run = MyProtocol().run(data, seed=0)
assert_isolated(run, va.Adversary({"server"}))
assert_secrets_do_not_matter(run, va.Adversary({"server"}), seed=0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from vflaudit.core.adversary import (
    Adversary,
    ClassPriors,
    FeatureMeans,
    KnownSamples,
    LabeledSamples,
    Moments,
    ReleasedModel,
)
from vflaudit.core.dataset import Array, Block, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model, PartyState, Run
from vflaudit.core.transcript import Transcript
from vflaudit.core.view import Challenge, View
from vflaudit.core.wire import Wire
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.testing.reach import array_of, reachable

FORBIDDEN = (VerticalDataset, Block, Run, Protocol, Session, Outcome, Wire)


def assert_isolated(run: Run, adversary: Adversary, challenge: Challenge | None = None) -> None:
    """Nothing in the view leads to the run, the dataset or the memory of an honest party.

    run = MyProtocol().run(data, seed=0)
    adversary = va.Adversary({"server", "client2"}, [va.KnownSamples(20)])
    assert_isolated(run, adversary)
    """
    assert_nothing_leads_out(run.view(adversary, challenge=challenge), run, adversary)


def assert_nothing_leads_out(view: object, run: Run, adversary: Adversary) -> None:
    """The check behind `assert_isolated`, for a view that is already there."""
    secrets = _secret_arrays(run, adversary)
    for path, item in reachable(view):
        assert not isinstance(item, FORBIDDEN), f"a {type(item).__name__} can be reached: {path}"
        assert item is not run.transcript, f"the whole transcript can be reached: {path}"
        if isinstance(item, torch.Tensor):
            assert item.grad_fn is None, f"a tensor remembers how it was computed: {path}"
        array = array_of(item)
        for name, secret in secrets.items() if array is not None else ():
            assert not np.may_share_memory(array, secret), f"the memory of {name} can be reached: {path}"


def _secret_arrays(run: Run, adversary: Adversary) -> dict[str, Array]:
    """Arrays that live at honest parties, by what they are."""
    data, found = run.data, dict[str, Array]()
    for party, block in data.blocks.items():
        if party not in adversary.corrupts:
            found[f"{party}'s columns"] = block.values
            found[f"{party}'s presence"] = block.present
        if data.aux is not None:
            found[f"the pool's columns of {party}"] = data.aux.blocks[party].values
    if data.label_owner not in adversary.corrupts:
        found["the labels"] = data.labels
    if run.order is not None:
        found["the order of a shuffle"] = run.order
    for party, state in run.states.items():
        if party in adversary.corrupts:
            continue
        private = {"features": state.features, "labels": state.labels, **state.parameters, **state.secrets}
        found |= {f"{party}'s {name}": value for name, value in private.items() if value is not None}
    found |= {f"the model's {name}": value for name, value in run.model.parameters.items()}
    return {name: array for name, array in found.items() if array.size}


def assert_secrets_do_not_matter(run: Run, adversary: Adversary, seed: int = 0) -> None:
    """The view is made of messages, corrupted states and granted knowledge: with other secrets it is the same.

    run = MyProtocol().run(data, seed=0)
    adversary = va.Adversary({"server"}, [va.KnownSamples(20), va.FeatureMeans()])
    assert_secrets_do_not_matter(run, adversary, seed=0)

    The transcript stays, everything else that honest parties hold is replaced. Known moments are sums over all rows,
    so with them the honest rows are permuted instead, and the moments compared up to rounding.
    """
    before = run.view(adversary)
    after = _with_moments_of(replaced_secrets(run, adversary, seed).view(adversary), before)
    assert after.digest() == before.digest(), "the view changes with secrets that the adversary has not been granted"
    assert _contents(after) == _contents(before), "something inside the view changes with secrets of honest parties"


def _contents(view: View) -> list[str]:
    """A hash of every array that can be reached, closures included, whatever the order."""
    arrays = (array_of(item) for _, item in reachable(view))
    return sorted(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays if a is not None)


def _with_moments_of(view: View, source: View) -> View:
    """The view with the (equal up to rounding) moments of another one, so that bytes can be compared."""
    for mine, other in (
        (view.knowledge.means, source.knowledge.means),
        (view.knowledge.second_moments, source.knowledge.second_moments),
    ):
        assert set(mine) == set(other)
        for party in mine:
            np.testing.assert_allclose(mine[party], other[party], rtol=1e-7, atol=1e-9)
    known = replace(view.knowledge, means=source.knowledge.means, second_moments=source.knowledge.second_moments)
    return replace(view, knowledge=known)


def replaced_secrets(run: Run, adversary: Adversary, seed: int) -> Run:
    """The same transcript and the same granted values, and other secrets everywhere else."""
    rng, data = stream(seed, "replaced secrets"), run.data
    items = adversary.knows
    moments = any(isinstance(item, FeatureMeans | Moments) for item in items)
    blocks: dict[str, Block] = {}
    for party, block in data.blocks.items():
        if party in adversary.corrupts:
            blocks[party] = block
            continue
        values = rng.normal(3.0, 2.0, block.values.shape)
        if moments:
            unknown = np.setdiff1d(data.aligned("train"), adversary.known_rows(run))
            unknown = unknown[block.present[unknown]]
            values[unknown] = block.values[rng.permutation(unknown)]
        for item in items:
            if isinstance(item, KnownSamples):
                values[item.rows(run)] = block.values[item.rows(run)]
        blocks[party] = replace(block, values=values)
    labels = _labels(run, adversary, rng)
    ids = np.array([f"someone else {number}" for number in range(len(data))])
    other = replace(data, blocks=blocks, labels=labels, ids=ids)
    states = {
        party: state if party in adversary.corrupts else _scrambled(state, other, party, rng)
        for party, state in run.states.items()
    }
    model = run.model if any(isinstance(item, ReleasedModel) for item in items) else Model(_no_model)
    order = None if run.order is None else rng.permutation(run.order)
    return replace(run, data=other, states=states, model=model, utility={"replaced": float(seed)}, order=order)


def _labels(run: Run, adversary: Adversary, rng: np.random.Generator) -> Array:
    """Other labels where they are secret; if class frequencies are known, the same ones in another order."""
    data = run.data
    labels = np.array(data.labels)
    if data.label_owner in adversary.corrupts:
        return labels
    known = [item.rows(run) for item in adversary.knows if isinstance(item, LabeledSamples)]
    train = data.aligned("train")
    secret = np.setdiff1d(train, np.concatenate(known) if known else [])
    labels[secret] = labels[rng.permutation(secret)]
    rest = np.setdiff1d(np.arange(len(labels)), train)
    if any(isinstance(item, ClassPriors) for item in adversary.knows):
        labels[rest] = rng.permutation(labels[rest])
        return labels
    made_up = rng.integers(len(data.classes), size=len(labels)) if data.classes else rng.normal(size=len(labels))
    everywhere = np.concatenate([secret, rest]).astype(np.int64)
    labels[everywhere] = made_up[everywhere]
    return labels


def _scrambled(state: PartyState, data: VerticalDataset, party: str, rng: np.random.Generator) -> PartyState:
    parameters: Mapping[str, Array] = {
        name: rng.normal(size=np.shape(value)) for name, value in state.parameters.items()
    }
    secrets = {name: rng.integers(0, 256, np.shape(value)).astype(value.dtype) for name, value in state.secrets.items()}
    features = data.blocks[party].values if party in data.blocks else None
    labels = None if state.labels is None else data.labels
    return replace(state, features=features, labels=labels, parameters=parameters, secrets=secrets)


def _no_model(features: Mapping[str, Array]) -> Array:
    raise AssertionError("the adversary was not granted the model")


def assert_deterministic(protocol: Protocol, data: VerticalDataset, seed: int = 0, *, random: bool = True) -> None:
    """The same seed gives the same messages, byte for byte; the next seed gives others.

    With `random=False`, for a protocol that sends nothing random (raw columns, say), the next seed gives the same.

    data = va.load_dataset("synthetic:rows=60", parties=2)
    protocol = va.load_protocol("splitnn", max_epochs=1)
    assert_deterministic(protocol, data)
    """
    first, again, other = (_transcript(protocol, data, number).digest() for number in (seed, seed, seed + 1))
    assert first == again, f"protocol {protocol.name!r} sends other messages when it runs again with the same seed"
    assert random == (first != other), (
        f"protocol {protocol.name!r}: does another seed send other messages? {first != other}"
    )


def _transcript(protocol: Protocol, data: VerticalDataset, seed: int) -> Transcript:
    return protocol.run(data, seed=seed).transcript
