"""vFedSec (anonymous authors, 'Efficient secure aggregation for vertical federated learning via Secure Layer')."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.preprocess import encode
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model, PartyState
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.networks import Predictor, outputs_to_predictions, parameters_of, seeded, to_tensor, utility_of
from vflaudit.protocols.shadows.stacked import pooled, row_loss, stackable, together
from vflaudit.protocols.training import Labels, party_states
from vflaudit.protocols.vfedsec.channel import Batch, Channel, Clear, Masked, Part
from vflaudit.protocols.vfedsec.clusters import ACTIVE, clusters_of, form_clusters
from vflaudit.protocols.vfedsec.defects import FloatMasked, ReusedStream
from vflaudit.protocols.vfedsec.modules import (
    HIDDEN,
    GlobalModule,
    Slice,
    WholeNetwork,
    build_slice,
    flat,
    flat_gradient,
    load_flat,
)


class VFedSec(Protocol):
    """vFedSec: clients send masked products of the Secure Layer, whose sum is all that the server gets of them.

    The released model takes the columns of one party per cluster. Where the paper leaves something open, a parameter
    says so and its default is the reading closest to the text.
    """

    name: ClassVar[str] = "vfedsec"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out", "gradients_out"})

    model: Literal["linear", "mlp", "cnn"] = Field(
        "linear", description="A.1: one linear layer for tabular data; mlp and cnn for images"
    )
    hidden: int | None = Field(None, ge=1, description="outputs of the Secure Layer; none: 64, 128 or 600 (A.1)")
    learning_rate: float = Field(0.01, gt=0, description="A.1")
    batch_size: int = Field(256, ge=1, description="A.1")
    epochs: int = Field(10, ge=1, description="passes over the training rows (the paper only times five rounds)")
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="the paper names none")
    batches: Literal["reshuffled", "fixed"] = Field(
        "reshuffled", description="whether every epoch has new batches; the paper says only who selects"
    )
    clients_per_cluster: int = Field(2, ge=1, description="passive parties that share a feature space (A.1: two)")
    rekey_every: int = Field(5, ge=1, description="K, rounds between two setup phases (5.1, A.1)")
    security: Literal["masked", "quantised", "clear"] = Field(
        "masked", description="quantised: the same without masks; clear: unsecured split learning, ids in the clear"
    )
    modulus_bits: Literal[32, 64] = Field(32, description="R is two to this power (A.2 leaves R open)")
    fraction_bits: int = Field(16, ge=0, le=48, description="fixed-point digits behind the binary point")
    lone_weights: Literal["client", "server"] = Field(
        "client",
        description="who keeps W of a client alone in its cluster, as the active party is: it updates locally (4.2), "
        "or it returns W so that the server can broadcast it in each forward pass (3)",
    )
    average: Literal["batch", "clients"] = Field(
        "batch", description="the 1/n of 4.2: over the batch (the loss is a mean already), or also over the clients"
    )
    randomness: Literal["os", "seed"] = Field("os", description="where keys come from; seed is for tests only")
    defect: Literal["reused-stream", "float-masks"] | None = Field(
        None, description="for controls only: masks that are broken on purpose (vfedsec/defects.py)"
    )
    mask_deviation: float = Field(1.0, gt=0, description="for defect=float-masks: the deviation of each pair's mask")

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        if ACTIVE in data.blocks and data.encoded:
            return data
        return form_clusters(encode(data, standardise=self.standardise), self.clients_per_cluster)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return ("server", *data.parties)

    def width(self) -> int:
        """Outputs of the Secure Layer."""
        return self.hidden or HIDDEN[self.model]

    def channel(self, session: Session) -> Channel:
        """How batches and sums travel."""
        if self.security != "masked" and self.defect is not None:
            raise InputError(f"defect={self.defect!r} is about masks: it needs security='masked'")
        kinds: dict[str | None, type[Channel]] = {
            None: Masked,
            "reused-stream": ReusedStream,
            "float-masks": FloatMasked,
        }
        kind = Clear if self.security == "clear" else kinds[self.defect]
        return kind(self, session, clusters_of(session.data))

    def execute(self, session: Session) -> Outcome:
        return Training(self, session, self.channel(session)).run()

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All at once, unsecured: masks cancel exactly, so all that is left out is the rounding to fixed point."""
        runs = [Training(self, session, Clear(self, session, clusters_of(session.data))) for session in sessions]
        networks = [run.network() for run in runs]
        changed = self.defect is not None or self.average == "clients" or sessions[0].protect.defenses
        if changed or not stackable(networks[0]):
            return self.train_one_by_one(sessions)
        columns = [[to_tensor(run.data.cluster_values(party)) for party in run.representatives] for run in runs]
        widths = [part.shape[1] for part in columns[0]]
        tables = [(torch.cat(parts, dim=1), run.labels.targets) for parts, run in zip(columns, runs, strict=True)]
        (inputs, targets), starts = pooled(tables)

        def losses(network: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
            return row_loss(network(list(inputs[rows].split(widths, dim=-1))), targets[rows])

        schedules = [run.schedule(start) for run, start in zip(runs, starts, strict=True)]
        together(networks, runs[0].optimiser, schedules, losses)
        return [run.released() for run in runs]


class Training:
    """The moving parts of one run. Each module lives at the party that computes with it."""

    def __init__(self, protocol: VFedSec, session: Session, channel: Channel) -> None:
        self.protocol, self.session, self.channel = protocol, session, channel
        self.data, self.wire = session.data, session.wire
        self.clusters = clusters_of(self.data)
        self.labels = Labels(self.data)
        self.features = {party: to_tensor(block.values) for party, block in self.data.blocks.items()}
        outputs = len(self.data.classes) if self.data.task == "classification" else 1
        top = seeded(partial(GlobalModule, protocol.model, protocol.width(), outputs), session.seed, "server")
        assert isinstance(top, GlobalModule)
        self.top = top
        self.slices: dict[tuple[str, ...], Slice] = {}  # the server's: it initialises all of them (4.2)
        self.own: dict[str, Slice] = {}  # what each client computes with
        for cluster in self.clusters:
            block, active = self.data.blocks[cluster[0]], cluster == (ACTIVE,)
            build = partial(build_slice, protocol.model, block, protocol.width(), active=active)
            for party in ("server", *cluster):
                made = seeded(build, session.seed, cluster[0])
                assert isinstance(made, Slice)
                if party == "server":
                    self.slices[cluster] = made
                else:
                    self.own[party] = made
        self.optimisers = {"server": self.optimiser(self.top.parameters())}
        for cluster, part in self.slices.items():
            trained = self.own[cluster[0]] if len(cluster) == 1 else part
            self.optimisers[cluster[0]] = self.optimiser(trained.parameters())
        self.number = 0
        self.told: list[Array] = []
        self.seen: dict[str, list[Array]] = {party: [] for party in self.own}

    def optimiser(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Plain SGD or Adam with the paper's learning rate."""
        kind = torch.optim.SGD if self.protocol.optimiser == "sgd" else torch.optim.Adam
        return kind(parameters, lr=self.protocol.learning_rate)

    def run(self) -> Outcome:
        """Train, then test, everything through the wire."""
        for epoch, rows in self.batches():
            self.step(rows, epoch)
        utility = dict(self.serve("test"))
        utility |= {f"validation_{name}": value for name, value in self.serve("validation").items()}
        return Outcome(self.states(), self.released(), utility, order=self.places(self.told))

    @property
    def representatives(self) -> tuple[str, ...]:
        """One party of each cluster: they compute with the same slice."""
        return tuple(cluster[0] for cluster in self.clusters)

    def network(self) -> WholeNetwork:
        """What the parties compute together."""
        return WholeNetwork([self.own[party] for party in self.representatives], self.top)

    def released(self) -> Model:
        """The model, over the columns of one party per cluster."""
        network = self.network()
        predictor = Predictor(network, self.representatives, self.data.task, self.labels.centre, self.labels.scale)
        return Model(predictor, parameters_of(network))

    def schedule(self, start: int) -> Generator[tuple[Array, int], float, None]:
        """The batches of `batches`, in a table where the rows begin at `start`; it is sent each batch's loss."""
        for epoch, rows in self.batches():
            check_loss((yield rows + start, epoch), epoch)

    def batches(self) -> Iterator[tuple[int, Array]]:
        """The active party's choice: a new random order each epoch, or one order for all."""
        rows, size = self.data.aligned("train"), self.protocol.batch_size
        if len(rows) == 0:
            raise InputError(f"dataset {self.data.name!r}: no training row is held by every cluster")
        rng = stream(self.session.seed, "batches")
        order = rng.permutation(rows)
        for epoch in range(self.protocol.epochs):
            if epoch and self.protocol.batches == "reshuffled":
                order = rng.permutation(rows)
            for start in range(0, len(order), size):
                yield epoch, order[start : start + size]

    def open(self, rows: Array, epoch: int | None) -> tuple[Batch, dict[str, Array]]:
        """Mini-batch selection (4.2): a number for the batch, and its rows at each client (-1: not its own)."""
        batch = Batch(self.number, rows, epoch)
        held = {ACTIVE: rows, **self.channel.open(batch)}
        self.number += 1
        self.told.append(rows)
        for party, ids in held.items():
            self.seen[party].append(ids)
        return batch, held

    def broadcast(self, batch: Batch) -> None:
        """The server sends W_i (and the local module) to each client of cluster i (section 3)."""
        self.wire.next_round()
        for cluster, part in self.slices.items():
            kept = len(cluster) == 1 and self.protocol.lone_weights == "client"
            if kept and batch.number > 0:
                continue  # it has its own by now
            for party in cluster:
                got = self.channel.send("server", party, "weights", {"values": flat(part)}, batch)
                load_flat(self.own[party], got["values"])

    def forward(self, batch: Batch, held: Mapping[str, Array]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Z at the server, and every client's products of its own rows."""
        self.broadcast(batch)
        self.wire.next_round()
        products: dict[str, torch.Tensor] = {}
        parts: dict[str, Part] = {}
        for party, ids in held.items():
            mine = ids >= 0
            with self.wire.computing(party):
                module = self.own[party]
                embedding = module.local(self.features[party][ids[mine]]) if mine.any() else None
                shape = (len(ids), module.secure.in_features)
                filled = np.zeros(shape, dtype=np.float32)
                product = np.zeros((len(ids), module.secure.out_features))
                if embedding is not None:
                    products[party] = module.secure(embedding)
                    filled[mine] = embedding.detach().numpy()
                    product[mine] = products[party].detach().numpy()
                product = self.session.protect("features_out", party, product)
            bias = module.secure.bias
            parts[party] = Part(
                product,
                filled,
                module.secure.weight.detach().numpy(),
                None if bias is None else bias.detach().numpy(),
            )
        joined = torch.from_numpy(self.channel.join(parts, batch).astype(np.float32))
        return joined, products

    def step(self, rows: Array, epoch: int) -> None:
        """One mini-batch: ids, weights, products and labels up, the Secure Layer's gradient down, gradients up."""
        batch, held = self.open(rows, epoch)
        joined, products = self.forward(batch, held)
        told = self.channel.about_rows(ACTIVE, "server", "labels", self.labels.targets[rows].numpy(), batch)
        with self.wire.computing("server"):
            joined.requires_grad_()
            outputs = self.top(joined)
            loss = self.labels.loss_at(outputs, torch.from_numpy(told))
            loss.backward()
            self.update("server", self.top)
        check_loss(float(loss.detach()), epoch)
        assert joined.grad is not None
        self.wire.next_round()
        for party, ids in held.items():
            back = self.session.protect("gradients_out", "server", joined.grad.numpy())
            got = self.channel.about_rows("server", party, "gradient", back, batch)
            with self.wire.computing(party):
                self.own[party].zero_grad()
                if party in products:
                    products[party].backward(torch.from_numpy(got[ids >= 0]))
        self.wire.next_round()
        for cluster in self.clusters:
            self.update_cluster(cluster, batch)

    def update_cluster(self, cluster: tuple[str, ...], batch: Batch) -> None:
        """4.2: alone in its cluster a client updates locally, otherwise the server updates from the masked sum."""
        first = cluster[0]
        if len(cluster) == 1:
            with self.wire.computing(first):
                self.update(first, self.own[first])
            if self.protocol.lone_weights == "server":
                got = self.channel.send(first, "server", "weights", {"values": flat(self.own[first])}, batch)
                load_flat(self.slices[cluster], got["values"])
            return
        gradients = {party: flat_gradient(self.own[party]).astype(np.float64) for party in cluster}
        total = self.channel.add(cluster, gradients, batch)
        with self.wire.computing("server"):
            share = len(cluster) if self.protocol.average == "clients" else 1
            load_flat(self.slices[cluster], total / share, gradient=True)
            self.update(first, self.slices[cluster])

    def update(self, who: str, module: torch.nn.Module) -> None:
        """One step of an optimiser."""
        self.optimisers[who].step()
        module.zero_grad()

    @torch.no_grad()
    def serve(self, part: str) -> Mapping[str, float]:
        """4.3: the batch is told as in training, and the prediction goes to the active party, who scores it."""
        rows, size = self.data.aligned(part), self.protocol.batch_size
        if len(rows) == 0:
            return {}
        for module in (self.top, *self.own.values()):
            module.eval()
        answers = []
        for start in range(0, len(rows), size):
            batch, held = self.open(rows[start : start + size], None)
            joined, _ = self.forward(batch, held)
            with self.wire.computing("server"):
                outputs = self.top(joined)
            self.wire.next_round()
            answers.append(self.channel.about_rows("server", ACTIVE, "prediction", outputs.numpy(), batch))
        for module in (self.top, *self.own.values()):
            module.train()
        outputs = torch.from_numpy(np.concatenate(answers))
        predictions = outputs_to_predictions(outputs, self.data.task, self.labels.centre, self.labels.scale)
        return utility_of(predictions, self.data.labels[rows], self.data.task)

    def places(self, batches: list[Array]) -> Array:
        """Handles by place, `number * batch_size + position`; -1 where there is none."""
        size = self.protocol.batch_size
        places = np.full(len(batches) * size, -1)
        for number, rows in enumerate(batches):
            places[number * size : number * size + len(rows)] = rows
        return places

    def states(self) -> dict[str, PartyState]:
        """Columns, labels and parameters as usual, and what each client knows of keys and batches."""
        states = party_states(self.data, {"server": self.top, **self.own})
        for party in self.own:
            secrets = {"schedule": self.places(self.seen[party]), **self.channel.secrets(party)}
            states[party] = replace(states[party], secrets=secrets)
        return states


def check_loss(loss: float, epoch: int) -> None:
    """Stop where the numbers have run away."""
    if not math.isfinite(loss):
        raise InputError(f"training diverged in epoch {epoch + 1}: use a learning_rate below its present value")
