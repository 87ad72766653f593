"""The mini-batch, told to each holder alone (vFedSec 4.2).

    seal_ids(ids, holders, keys, round, source, purpose="forward") -> {"ids": uint8 (clusters, B, SEALED),
                                                                       "proof <party>": uint8 (PROOF,), ...}
    open_ids(batch, me, cluster, key, round, purpose="forward")    -> int64 (B,), -1 where the sample is not mine

The active party encrypts every sample id under the key that it shares with the holder; the aggregator broadcasts the
batch. AES-256-GCM with a fresh random nonce per id; round, purpose, cluster and position are authenticated too, so an
id opens only where and when it was meant to.

A tag that does not verify cannot tell "not mine" from "tampered with". So every passive party also gets a proof: an
empty message under its own key that authenticates all ciphertexts of the batch. Whatever changes, drops, repeats or
reorders an id, or replays a batch of another round, fails the proof of every party before any id is opened.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.keys import KeySource
from vflaudit.protocols.vfedsec.masks import Purpose, domain

NONCE, TAG, ID = 12, 16, 8  # bytes
SEALED = NONCE + ID + TAG
PROOF = NONCE + TAG
IDS = "ids"


def proof_of(party: str) -> str:
    """The name of a party's proof in a batch."""
    return f"proof {party}"


def seal_ids(
    ids: Array,
    holders: Sequence[Sequence[str]],
    keys: Mapping[str, bytes],
    round: int,
    source: KeySource,
    purpose: Purpose = "forward",
) -> dict[str, Array]:
    """Encrypt a batch: holders[c][k] is the party of cluster c that holds sample k; keys has the id key of everybody.

    Every party in `keys` gets a proof, also one that holds nothing of this batch.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind != "i" or (ids.size and ids.min() < 0):
        raise InputError("vfedsec: sample ids must be one row of integers from 0 upwards")
    unknown = {party for cluster in holders for party in cluster} - set(keys)
    if unknown:
        raise InputError(f"vfedsec: no id key for the holders {sorted(unknown)}: expected {sorted(keys)}")
    if any(len(cluster) != len(ids) for cluster in holders):
        raise InputError(f"vfedsec: every cluster needs one holder for each of the {len(ids)} samples")
    ciphers = {party: AESGCM(key) for party, key in keys.items()}
    plain = ids.astype(">i8").tobytes()
    # With a seed, nonces are the same for the same batch only: the content is part of what they are taken for.
    content = hashlib.sha256(plain + repr([list(cluster) for cluster in holders]).encode()).hexdigest()
    taken = source.take(NONCE * (len(holders) * len(ids) + len(keys)), "nonces", purpose, str(round), content)
    nonces = (taken[start : start + NONCE] for start in range(0, len(taken), NONCE))
    parts = []
    for cluster, names in enumerate(holders):
        for position, party in enumerate(names):
            nonce, data = next(nonces), plain[ID * position : ID * (position + 1)]
            parts.append(nonce + ciphers[party].encrypt(nonce, data, _place(round, purpose, cluster, position)))
    sealed = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(holders), len(ids), SEALED)
    batch = {IDS: sealed}
    for party, nonce in zip(keys, nonces, strict=True):
        proof = nonce + ciphers[party].encrypt(nonce, b"", _whole(round, purpose, sealed))
        batch[proof_of(party)] = np.frombuffer(proof, dtype=np.uint8)
    return batch


def open_ids(
    batch: Mapping[str, Array], me: str, cluster: int, key: bytes, round: int, purpose: Purpose = "forward"
) -> Array:
    """My samples of the batch in its order, -1 where a fellow of my cluster holds it; an error if it was changed."""
    sealed, proof = batch.get(IDS), batch.get(proof_of(me))
    if sealed is None or proof is None:
        raise InputError(f"vfedsec: the batch of round {round} lacks the ids or the proof for {me}")
    if sealed.dtype != np.uint8 or sealed.ndim != 3 or sealed.shape[2] != SEALED or not 0 <= cluster < len(sealed):
        raise InputError(f"vfedsec: the batch of round {round} has no ids for cluster {cluster}")
    cipher, mark = AESGCM(key), proof.tobytes()
    try:
        cipher.decrypt(mark[:NONCE], mark[NONCE:], _whole(round, purpose, sealed))
    except (InvalidTag, ValueError):
        raise InputError(f"vfedsec: the batch that {me} got for round {round} was changed or replayed") from None
    ids = np.full(sealed.shape[1], -1, dtype=np.int64)
    data = sealed[cluster].tobytes()
    for position in range(len(ids)):
        entry = data[SEALED * position : SEALED * (position + 1)]
        try:
            plain = cipher.decrypt(entry[:NONCE], entry[NONCE:], _place(round, purpose, cluster, position))
        except InvalidTag:
            continue  # the proof holds, so this is somebody else's
        ids[position] = int.from_bytes(plain, "big")
    return ids


def _place(round: int, purpose: Purpose, cluster: int, position: int) -> bytes:
    """Where an id belongs."""
    return b"id" + domain(round, purpose) + struct.pack(">QQ", cluster, position)


def _whole(round: int, purpose: Purpose, sealed: Array) -> bytes:
    """All ciphertexts of a batch, and where they belong."""
    return b"batch" + domain(round, purpose) + struct.pack(">QQ", *sealed.shape[:2]) + sealed.tobytes()
