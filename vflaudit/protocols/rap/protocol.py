"""RAP's algorithm 1: transform, send once, train at the server, serve through the label owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.core.dataset import Array, Block
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model, PartyState
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import utility_of
from vflaudit.protocols.rap.server import LimitedServer, Server, fit_servers
from vflaudit.protocols.rap.transforms import CategoricalLabel, FeatureTransform, NumericLabel
from vflaudit.protocols.training import TrainedProtocol, with_validation

LabelTransform = CategoricalLabel | NumericLabel


class RAP(TrainedProtocol):
    """RAP: each client sends its columns once, times a private random square matrix; the server trains on them alone.

    The paper does not say whether features are standardised first. Standardised is the default here, because networks
    hardly train on raw units; `standardise=false` gives the other reading, with unit scale made by the server.
    """

    name: ClassVar[str] = "rap"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_in", "features_out", "rows_out"})

    model: Literal["mlp", "lr"] = Field(
        "mlp", description="one hidden layer of 128, or logistic/linear regression (4.1)"
    )
    pseudo_feature: bool = Field(True, description="hide a client's only numeric column behind a pseudo feature (2.3)")
    label_condition: float | None = Field(
        None,
        ge=1.1,
        description="redraw a numeric label's 2x2 matrix until its condition number is at most this; none: keep the "
        "first draw, as the paper does (2.3)",
    )
    variant: Literal["full", "limited-server"] = Field(
        "full", description="limited-server: outputs and gradients are exchanged with the label owner (section 3)"
    )
    precision: Literal["float32", "float64"] = Field("float32", description="of the transformed features on the wire")

    def execute(self, session: Session) -> Outcome:
        return self._start(session).run()

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """Each session sends its own transformed tables; then the servers train all at once."""
        runs = [self._start(session) for session in sessions]
        servers = [run.send()[0] for run in runs]
        fit_servers(self, servers)
        return [run.released(server) for run, server in zip(runs, servers, strict=True)]

    def _start(self, session: Session) -> _Rap:
        if session.data.label_owner == "server":
            raise InputError("RAP hides the labels from the server: another party must own them")
        if session.protect.shuffle is not None and self.variant == "limited-server":
            raise InputError("a shuffle cannot be combined with the limited-server variant: rows must stay in step")
        return _Rap(self, session)


def _single_number(block: Block) -> bool:
    """The case of 2.3: one numeric column. A single indicator is categorical and gets no pseudo feature there."""
    return block.width == 1 and block.columns[0].kind == "numeric"


class _Rap:
    """The moving parts of one RAP run."""

    def __init__(self, protocol: RAP, session: Session) -> None:
        self.protocol, self.session, self.data = protocol, session, session.data
        self.wire, self.owner = session.wire, session.data.label_owner
        self.train = self.data.aligned("train")
        self.inputs = {
            party: session.protect("features_in", party, block.values) for party, block in self.data.blocks.items()
        }
        self.transforms = {
            party: FeatureTransform.draw(
                self.inputs[party][self.train],
                self.rng(party, "matrix"),
                pseudo=protocol.pseudo_feature and _single_number(block),
            )
            for party, block in self.data.blocks.items()
        }
        self.noise = {party: self.rng(party, "pseudo") for party in (*self.data.parties, self.owner)}
        codes = self.rng(self.owner, "codes")
        self.labels: LabelTransform = (
            CategoricalLabel.draw(len(self.data.classes), codes)
            if self.data.task == "classification"
            else NumericLabel.draw(self.data.labels[self.train], codes, condition=protocol.label_condition)
        )

    def rng(self, *path: str) -> np.random.Generator:
        """A party's private stream."""
        return stream(self.session.seed, "rap", *path)

    def transformed(self, party: str, rows: Array) -> Array:
        """What a client sends about these rows."""
        with self.wire.computing(party):
            values = self.transforms[party](self.inputs[party][rows], self.noise[party])
            return self.session.protect("features_out", party, values.astype(self.protocol.precision))

    def send_features(self, rows: Array) -> Array:
        """One message per client about these rows; returns what the server has, side by side."""
        received = []
        for party in self.transforms:
            sent = {"values": self.transformed(party, rows)}
            received.append(self.wire.send(party, "server", "features", sent, rows=rows)["values"])
        return np.hstack(received)

    def encoded_labels(self) -> Array:
        """What the label owner sends about the training rows."""
        with self.wire.computing(self.owner):
            encoded = self.labels.encode(self.data.labels[self.train], self.noise[self.owner])
        return encoded if encoded.dtype.kind == "i" else encoded.astype(self.protocol.precision)

    def run(self) -> Outcome:
        """Transform and transfer (steps 1-2), train (3), serve (4)."""
        server, order = self.send()
        losses = server.fit()
        utility = with_validation(self.serve(server, "test"), self.serve(server, "validation"), losses)
        return Outcome(self.states(server), self.released(server), utility, order)

    def released(self, server: Server) -> Model:
        """The model, and the server's part of its parameters."""
        return Model(RapPredictor(self, server), server.parameters())

    def send(self) -> tuple[Server, Array | None]:
        """Steps 1 and 2: the server with what it was sent, and after a shuffle the row at each position there."""
        order = None
        self.wire.next_round()
        codes = 2 * len(self.data.classes) if self.data.task == "classification" else 0
        if self.protocol.variant == "limited-server":
            server: Server = LimitedServer(self.protocol, self.session, self.send_features(self.train), self.train)
        elif self.session.protect.shuffle is not None:
            tables = {party: self.transformed(party, self.train) for party in self.transforms}
            tables[f"labels of {self.owner}"] = self.encoded_labels()
            senders = {name: name if name in self.transforms else self.owner for name in tables}
            received, order = self.session.protect.shuffle.exchange(
                self.wire, tables, senders, "server", self.session.seed
            )
            features = np.hstack([received[party] for party in self.transforms])
            server = Server(self.protocol, self.session, features, received[f"labels of {self.owner}"], codes)
            order = self.train[order]
        else:
            features = self.send_features(self.train)
            sent = {"values": self.encoded_labels()}
            targets = self.wire.send(self.owner, "server", "labels", sent, rows=self.train)["values"]
            server = Server(self.protocol, self.session, features, targets, codes)
        return server, order

    def serve(self, server: Server, part: str) -> Mapping[str, float]:
        """Clients transform, the server predicts, the label owner decodes."""
        rows = self.data.aligned(part)
        if len(rows) == 0:
            return {}
        self.wire.next_round()
        features = self.send_features(rows)
        with self.wire.computing("server"):
            outputs = server.predict(features)
        # 2.3: the server sends the mapped class, not its probabilities
        coded = self.data.task == "classification" and self.protocol.variant == "full"
        sent = outputs.argmax(axis=1) if coded else outputs.astype(np.float32)
        self.wire.next_round()
        got = self.wire.send("server", self.owner, "predictions", {"values": sent}, rows=rows)["values"]
        decoded = decode(self.labels, np.eye(2 * len(self.data.classes))[got] if coded else got, self.protocol.variant)
        return utility_of(decoded, self.data.labels[rows], self.data.task)

    def states(self, server: Server) -> dict[str, PartyState]:
        """What each party holds: the matrix is private to its client, the label map to the owner."""
        states = {"server": PartyState(parameters=server.parameters())}
        for party, block in self.data.blocks.items():
            states[party] = PartyState(block.values, block.present, None, {"matrix": self.transforms[party].matrix})
        own = self.labels.codes if isinstance(self.labels, CategoricalLabel) else self.labels.matrix
        before = states.get(self.owner, PartyState())
        private = {**before.parameters, "label_map": own}
        states[self.owner] = PartyState(before.features, before.present, np.array(self.data.labels), private)
        return states


def decode(labels: LabelTransform, outputs: Array, variant: str) -> Array:
    """The label owner's side of serving: class probabilities, or values in the label's unit."""
    values = np.asarray(outputs, dtype=np.float64)
    if isinstance(labels, CategoricalLabel):
        return values if variant == "limited-server" else labels.merge(values)
    return values[:, 0] if variant == "limited-server" else labels.decode(values)


class RapPredictor:
    """The released model: everybody's transformations, the server's networks, the owner's decoding. No data."""

    def __init__(self, rap: _Rap, server: Server) -> None:
        self.transforms, self.labels, self.server = dict(rap.transforms), rap.labels, server.released()
        self.variant, self.seed = rap.protocol.variant, rap.session.seed

    def __call__(self, features: Mapping[str, Array]) -> Array:
        parts = [
            transform(np.asarray(features[party], dtype=np.float64), stream(self.seed, "rap", party, "query"))
            for party, transform in self.transforms.items()
        ]
        return decode(self.labels, self.server.predict(np.hstack(parts)), self.variant)
