"""The mini-batch's sample ids reach their holders alone, and nothing else passes for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec import masks
from vflaudit.protocols.vfedsec.batch_ids import ID, IDS, NONCE, SEALED, open_ids, proof_of, seal_ids
from vflaudit.protocols.vfedsec.keys import KeySource

PURPOSES: tuple[masks.Purpose, ...] = ("forward", "gradient", "serving")
PASSIVE = ("passive1", "passive2", "passive3", "passive4")
CLUSTERS = (("passive1", "passive2"), ("passive3", "passive4"))


KEYS = {party: KeySource(0).take(32, "test", party) for party in PASSIVE}


def sample_batch(size: int, seed: int) -> tuple[np.ndarray, list[list[str]]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**62, size), [[cluster[k] for k in rng.integers(0, 2, size)] for cluster in CLUSTERS]


@given(
    size=st.integers(0, 40), seed=st.integers(0, 999), source=st.none() | st.integers(0, 9), round=st.integers(0, 99)
)
def test_everybody_opens_its_own_samples_and_nothing_else(size: int, seed: int, source: int | None, round: int) -> None:
    ids, holders = sample_batch(size, seed)
    batch = seal_ids(ids, holders, KEYS, round, KeySource(source))
    assert batch[IDS].shape == (2, size, SEALED) and batch[IDS].dtype == np.uint8
    for party in PASSIVE:
        cluster = 0 if party in CLUSTERS[0] else 1
        opened = open_ids(batch, party, cluster, KEYS[party], round)
        mine = np.array(holders[cluster]) == party
        assert opened.dtype == np.int64
        np.testing.assert_array_equal(opened, np.where(mine, ids, -1))
        foreign = open_ids(batch, party, 1 - cluster, KEYS[party], round)
        assert (foreign == -1).all()
    entries = batch[IDS].reshape(-1, SEALED)
    assert len(np.unique(entries[:, :NONCE], axis=0)) == len(entries)
    for position, id in enumerate(ids):
        assert id.astype(">i8").tobytes() not in batch[IDS][:, position].tobytes()


def test_ids_without_the_key_are_ciphertext() -> None:
    """Neither the aggregator (no key) nor a fellow (own key, right place) can decrypt, not even without the proof."""
    batch = seal_ids(np.array([42]), [["passive1"]], KEYS, 3, KeySource(0))
    entry = batch[IDS][0, 0].tobytes()
    place = b"id" + masks.domain(3, "forward") + bytes(16)
    assert AESGCM(KEYS["passive1"]).decrypt(entry[:NONCE], entry[NONCE:], place) == (42).to_bytes(ID, "big")
    for key in (KEYS["passive2"], KEYS["passive3"], bytes(32)):
        with pytest.raises(InvalidTag):
            AESGCM(key).decrypt(entry[:NONCE], entry[NONCE:], place)
    for party in ("passive2", "passive3"):
        assert open_ids(batch, party, 0, KEYS[party], 3).tolist() == [-1]


@given(
    change=st.sampled_from(
        ["tamper", "reorder", "drop", "repeat", "clusters", "proof", "no proof", "round", "purpose"]
    ),
    seed=st.integers(0, 999),
    party=st.sampled_from(PASSIVE),
    data=st.data(),
)
def test_a_batch_that_is_not_what_was_sealed_is_refused(change: str, seed: int, party: str, data: Any) -> None:
    """By every party, also by one that holds none of the samples concerned."""
    ids, holders = sample_batch(6, seed)
    round, purpose = 5, PURPOSES[0]
    batch = {name: array.copy() for name, array in seal_ids(ids, holders, KEYS, 5, KeySource(seed)).items()}
    one, two = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True))
    cluster, byte, bit = data.draw(st.tuples(st.integers(0, 1), st.integers(0, SEALED - 1), st.integers(0, 7)))
    sealed = batch[IDS]
    match change:
        case "tamper":
            sealed[cluster, one, byte] ^= 1 << bit
        case "reorder":
            sealed[cluster, [one, two]] = sealed[cluster, [two, one]]
        case "drop":
            batch[IDS] = np.delete(sealed, one, axis=1)
        case "repeat":
            sealed[cluster, one] = sealed[cluster, two]
        case "clusters":
            batch[IDS] = sealed[::-1]
        case "proof":
            batch[proof_of(party)] = batch[proof_of(next(other for other in PASSIVE if other != party))]
        case "no proof":
            del batch[proof_of(party)]
        case "round":
            round = 6
        case "purpose":
            purpose = "serving"
    with pytest.raises(InputError, match=r"changed or replayed|lacks the ids or the proof"):
        open_ids(batch, party, 0 if party in CLUSTERS[0] else 1, KEYS[party], round, purpose)


def test_an_id_out_of_place_does_not_open_even_with_a_valid_proof() -> None:
    """Ids carry round, cluster and position themselves: the proof is a second line, not the only one."""
    source, mine = KeySource(0), [["passive1", "passive1"]] * 2
    old = seal_ids(np.array([7, 8]), mine, KEYS, 1, source)[IDS]
    new = seal_ids(np.array([5, 6]), mine, KEYS, 2, source)[IDS]

    def opened(one: np.ndarray, two: np.ndarray) -> list[int]:
        sealed = np.stack([one, two])[None]
        whole = b"batch" + masks.domain(2, "forward") + (1).to_bytes(8, "big") + (2).to_bytes(8, "big")
        proof = bytes(NONCE) + AESGCM(KEYS["passive1"]).encrypt(bytes(NONCE), b"", whole + sealed.tobytes())
        batch = {IDS: sealed, proof_of("passive1"): np.frombuffer(proof, dtype=np.uint8)}
        return open_ids(batch, "passive1", 0, KEYS["passive1"], 2).tolist()

    assert opened(new[0, 0], new[0, 1]) == [5, 6]
    assert opened(new[0, 0], old[0, 1]) == [5, -1]  # another round
    assert opened(new[0, 0], new[1, 1]) == [5, -1]  # another cluster
    assert opened(new[0, 1], new[0, 0]) == [-1, -1]  # another position


def test_nonces_repeat_only_for_the_same_batch() -> None:
    holders = [["passive1", "passive1"]]
    seal = lambda ids, round, seed: seal_ids(np.array(ids), holders, KEYS, round, KeySource(seed))
    nonce = lambda batch: batch[IDS][..., :NONCE].tobytes()
    first = seal([1, 2], 0, 0)
    assert all((seal([1, 2], 0, 0)[name] == first[name]).all() for name in first)
    assert len({nonce(first), nonce(seal([1, 3], 0, 0)), nonce(seal([1, 2], 1, 0)), nonce(seal([1, 2], 0, 1))}) == 4
    assert nonce(seal([1, 2], 0, None)) != nonce(seal([1, 2], 0, None))


def test_batches_that_cannot_be_sealed_or_opened() -> None:
    source = KeySource(0)
    for ids, holders, words in (
        ([-1], [["passive1"]], "from 0 upwards"),
        ([0.5], [["passive1"]], "from 0 upwards"),
        ([1], [["passive9"]], "no id key for the holders \\['passive9'\\]"),
        ([1, 2], [["passive1"]], "each of the 2 samples"),
    ):
        with pytest.raises(InputError, match=words):
            seal_ids(np.array(ids), holders, KEYS, 0, source)
    batch = seal_ids(np.array([1]), [["passive1"]], KEYS, 0, source)
    with pytest.raises(InputError, match="no ids for cluster 1"):
        open_ids(batch, "passive1", 1, KEYS["passive1"], 0)
