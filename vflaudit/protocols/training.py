"""Training as in RAP 4.1, shared by SplitNN, Centralized and Local: Adam, stop when the loss stands still."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from defenses.base import Defense
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import PartyState, Run
from vflaudit.core.transcript import Recording
from vflaudit.errors import InputError
from vflaudit.protocols.base import Protocol, Session
from vflaudit.protocols.networks import (
    JoinedNetwork,
    Predictor,
    SplitNetwork,
    Top,
    bottom,
    parameters_of,
    seeded,
    to_tensor,
    utility_of,
)
from vflaudit.protocols.shadows.stacked import along, fused_adam, pooled, row_loss, stackable, together

GRID = (3.0, 2.0, 1.0, 0.1, 0.01, 0.001)  # RAP 4.1


class TrainedProtocol(Protocol):
    """The training parameters of RAP 4.1."""

    model: Literal["mlp", "lr", "cnn"] = Field(
        "mlp", description="one hidden layer, logistic/linear regression, or small CNN"
    )
    hidden: int = Field(128, ge=1, description="width of the hidden layer over all parties (RAP 4.1)")
    learning_rate: float | Literal["grid"] = Field(
        0.01, description="Adam's step size, or 'grid': the best of RAP's grid by validation score"
    )
    batch_size: int | None = Field(None, ge=1, description="none: 1% of the training rows (RAP 4.1), at least 32")
    max_epochs: int = Field(100, ge=1, description="stop here at the latest")
    tolerance: float = Field(
        1e-4, ge=0, description="relative change of the loss that counts as standing still (RAP 4.1)"
    )
    patience: int = Field(5, ge=1, description="epochs in a row with a loss that stands still (RAP 4.1)")

    def run(
        self,
        data: VerticalDataset,
        *,
        seed: int = 0,
        defenses: Sequence[Defense] = (),
        recording: Recording | None = None,
    ) -> Run:
        """Train and serve once; with learning_rate='grid', after choosing it by the validation rows."""
        if not len(data.aligned("train")):
            raise InputError(f"dataset {data.name!r}: no training row is held by every party")
        if self.learning_rate != "grid":
            if not self.learning_rate > 0:
                raise InputError(f"learning_rate={self.learning_rate}: expected a number above 0")
            return super().run(data, seed=seed, defenses=defenses, recording=recording)
        if not len(data.aligned("validation")):
            raise InputError(
                f"dataset {data.name!r}: learning_rate='grid' needs validation rows that every party holds"
            )
        best, best_score = None, -math.inf
        for rate in GRID:
            candidate = self.model_copy(update={"learning_rate": rate})
            try:
                found = candidate.run(data, seed=seed, defenses=defenses, recording=Recording.none()).utility
            except InputError:  # it diverged: large steps of the grid do
                continue
            score = found["validation_accuracy"] if data.task == "classification" else -found["validation_rmse"]
            if score > best_score:
                best, best_score = candidate, score
        if best is None:
            raise InputError(f"training diverged with every learning rate of the grid {GRID}")
        return best.run(data, seed=seed, defenses=defenses, recording=recording)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        """The server, the clients, and the label owner where it is neither."""
        names = ("server", *data.parties)
        return names if data.label_owner in names else (*names, data.label_owner)

    def batch(self, rows: int) -> int:
        """Rows per mini-batch."""
        return self.batch_size or max(32, round(0.01 * rows))

    def epochs(self, step: Callable[[Array, int], float], rows: Array, seed: int) -> list[float]:
        """Run `step(batch rows, epoch)` until the mean loss stands still; returns the loss of every epoch."""
        return along(self.schedule(rows, seed), step)

    def schedule(self, rows: Array, seed: int) -> Generator[tuple[Array, int], float, list[float]]:
        """Batches and their epochs until the mean loss stands still; it is sent each batch's loss."""
        rng = stream(seed, "batches")
        size, still = self.batch(len(rows)), 0
        losses: list[float] = []
        for epoch in range(self.max_epochs):
            order, total = rng.permutation(rows), 0.0
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                total += (yield batch, epoch) * len(batch)
            loss = total / len(order)
            if not math.isfinite(loss):
                raise InputError(
                    f"training diverged in epoch {epoch + 1}: use a learning_rate below {self.learning_rate}"
                )
            change = abs(losses[-1] - loss) / max(abs(losses[-1]), 1e-12) if losses else math.inf
            still = still + 1 if change < self.tolerance else 0
            losses.append(loss)
            if still >= self.patience:
                break
        return losses

    def adam(self, module: nn.Module) -> torch.optim.Optimizer | None:
        """An optimiser for this module; none for a module without parameters."""
        assert self.learning_rate != "grid"
        parameters = list(module.parameters())
        return torch.optim.Adam(parameters, lr=float(self.learning_rate)) if parameters else None

    def fit_many(
        self,
        networks: Sequence[nn.Module],
        tables: Sequence[Sequence[torch.Tensor]],
        rows: Sequence[Array],
        seeds: Sequence[int],
        forward: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    ) -> list[list[float]]:
        """Train networks of one architecture at once, each on rows of its own (inputs, targets), as `epochs` would."""
        assert self.learning_rate != "grid"
        (inputs, targets), starts = pooled(tables)
        schedules = [self.schedule(mine + start, seed) for mine, start, seed in zip(rows, starts, seeds, strict=True)]
        return together(
            networks,
            fused_adam(float(self.learning_rate)),
            schedules,
            lambda network, batch: row_loss(forward(network, inputs[batch]), targets[batch]),
        )

    def outputs(self, data: VerticalDataset) -> int:
        """Width of the output layer."""
        return len(data.classes) if data.task == "classification" else 1


class Labels:
    """The label holder's side: targets, loss, and the way back from outputs to predictions."""

    def __init__(self, data: VerticalDataset) -> None:
        self.task = data.task
        train = data.labels[data.aligned("train")]
        self.centre, self.scale = (0.0, 1.0)
        if self.task == "regression":  # fitted on training rows only
            self.centre, self.scale = float(train.mean()), float(train.std()) or 1.0
            self.targets = to_tensor((data.labels - self.centre) / self.scale)
        else:
            self.targets = torch.from_numpy(np.array(data.labels))

    def loss(self, outputs: torch.Tensor, rows: Array) -> torch.Tensor:
        """The loss of these rows."""
        return self.loss_at(outputs, self.targets[torch.from_numpy(np.array(rows))])

    def loss_at(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, or squared error of the standardised label."""
        if self.task == "classification":
            return nn.functional.cross_entropy(outputs, targets)
        return nn.functional.mse_loss(outputs[:, 0], targets)


def with_validation(
    test: Mapping[str, float], validation: Mapping[str, float], losses: list[float]
) -> dict[str, float]:
    """One flat record of how useful the model is."""
    return {**test, **{f"validation_{name}": value for name, value in validation.items()}, "epochs": len(losses)}


def party_states(data: VerticalDataset, modules: Mapping[str, nn.Module]) -> dict[str, PartyState]:
    """Own columns, own labels, own parameters."""
    states: dict[str, PartyState] = {}
    for party in dict.fromkeys((*modules, *data.blocks, data.label_owner)):
        block = data.blocks.get(party)
        states[party] = PartyState(
            features=None if block is None else block.values,
            present=None if block is None else block.present,
            labels=np.array(data.labels) if party == data.label_owner else None,
            parameters=parameters_of(modules[party]) if party in modules else {},
        )
    return states


def collect_tables(session: Session, change: Callable[[str, Array], Array] = lambda party, values: values) -> Session:
    """Everybody sends its (changed) columns and labels to the server, once; returns the session as it is there."""
    data, wire = session.data, session.wire
    blocks = {}
    wire.next_round()
    for party, block in data.blocks.items():
        rows = np.flatnonzero(block.present)
        with wire.computing(party):
            values = change(party, block.values[rows]).astype(np.float32)
        sent = {"values": session.protect("features_out", party, values)}
        received = np.zeros((len(data), block.width))
        received[rows] = wire.send(party, "server", "features", sent, rows=rows)["values"]
        blocks[party] = replace(block, values=received)
    if data.label_owner != "server":
        wire.send(data.label_owner, "server", "labels", {"values": data.labels}, rows=np.arange(len(data)))
    return replace(session, data=replace(data, blocks=blocks))


def fit_alone(
    protocol: TrainedProtocol,
    session: Session,
    network: nn.Module,
    parties: tuple[str, ...],
    place: str,
) -> tuple[Predictor, dict[str, float]]:
    """Train a network at one place on these parties' columns, without a message, and measure how useful it is."""
    data, labels = session.data, Labels(session.data)
    features = [to_tensor(data.blocks[party].values) for party in parties]
    optimiser = protocol.adam(network)
    assert optimiser is not None

    def step(rows: Array, epoch: int) -> float:
        with session.wire.computing(place):
            loss = labels.loss(network([values[rows] for values in features]), rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return float(loss.detach())

    losses = protocol.epochs(step, data.aligned("train"), session.seed)
    return assessed(session, network, parties, losses)


def fit_many_alone(
    protocol: TrainedProtocol, sessions: Sequence[Session], networks: Sequence[nn.Module], parties: tuple[str, ...]
) -> list[tuple[Predictor, dict[str, float]]]:
    """`fit_alone` in every session: all networks at once where they can be stacked."""
    if not stackable(networks[0]):
        place = sessions[0].wire.parties[0]
        pairs = zip(sessions, networks, strict=True)
        return [fit_alone(protocol, session, network, parties, place) for session, network in pairs]
    tables = [
        (
            to_tensor(np.hstack([session.data.blocks[party].values for party in parties])),
            Labels(session.data).targets,
        )
        for session in sessions
    ]
    rows, seeds = [session.data.aligned("train") for session in sessions], [session.seed for session in sessions]
    losses = protocol.fit_many(networks, tables, rows, seeds, lambda network, inputs: network([inputs]))
    return [
        assessed(session, network, parties, each)
        for session, network, each in zip(sessions, networks, losses, strict=True)
    ]


def assessed(
    session: Session, network: nn.Module, parties: tuple[str, ...], losses: list[float]
) -> tuple[Predictor, dict[str, float]]:
    """A network that was trained at one place, as the model to release, and how useful it is."""
    data, labels = session.data, Labels(session.data)
    predictor = Predictor(network, parties, data.task, labels.centre, labels.scale)

    def useful(part: str) -> Mapping[str, float]:
        rows = data.aligned(part)
        if len(rows) == 0:
            return {}
        return utility_of(
            predictor({party: data.blocks[party].values[rows] for party in parties}), data.labels[rows], data.task
        )

    return predictor, with_validation(useful("test"), useful("validation"), losses)


def network_over(protocol: TrainedProtocol, session: Session, parties: tuple[str, ...], *path: str) -> nn.Module:
    """RAP's model over these parties' columns: one hidden layer of 128, or logistic regression; patches for a CNN."""
    data, outputs = session.data, protocol.outputs(session.data)
    blocks = {party: data.blocks[party] for party in parties}
    width = sum(block.width for block in blocks.values())

    def build() -> nn.Module:
        if protocol.model == "lr":
            return JoinedNetwork(nn.Linear(width, outputs))
        if protocol.model == "mlp":
            return JoinedNetwork(
                nn.Sequential(nn.Linear(width, protocol.hidden), nn.ReLU(), nn.Linear(protocol.hidden, outputs))
            )
        share = max(1, protocol.hidden // len(blocks))
        bottoms = {party: bottom("cnn", block, share, activate=True) for party, block in blocks.items()}
        top = Top(share * len(blocks), outputs, aggregation="concat", activate=False, linear=False)
        return SplitNetwork(bottoms, top)

    return seeded(build, session.seed, *path)
