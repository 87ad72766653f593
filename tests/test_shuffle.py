"""The secure shuffle delivers all rows, aligned, in an order that no single helper knows."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import vflaudit as va
from defenses import secure_shuffle
from defenses.secure_shuffle import NONCE, SecureShuffle, Source, seal, unseal
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError

PARTIES = ("server", "client1", "client2", "label_owner", "mix1", "mix2")
SENDERS = {"client1": "client1", "client2": "client2", "labels of label_owner": "label_owner"}


def tables(rows: int, seed: int = 0, width: int = 3) -> dict[str, np.ndarray]:
    """Two clients' tables and labels, every value of which tells its row."""
    rng = np.random.default_rng(seed)
    return {
        "client1": rng.standard_normal((rows, width)).astype(np.float32),
        "client2": rng.standard_normal((rows, 1)),
        "labels of label_owner": rng.integers(0, 4, rows),
    }


def shuffle(data: dict[str, np.ndarray], seed: int = 0, **options: Any) -> tuple[dict, np.ndarray, Transcript]:
    """One exchange, and all its messages."""
    transcript = Transcript()
    received, order = SecureShuffle(**options).exchange(Wire(PARTIES, transcript), data, SENDERS, "server", seed)
    return received, order, transcript


@given(
    rows=st.integers(1, 30), width=st.integers(1, 5), seed=st.integers(0, 1000), source=st.sampled_from(["seed", "os"])
)
def test_all_rows_arrive_aligned(rows: int, width: int, seed: int, source: str) -> None:
    data = tables(rows, seed, width)
    received, order, _ = shuffle(data, seed, randomness=source)
    assert sorted(order) == list(range(rows)) and list(received) == list(data)
    for name, table in data.items():
        assert received[name].dtype == table.dtype
        np.testing.assert_array_equal(received[name], table[order])


def test_rounds_and_messages() -> None:
    *_, transcript = shuffle(tables(5))
    seen = [(message.step, message.sender, message.receiver, message.kind) for message in transcript]
    assert seen == [
        (0, "client1", "mix1", "sealed"),
        (0, "client2", "mix1", "sealed"),
        (0, "label_owner", "mix1", "sealed"),
        (1, "mix1", "mix2", "mixed"),
        (2, "mix2", "server", "shuffled"),
    ]
    assert all(message.rows is None for message in transcript)
    for message in transcript.select(touching={"mix1"}):
        assert all(array.dtype == np.uint8 for array in message.arrays.values())


def test_a_party_with_two_tables_sends_one_message() -> None:
    data = tables(4)
    transcript = Transcript()
    senders = SENDERS | {"labels of label_owner": "client1"}
    received, order = SecureShuffle().exchange(Wire(PARTIES, transcript), data, senders, "server", 0)
    assert len(list(transcript.select(receiver="mix1"))) == 2
    np.testing.assert_array_equal(received["labels of label_owner"], data["labels of label_owner"][order])


@pytest.mark.parametrize("source", ["seed", "os"])
def test_every_order_is_equally_likely(source: str) -> None:
    trials, index = 1500, {order: k for k, order in enumerate(permutations(range(4)))}
    counts = np.zeros(len(index))
    for seed in range(trials):
        data = {"client2": np.arange(4)[:, None]}
        wire = Wire(PARTIES, Transcript())
        counts[index[tuple(SecureShuffle(randomness=source).exchange(wire, data, SENDERS, "server", seed)[1])]] += 1
    statistic = ((counts - trials / 24) ** 2 / (trials / 24)).sum()
    assert chi2.sf(statistic, 23) > 1e-5


def test_the_same_seed_gives_the_same_bytes_and_the_system_does_not() -> None:
    data = tables(6)
    assert shuffle(data, 3)[2].digest() == shuffle(data, 3)[2].digest() != shuffle(data, 4)[2].digest()
    assert shuffle(data, 3, randomness="os")[2].digest() != shuffle(data, 3, randomness="os")[2].digest()


def test_mix1_sees_shapes_only() -> None:
    """What mix1 touches has the same shapes whatever the data, no plaintext, and nothing repeated for equal rows."""
    one, other = tables(40, 1), tables(40, 2)
    one["client2"] = np.ones((40, 1))
    views = [list(shuffle(data, 5)[2].select(touching={"mix1"})) for data in (one, other)]
    for a, b in zip(*views, strict=True):
        assert {name: (x.shape, x.dtype) for name, x in a.arrays.items()} == {
            name: (x.shape, x.dtype) for name, x in b.arrays.items()
        }
        for name, table in one.items():
            if name in a.arrays:
                assert not np.array_equal(a.arrays[name], b.arrays[name])
                sealed = a.arrays[name].tobytes()
                assert not any(row.tobytes() in sealed for row in table if row.nbytes >= 8)
    sealed = next(message.arrays["client2"] for message in views[0] if "client2" in message.arrays)
    assert len(np.unique(sealed[:, NONCE:], axis=0)) == 40  # equal rows, different ciphertexts


def test_only_mix2s_key_opens() -> None:
    data, source = tables(3)["client1"], Source(None)
    key, wrong = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    sealed = seal("client1", data, key.public_key(), source)
    np.testing.assert_array_equal(unseal("client1", sealed, key, data), data)
    with pytest.raises(InputError, match="not meant for mix2"):
        unseal("client1", sealed, wrong, data)
    with pytest.raises(InvalidTag):
        row = sealed["client1"][0].tobytes()
        AESGCM(bytes(32)).decrypt(row[:NONCE], row[NONCE:], b"client1")


@given(row=st.integers(0, 4), byte=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_row_is_refused(row: int, byte: int, bit: int) -> None:
    data, key = tables(5)["client1"], X25519PrivateKey.generate()
    sealed = {name: value.copy() for name, value in seal("client1", data, key.public_key(), Source(1)).items()}
    sealed["client1"][row, byte % sealed["client1"].shape[1]] ^= 1 << bit
    with pytest.raises(InputError, match="changed"):
        unseal("client1", sealed, key, data)


def test_repeated_and_exchanged_rows_are_refused() -> None:
    data, key = tables(5)["client1"], X25519PrivateKey.generate()
    sealed = seal("client1", data, key.public_key(), Source(1))
    with pytest.raises(InputError, match="repeated"):
        unseal("client1", sealed | {"client1": sealed["client1"][[0, 0, 1, 2, 3]]}, key, data)
    moved = {name.replace("client1", "client9"): value for name, value in sealed.items()}
    with pytest.raises(InputError, match="changed"):
        unseal("client9", moved, key, data)


def test_unequal_tables_are_refused() -> None:
    data = tables(4)
    data["client2"] = data["client2"][:3]
    with pytest.raises(InputError, match="cannot be shuffled together"):
        shuffle(data)


@given(first=st.permutations(range(6)), other=st.permutations(range(6)))
def test_mix2_and_the_receiver_cannot_tell_mix1s_order(first: list[int], other: list[int]) -> None:
    """Any order of mix1 explains what mix2 and the receiver see: some original order goes with it."""
    data = tables(6)
    seen = []
    for order in (np.array(first), np.array(other)):
        inputs = {name: table[np.argsort(order)] for name, table in data.items()}  # so that inputs[order] is data
        with pytest.MonkeyPatch.context() as patch:
            own = Source.permutation
            patch.setattr(
                secure_shuffle.Source,
                "permutation",
                lambda self, n, *use, own=own, order=order: order if use == ("mix1",) else own(self, n, *use),
            )
            received, true, transcript = shuffle(inputs, 7)
        key = X25519PrivateKey.from_private_bytes(Source(7).take(32, "mix2", "key"))
        forwarded = next(transcript.select(receiver="mix2")).arrays
        seen.append([unseal(name, forwarded, key, table) for name, table in data.items()] + list(received.values()))
        np.testing.assert_array_equal(received["client1"], inputs["client1"][true])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rap_learns_the_same_from_shuffled_rows(cancer: VerticalDataset) -> None:
    run = va.load_protocol("rap", max_epochs=3).run(cancer, seed=0, defenses=[SecureShuffle()])
    plain = va.load_protocol("rap", max_epochs=3).run(cancer, seed=0)
    assert run.order is not None and sorted(run.order) == sorted(run.data.aligned("train"))
    table = run.view(va.Adversary({"server"})).table_of("client1")
    sent = plain.view(va.Adversary({"server"})).table_of("client1")
    assert table.shuffled and not sent.shuffled
    lookup = {row: k for k, row in enumerate(sent.rows)}
    np.testing.assert_array_equal(table.values, sent.values[[lookup[row] for row in run.order]])
    assert not list(run.view(va.Adversary({"server"})).transcript.select(touching={"mix1"}))
