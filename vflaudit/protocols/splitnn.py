"""Vertical SplitNN (Vepakomma et al. 2018) as RAP section 1 describes it: client bottoms, a top at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Model
from vflaudit.errors import unknown
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import (
    Predictor,
    SplitNetwork,
    Top,
    bottom,
    outputs_to_predictions,
    parameters_of,
    seeded,
    to_tensor,
    utility_of,
)
from vflaudit.protocols.shadows.stacked import stackable
from vflaudit.protocols.training import Labels, TrainedProtocol, party_states, with_validation


class SplitNN(TrainedProtocol):
    """Vertical SplitNN: clients send activations of every mini-batch, the server returns their gradients."""

    name: ClassVar[str] = "splitnn"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out", "gradients_out"})

    aggregation: Literal["concat", "sum"] = Field(
        "concat", description="how the server joins activations (RAP: concat)"
    )
    activation_at: Literal["client", "server"] = Field(
        "client", description="who applies the ReLU; 'server' makes the messages linear in the features"
    )
    labels_at: str | None = Field(
        None, description="who holds the labels: server, a client, or none for the dataset's own label owner"
    )
    malicious: str | None = Field(
        None, description="a client that stretches its own updates, so that the model leans on it (Fu et al. 2022)"
    )

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        prepared = super().prepare(data)
        if self.malicious is not None and self.malicious not in prepared.parties:
            raise unknown("client to be malicious", self.malicious, prepared.parties)
        if self.labels_at is None:
            return prepared
        allowed = ("server", "label_owner", *prepared.parties)
        if self.labels_at not in allowed:
            raise unknown("party to hold the labels", self.labels_at, allowed)
        return prepared.rename({}, label_owner=self.labels_at)

    def execute(self, session: Session) -> Outcome:
        return _Training(self, session).run()

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All at once, as whole networks: split or not, the gradients are the same. Defenses stand in the way."""
        runs = [_Training(self, session) for session in sessions]
        networks = [SplitNetwork(run.bottoms, run.top) for run in runs]
        if sessions[0].protect.defenses or self.malicious or not stackable(networks[0]):
            return self.train_one_by_one(sessions)
        widths = [block.width for block in sessions[0].data.blocks.values()]
        tables = [(torch.cat(list(run.features.values()), dim=1), run.labels.targets) for run in runs]
        rows, seeds = [run.data.aligned("train") for run in runs], [session.seed for session in sessions]
        self.fit_many(networks, tables, rows, seeds, lambda net, inputs: net(list(inputs.split(widths, dim=-1))))
        return [run.released() for run in runs]


class _Training:
    """The moving parts of one SplitNN run. Each tensor lives at the party that computed it."""

    def __init__(self, protocol: SplitNN, session: Session) -> None:
        self.protocol, self.session, self.data = protocol, session, session.data
        self.wire, self.owner = session.wire, session.data.label_owner
        linear = protocol.model == "lr"
        summed = linear or protocol.aggregation == "sum"
        at_client = not (linear or summed or protocol.activation_at == "server")
        outputs = protocol.outputs(self.data)
        # RAP's hidden layer has 128 units in all: side by side the clients share them, summed each has all of them
        width = outputs if linear else protocol.hidden if summed else max(1, protocol.hidden // len(self.data.blocks))
        self.bottoms = {
            party: seeded(partial(bottom, protocol.model, block, width, activate=at_client), session.seed, party)
            for party, block in self.data.blocks.items()
        }
        joined = width if summed else width * len(self.bottoms)
        aggregation = "sum" if summed else "concat"
        top = partial(Top, joined, outputs, aggregation=aggregation, activate=not (at_client or linear), linear=linear)
        self.top = seeded(top, session.seed, "server")
        self.features = {party: to_tensor(block.values) for party, block in self.data.blocks.items()}
        self.labels = Labels(self.data)
        parts: dict[str, nn.Module] = {**self.bottoms, "server": self.top}
        self.optimisers = {party: protocol.adam(module) for party, module in parts.items()}
        self.last: list[torch.Tensor] = []  # the malicious client's gradients of the step before

    def run(self) -> Outcome:
        """Train, then predict validation and test rows together, everything through the wire."""
        losses = self.protocol.epochs(self.step, self.data.aligned("train"), self.session.seed)
        utility = with_validation(self.serve("test"), self.serve("validation"), losses)
        states = party_states(self.data, {**self.bottoms, "server": self.top})
        return Outcome(states, self.released(), utility)

    def released(self) -> Model:
        """Bottoms and top as one model."""
        network = SplitNetwork(self.bottoms, self.top)
        predictor = Predictor(network, self.data.parties, self.data.task, self.labels.centre, self.labels.scale)
        return Model(predictor, parameters_of(network))

    def step(self, rows: Array, epoch: int) -> float:
        """One mini-batch: activations up, outputs to the label owner, gradients back down."""
        wire, protect = self.wire, self.session.protect
        wire.next_round()
        sent: dict[str, torch.Tensor] = {}
        received: list[torch.Tensor] = []
        for party, module in self.bottoms.items():
            with wire.computing(party):
                sent[party] = module(self.features[party][rows])
                out = protect("features_out", party, sent[party].detach().numpy())
            got = wire.send(party, "server", "activation", {"values": out}, rows=rows, epoch=epoch)
            received.append(torch.from_numpy(got["values"].copy()).requires_grad_())
        with wire.computing("server"):
            outputs = self.top(received)
        loss, gradient = self.loss_gradient(outputs, rows, epoch)
        with wire.computing("server"):
            outputs.backward(gradient)
            self.update("server")
        wire.next_round()
        for (party, values), joined in zip(sent.items(), received, strict=True):
            assert joined.grad is not None
            back = protect("gradients_out", "server", joined.grad.numpy())
            got = wire.send("server", party, "gradient", {"values": back}, rows=rows, epoch=epoch)
            with wire.computing(party):
                values.backward(torch.from_numpy(got["values"].copy()))
                self.update(party)
        return loss

    def loss_gradient(self, outputs: torch.Tensor, rows: Array, epoch: int) -> tuple[float, torch.Tensor]:
        """The loss and its gradient at the outputs, computed where the labels are."""
        values = outputs.detach()
        if self.owner != "server":
            self.wire.next_round()
            got = self.wire.send("server", self.owner, "output", {"values": values.numpy()}, rows=rows, epoch=epoch)
            values = torch.from_numpy(got["values"].copy())
        with self.wire.computing(self.owner):
            values.requires_grad_()
            loss = self.labels.loss(values, rows)
            loss.backward()
        assert values.grad is not None
        gradient = values.grad
        if self.owner != "server":
            self.wire.next_round()
            back = {"values": gradient.numpy()}
            got = self.wire.send(self.owner, "server", "output_gradient", back, rows=rows, epoch=epoch)
            gradient = torch.from_numpy(got["values"].copy())
        return float(loss.detach()), gradient

    def update(self, party: str) -> None:
        """One Adam step at one party; a malicious client stretches it."""
        optimiser = self.optimisers[party]
        if optimiser is not None:
            if party == self.protocol.malicious:
                self.last = stretched_step(optimiser, self.last)
            else:
                optimiser.step()
            optimiser.zero_grad()

    @torch.no_grad()
    def serve(self, part: str) -> Mapping[str, float]:
        """Collaborative prediction: activations to the server, outputs to the label owner, who scores them."""
        rows = self.data.aligned(part)
        if len(rows) == 0:
            return {}
        self.wire.next_round()
        received = []
        for party, module in self.bottoms.items():
            with self.wire.computing(party):
                out = self.session.protect("features_out", party, module(self.features[party][rows]).numpy())
            got = self.wire.send(party, "server", "activation", {"values": out}, rows=rows)
            received.append(torch.from_numpy(got["values"].copy()))
        with self.wire.computing("server"):
            outputs = self.top(received)
        if self.owner != "server":
            self.wire.next_round()
            sent = {"values": outputs.numpy()}
            outputs = torch.from_numpy(self.wire.send("server", self.owner, "output", sent, rows=rows)["values"].copy())
        predictions = outputs_to_predictions(outputs, self.data.task, self.labels.centre, self.labels.scale)
        return utility_of(predictions, self.data.labels[rows], self.data.task)


@torch.no_grad()
def stretched_step(optimiser: torch.optim.Optimizer, last: list[torch.Tensor]) -> list[torch.Tensor]:
    """The malicious local optimiser (Fu et al. 2022, algorithm 1), and the gradients for the next step.

    A parameter whose gradient keeps its sign moves 1 + g_t / g_(t-1) times as far: at least once, at most five times.
    The paper scales the gradients; Adam would undo that, so the step is scaled here.
    """
    parameters = [value for group in optimiser.param_groups for value in group["params"]]
    before = [value.clone() for value in parameters]
    gradients = [value.grad.clone() for value in parameters]
    optimiser.step()
    for value, old, gradient, previous in zip(parameters, before, gradients, last, strict=False):
        ratio = (1 + gradient / torch.where(previous == 0, torch.inf, previous)).clamp(1, 5)
        value.copy_(old + ratio * (value - old))
    return gradients
