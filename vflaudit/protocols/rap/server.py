"""RAP's server trains on what it was sent, alone (algorithm 1) or with the label owner's gradients (section 3)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.protocols.base import Session
from vflaudit.protocols.networks import parameters_of, seeded, to_tensor
from vflaudit.protocols.training import Labels, TrainedProtocol


def build(protocol: TrainedProtocol, width: int, outputs: int) -> nn.Module:
    """One hidden layer of 128, or logistic/linear regression (4.1)."""
    if protocol.model == "lr":
        return nn.Linear(width, outputs)
    return nn.Sequential(nn.Linear(width, protocol.hidden), nn.ReLU(), nn.Linear(protocol.hidden, outputs))


class Scaling:
    """The server may bring the columns it received to unit scale before training; they are its own by then."""

    def __init__(self, values: Array, wanted: bool) -> None:
        deviation = values.std(axis=0)
        self.mean = values.mean(axis=0) if wanted else np.zeros(values.shape[1])
        self.deviation = np.where(deviation > 1e-12, deviation, 1.0) if wanted else np.ones(values.shape[1])

    def __call__(self, values: Array) -> Array:
        return (values - self.mean) / self.deviation

    def back(self, values: Array) -> Array:
        """Undo it."""
        return values * self.deviation + self.mean


class Server:
    """Trains on transformed features and transformed labels without talking to anybody."""

    def __init__(
        self, protocol: TrainedProtocol, session: Session, features: Array, targets: Array, classes: int
    ) -> None:
        self.protocol, self.session, self.classes = protocol, session, classes
        self.scale = Scaling(features, not protocol.standardise)
        self.inputs = to_tensor(self.scale(features))
        if classes:
            self.networks = [self._network(classes, "server")]
            self.targets = torch.from_numpy(np.array(targets))
        else:
            # two identically configured models, one per column of the transformed label (2.3); both columns are
            # brought to unit scale by the server, which sees them
            self.networks = [self._network(1, "server", str(column)) for column in range(2)]
            self.label_scale = Scaling(np.asarray(targets, dtype=np.float64), True)
            self.targets = to_tensor(self.label_scale(targets))

    def _network(self, outputs: int, *path: str) -> nn.Module:
        return seeded(lambda: build(self.protocol, self.inputs.shape[1], outputs), self.session.seed, *path)

    def fit(self) -> list[float]:
        """Train by RAP 4.1; returns the loss of every epoch."""
        optimisers = [self.protocol.adam(network) for network in self.networks]

        def step(rows: Array, epoch: int) -> float:
            with self.session.wire.computing("server"):
                loss = self.loss(torch.from_numpy(np.array(rows)))
                for optimiser in optimisers:
                    assert optimiser is not None
                    optimiser.zero_grad()
                loss.backward()
                for optimiser in optimisers:
                    assert optimiser is not None
                    optimiser.step()
            return float(loss.detach())

        return self.protocol.epochs(step, np.arange(len(self.inputs)), self.session.seed)

    def lesson(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of all training rows."""
        return self.inputs, self.targets

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        """Cross-entropy over 2C codes, or the squared errors of both models."""
        if self.classes:
            return nn.functional.cross_entropy(self.networks[0](self.inputs[rows]), self.targets[rows])
        outputs = torch.cat([network(self.inputs[rows]) for network in self.networks], dim=1)
        return nn.functional.mse_loss(outputs, self.targets[rows])

    @torch.no_grad()
    def predict(self, features: Array) -> Array:
        """Code probabilities, or both columns of the transformed label."""
        inputs = to_tensor(self.scale(features))
        if self.classes:
            return torch.softmax(self.networks[0](inputs).double(), dim=1).numpy()
        return self.label_scale.back(torch.cat([network(inputs) for network in self.networks], dim=1).double().numpy())

    def parameters(self) -> dict[str, Array]:
        """Parameters of all networks."""
        return {
            f"{i}.{name}": value for i, net in enumerate(self.networks) for name, value in parameters_of(net).items()
        }

    def released(self) -> Server:
        """A copy that holds the networks and scales, not the data it was trained on."""
        twin = copy.copy(self)
        twin.networks = [copy.deepcopy(network).eval() for network in self.networks]
        twin.inputs, twin.targets = torch.zeros(0), torch.zeros(0)
        del twin.session, twin.protocol
        return twin


class LimitedServer(Server):
    """The server of section 3, Limitations: the label owner keeps the labels and returns gradients."""

    def __init__(self, protocol: TrainedProtocol, session: Session, features: Array, rows: Array) -> None:
        self.protocol, self.session, self.rows = protocol, session, rows
        self.classes = len(session.data.classes) if session.data.task == "classification" else 0
        self.scale = Scaling(features, not protocol.standardise)
        self.inputs = to_tensor(self.scale(features))
        self.networks = [self._network(self.classes or 1, "server")]
        self.labels = Labels(session.data)
        self.targets = torch.zeros(0)

    def lesson(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the gradients amount to: training on the label owner's own targets."""
        return self.inputs, self.labels.targets[torch.from_numpy(np.array(self.rows))]

    def fit(self) -> list[float]:
        optimiser = self.protocol.adam(self.networks[0])
        assert optimiser is not None
        wire, owner = self.session.wire, self.session.data.label_owner

        def step(batch: Array, epoch: int) -> float:
            handles = self.rows[batch]
            with wire.computing("server"):
                outputs = self.networks[0](self.inputs[torch.from_numpy(np.array(batch))])
            wire.next_round()
            sent = {"values": outputs.detach().numpy()}
            got = wire.send("server", owner, "output", sent, rows=handles, epoch=epoch)
            with wire.computing(owner):
                values = torch.from_numpy(got["values"].copy()).requires_grad_()
                loss = self.labels.loss(values, handles)
                loss.backward()
            assert values.grad is not None
            wire.next_round()
            back = {"values": values.grad.numpy()}
            got = wire.send(owner, "server", "output_gradient", back, rows=handles, epoch=epoch)
            with wire.computing("server"):
                optimiser.zero_grad()
                outputs.backward(torch.from_numpy(got["values"].copy()))
                optimiser.step()
            return float(loss.detach())

        return self.protocol.epochs(step, np.arange(len(self.inputs)), self.session.seed)

    @torch.no_grad()
    def predict(self, features: Array) -> Array:
        """Class probabilities, or values in the label's unit."""
        outputs = self.networks[0](to_tensor(self.scale(features))).double()
        if self.classes:
            return torch.softmax(outputs, dim=1).numpy()
        return outputs.numpy() * self.labels.scale + self.labels.centre

    def released(self) -> Server:
        twin = super().released()
        labels = copy.copy(self.labels)
        labels.targets = torch.zeros(0)
        twin.labels = labels  # type: ignore[attr-defined]
        twin.rows = np.zeros(0)  # type: ignore[attr-defined]
        return twin


def fit_servers(protocol: TrainedProtocol, servers: Sequence[Server]) -> None:
    """`fit` of every server, all at once: each has tables and networks of its own."""

    def forward(networks: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([network(inputs) for network in networks.children()], dim=-1)

    protocol.fit_many(
        [nn.ModuleList(server.networks) for server in servers],
        [server.lesson() for server in servers],
        [np.arange(len(server.inputs)) for server in servers],
        [server.session.seed for server in servers],
        forward,
    )
