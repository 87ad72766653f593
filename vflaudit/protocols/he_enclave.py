"""Encrypted upload to an enclave (RAP, Table 1, HE): the server stores ciphertext, a trusted enclave trains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model, PartyState
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, fit_alone, network_over, party_states

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

ENCLAVE = "enclave"


class HEEnclave(TrainedProtocol):
    """Clients encrypt their rows for a trusted enclave, where they are decrypted and trained on; the server sees bytes.

    RAP's Table 1 calls this HE: "clients encrypt data and server decrypts data for training with a trusted execution
    environment". Nothing is computed on ciphertext there, so the encryption here is hybrid public-key encryption:
    X25519 with a fresh key per client, HKDF-SHA256, AES-256-GCM per row, bound to the sender and the row.

    Cost model: bytes are those of real ciphertexts (16 of tag per row), CPU is measured. Homomorphic ciphertexts are
    orders of magnitude longer and an enclave is slower than the open processor (the paper reports 3.6e3 s where
    centralized training takes 75 s); none of that is modelled or extrapolated. Attestation and side channels of
    enclaves are out of scope: the enclave is an honest party.

    Keys are drawn from the run's seed like every private stream, so that a run can be repeated byte for byte.
    """

    name: ClassVar[str] = "he-enclave"

    keys: Literal["seeded", "os"] = Field("seeded", description="where keys come from; 'os' gives other bytes each run")

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return (*super().parties(data), ENCLAVE)

    def execute(self, session: Session) -> Outcome:
        data, wire = session.data, session.wire
        if data.label_owner == "server":
            raise InputError("he-enclave hides the labels from the server: another party must own them")
        private = self._key(session.seed, ENCLAVE)
        tables = {party: (block.values, np.flatnonzero(block.present)) for party, block in data.blocks.items()}
        dtypes = {"features": "<f4", "labels": "<i8" if data.task == "classification" else "<f8"}
        senders = tuple(dict.fromkeys((*data.parties, data.label_owner)))
        wire.next_round()
        public = {
            party: wire.send(ENCLAVE, party, "public_key", {"values": _public(private)})["values"] for party in senders
        }
        wire.next_round()
        opened: dict[str, Array] = {}
        stored: list[tuple[str, str, Array, Array]] = []
        received: dict[str, Array] = {}
        for party in senders:
            ephemeral = self._key(session.seed, party)
            secret = _secret(ephemeral, public[party])
            received[party] = wire.send(party, "server", "ephemeral_key", {"values": _public(ephemeral)})["values"]
            sealed: list[tuple[str, Array, Array]] = []
            if party in tables:
                values, rows = tables[party]
                sealed.append(("features", values[rows].astype(dtypes["features"]), rows))
            if party == data.label_owner:
                sealed.append(("labels", data.labels[:, None].astype(dtypes["labels"]), np.arange(len(data))))
            for kind, values, rows in sealed:
                with wire.computing(party):
                    ciphertext = seal(secret, values, rows, f"{party} {kind}")
                got = wire.send(party, "server", kind, {"values": ciphertext}, rows=rows)["values"]
                stored.append((party, kind, got, rows))
        wire.next_round()
        forwarded = wire.send("server", ENCLAVE, "ephemeral_keys", received)
        for party, kind, ciphertext, rows in stored:
            got = wire.send("server", ENCLAVE, f"{kind} of {party}", {"values": ciphertext}, rows=rows)["values"]
            with wire.computing(ENCLAVE):
                secret = _secret(private, forwarded[party])
                opened[f"{party} {kind}"] = unseal(secret, got, rows, f"{party} {kind}", dtypes[kind])
        return self._train(session, opened, private)

    def _train(self, session: Session, opened: dict[str, Array], private: X25519PrivateKey) -> Outcome:
        """Train inside the enclave, on what was decrypted."""
        data = session.data
        blocks = {}
        for party, block in data.blocks.items():
            values = np.zeros((len(data), block.width))
            values[block.present] = opened[f"{party} features"]
            blocks[party] = replace(block, values=values)
        inside = replace(session, data=replace(data, blocks=blocks, labels=opened[f"{data.label_owner} labels"][:, 0]))
        network = network_over(self, inside, data.parties, ENCLAVE)
        predictor, utility = fit_alone(self, inside, network, data.parties, ENCLAVE)
        states = party_states(data, {ENCLAVE: network})
        own = states[ENCLAVE]
        states[ENCLAVE] = replace(own, parameters={**own.parameters, "private_key": _raw(private)})
        states["server"] = PartyState()
        return Outcome(states, Model(predictor, parameters_of(network)), utility)

    def _key(self, seed: int, party: str) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if self.keys == "os":
            return X25519PrivateKey.generate()
        return X25519PrivateKey.from_private_bytes(stream(seed, self.name, party, "key").bytes(32))


def _bytes(content: bytes) -> Array:
    return np.frombuffer(content, dtype=np.uint8).copy()


def _public(key: X25519PrivateKey) -> Array:
    return _bytes(key.public_key().public_bytes_raw())


def _raw(key: X25519PrivateKey) -> Array:
    return _bytes(key.private_bytes_raw())


def _secret(mine: X25519PrivateKey, theirs: Array) -> bytes:
    """A 256-bit key from my private and their public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs.tobytes()))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"vflaudit he-enclave").derive(shared)


def seal(secret: bytes, values: Array, rows: Array, what: str) -> Array:
    """AES-256-GCM of every row, shape (rows, bytes + 16). Nonce and associated data say which row of what it is."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, plain = AESGCM(secret), np.ascontiguousarray(values)
    width = plain.itemsize * plain.shape[1] + 16
    sealed = [
        cipher.encrypt(_nonce(what, row), line.tobytes(), what.encode())
        for row, line in zip(rows.tolist(), plain, strict=True)
    ]
    return _bytes(b"".join(sealed)).reshape(len(rows), width)


def unseal(secret: bytes, ciphertext: Array, rows: Array, what: str, dtype: str) -> Array:
    """The rows again; a row that was changed, moved or sent by somebody else is an error."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(secret)
    try:
        plain = [
            cipher.decrypt(_nonce(what, row), line.tobytes(), what.encode())
            for row, line in zip(rows.tolist(), ciphertext, strict=True)
        ]
    except InvalidTag:
        raise InputError(f"a ciphertext of {what!r} was changed on its way") from None
    return np.frombuffer(b"".join(plain), dtype=dtype).reshape(len(rows), -1)


def _nonce(what: str, row: int) -> bytes:
    """Unique under one key: a client's features and labels share the key, so the first four bytes tell them apart."""
    return what.rsplit(" ", 1)[-1][:4].encode().ljust(4, b" ") + row.to_bytes(8, "little")
