"""The paper's baselines that need no federation (5.1): Solo, Combine, Linear-Combine, with FedOnce's own networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from vflaudit.accounting.events import NonPrivate
from vflaudit.accounting.ledger import Ledger
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.core.run import Model
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.fedonce.gradients import network_of, vector_of, write
from vflaudit.protocols.fedonce.host import HostLoss, train_host
from vflaudit.protocols.fedonce.networks import fully_connected, local_model
from vflaudit.protocols.hosted import HOST, guests_of
from vflaudit.protocols.networks import JoinedNetwork, Predictor, parameters_of, seeded, utility_of
from vflaudit.protocols.training import party_states, with_validation

if TYPE_CHECKING:
    from vflaudit.protocols.fedonce.protocol import FedOnce

VARIANTS = ("solo", "combine", "linear-combine")


def run(protocol: FedOnce, session: Session) -> Outcome:
    """The host trains alone: on its own columns (solo), or on everybody's, which it is sent in the open."""
    data, wire, plan = session.data, session.wire, protocol.plan(session.data)
    setting, train = plan.setting, data.aligned("train")
    parties = (HOST,) if protocol.variant == "solo" else (HOST, *guests_of(data))
    columns = collect(session, parties)
    loss = HostLoss(data, train, protocol.host_loss)
    if protocol.variant == "linear-combine":
        with wire.computing(HOST):
            module, losses = linear(columns[train], data.labels[train], data.task, loss), [0.0]
    else:
        if protocol.variant == "combine" and setting.guest_model != "fc":
            raise InputError("variant combine is for fully connected networks: add --set guest_model=fc")
        width, hidden = columns.shape[1], setting.guest_hidden
        module = seeded(
            lambda: (
                local_model(setting.guest_model, data.blocks[HOST], hidden, loss.outputs)
                if protocol.variant == "solo"
                else fully_connected(width, hidden, loss.outputs)
            ),
            session.seed,
            HOST,
        )
        training, seed = plan.training(setting.host, None), child_seed(session.seed, "fedonce", HOST)
        with wire.computing(HOST):
            descent = train_host(network_of(module), vector_of(module), columns[train], None, loss, training, seed)
        write(module, descent.parameters)
        losses = descent.losses.tolist()
    costs = wire.costs
    predictor = Predictor(JoinedNetwork(module), parties, data.task, loss.centre, loss.scale)

    def useful(part: str) -> Mapping[str, float]:
        rows = data.aligned(part)
        if not len(rows):
            return {}
        features = {party: data.blocks[party].values[rows] for party in parties}
        return utility_of(predictor(features), data.labels[rows], data.task)

    spent = {"training_rounds": float(costs.rounds), "training_bytes": float(costs.total.bytes)}
    utility = with_validation(useful("test"), useful("validation"), losses) | spent
    ledger = Ledger()
    ledger.spend(HOST, NonPrivate("gradient descent without noise"))
    return Outcome(party_states(data, {HOST: module}), Model(predictor, parameters_of(module)), utility, ledger=ledger)


def collect(session: Session, parties: tuple[str, ...]) -> Array:
    """The columns of these parties at the host, for all rows."""
    data, wire = session.data, session.wire
    wire.next_round()
    parts = []
    for party in parties:
        values = data.blocks[party].values.astype(np.float32)
        if party != HOST:
            sent = {"values": session.protect("features_out", party, values)}
            values = wire.send(party, HOST, "features", sent, rows=np.arange(len(data)))["values"]
        parts.append(values)
    return np.hstack(parts).astype(np.float64)


def linear(columns: Array, labels: Array, task: str, loss: HostLoss) -> nn.Module:
    """Logistic regression for classes, ridge regression for numbers (5.1), with scikit-learn's defaults."""
    from sklearn.linear_model import LogisticRegression, Ridge

    layer = nn.Linear(columns.shape[1], loss.outputs)
    if task == "regression":
        ridge = Ridge().fit(columns, (labels - loss.centre) / loss.scale)
        weight, bias = ridge.coef_[None], np.array([ridge.intercept_])
    else:
        fitted = LogisticRegression(max_iter=5000).fit(columns, labels)
        weight, bias = np.zeros((loss.outputs, columns.shape[1])), np.full(loss.outputs, -1e3)
        if len(fitted.classes_) == 2:  # one vector of logits against the other class
            weight[fitted.classes_[1]], bias[fitted.classes_] = fitted.coef_[0], (0.0, fitted.intercept_[0])
        else:
            weight[fitted.classes_], bias[fitted.classes_] = fitted.coef_, fitted.intercept_
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return nn.Sequential(layer)
