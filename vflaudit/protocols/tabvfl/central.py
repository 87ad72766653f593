"""Central TabNet (V-A): the whole TabNet at the host, on columns that everybody sends in the open."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.networks import JoinedNetwork, Predictor, outputs_to_predictions, parameters_of
from vflaudit.protocols.tabvfl.alone import pretrain
from vflaudit.protocols.tabvfl.blocks import JoinHead, seeded_tabnet
from vflaudit.protocols.tabvfl.evaluation import outcome, validation_score
from vflaudit.protocols.tabvfl.guest import Guest
from vflaudit.protocols.tabvfl.loop import fit
from vflaudit.protocols.tabvfl.protocol import TabVFL
from vflaudit.protocols.training import Labels, party_states


class Central(nn.Module):
    """Encoder and final mapping as one module."""

    def __init__(self, bottom: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bottom, self.head = bottom, head

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head([self.bottom(values)])


def run(protocol: TabVFL, session: Session) -> Outcome:
    """Collect the columns, pretrain, fine-tune, release."""
    data, wire, labels = session.data, session.wire, Labels(session.data)
    joined = collect(session)
    with wire.computing(HOST):
        tabnet = Guest(protocol, HOST, joined, protocol.latent, session.seed)
        epochs = pretrain(protocol, tabnet, data, session.seed, HOST)
        outputs = len(data.classes) if data.task == "classification" else 1
        head = seeded_tabnet(lambda: JoinHead(protocol.latent, outputs), session.seed, "tabvfl", HOST, "head")
        epochs += finetune(protocol, session, tabnet, head, labels)
        rows = np.concatenate([data.aligned(part) for part in data.split])
        latent = torch.from_numpy(tabnet.represent(rows, masked=False, train=False)["values"])
        with torch.no_grad():
            logits = head([latent])
    tabnet.bottom.sparsity = None
    network = Central(tabnet.bottom, head)
    predictor = Predictor(JoinedNetwork(network), data.parties, data.task, labels.centre, labels.scale)
    states = party_states(data, {HOST: nn.ModuleDict({"head": head, **tabnet.modules})})
    predictions = outputs_to_predictions(logits, data.task, labels.centre, labels.scale)
    model, notes = Model(predictor, parameters_of(network)), {"epochs": float(epochs)}
    return outcome(protocol, session, states, model, rows, latent.numpy(), predictions, notes)


def collect(session: Session) -> Array:
    """Everybody's columns at the host, for all rows."""
    session.wire.next_round()
    parts, rows = [], np.arange(len(session.data))
    for party, block in session.data.blocks.items():
        sent = {"values": session.protect("features_out", party, block.values.astype(np.float32))}
        parts.append(session.wire.send(party, HOST, "features", sent, rows=rows)["values"])
    return np.hstack(parts)


def finetune(protocol: TabVFL, session: Session, tabnet: Guest, head: JoinHead, labels: Labels) -> int:
    """Encoder and final mapping on the labels, with the sparsity loss; returns the number of epochs."""
    training, validation = protocol.training(finetuning=True), session.data.aligned("validation")
    optimiser = training.adam(tabnet.bottom, head)
    assert optimiser is not None

    def step(rows: Array, epoch: int) -> float:
        tabnet.represent(rows, masked=False, train=True)
        assert tabnet.bottom.sparsity is not None
        loss = labels.loss(head([tabnet.sent]), rows) - protocol.lambda_sparse * tabnet.bottom.sparsity
        head.zero_grad()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    @torch.no_grad()
    def validate(epoch: int) -> float:
        tabnet.represent(validation, masked=False, train=False)
        return validation_score(head([tabnet.sent]), labels, session.data, validation)

    rng = stream(session.seed, "tabvfl", "batches", 1)
    return len(fit(training, session.data.aligned("train"), rng, step, validate if len(validation) else None))
