"""Local training (RAP's Single, FedOnce's Solo): every client alone on its own columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, fit_alone, fit_many_alone, network_over, party_states


class Local(TrainedProtocol):
    """Every client trains alone on its own columns; the best client is reported (RAP's Single, FedOnce's Solo).

    The label owner gives the labels to each client, which is the one thing that is exchanged. RAP 4.1 reports the
    client that is best on the test set; `best_client` follows that, and every client's own score stands beside it.
    """

    name: ClassVar[str] = "local"

    def execute(self, session: Session) -> Outcome:
        data, wire = session.data, session.wire
        wire.next_round()
        networks, predictors, scores = {}, {}, {}
        for party in data.parties:
            if party != data.label_owner:
                wire.send(data.label_owner, party, "labels", {"values": data.labels}, rows=np.arange(len(data)))
            networks[party] = network_over(self, session, (party,), party)
            predictors[party], scores[party] = fit_alone(self, session, networks[party], (party,), party)
        best, measure = best_client(data, scores)
        utility = dict(scores[best]) | {f"{party}_{measure}": scores[party][measure] for party in data.parties}
        states = party_states(data, networks)
        return Outcome(states, Model(predictors[best], parameters_of(networks[best])), utility)

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All shadows of one client at once, client after client."""
        found = {}
        for party in sessions[0].data.parties:
            networks = [network_over(self, session, (party,), party) for session in sessions]
            fitted = fit_many_alone(self, sessions, networks, (party,))
            found[party] = [(network, *each) for network, each in zip(networks, fitted, strict=True)]
        models = []
        for place, session in enumerate(sessions):
            best, _ = best_client(session.data, {party: each[place][2] for party, each in found.items()})
            network, predictor, _ = found[best][place]
            models.append(Model(predictor, parameters_of(network)))
        return models


def best_client(data: VerticalDataset, scores: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    """The client whose score on the test rows is best (the first, if there are none), and what the score is called."""
    if data.task == "classification":
        return max(data.parties, key=lambda party: scores[party].get("accuracy", 0.0)), "accuracy"
    return min(data.parties, key=lambda party: scores[party].get("rmse", 0.0)), "rmse"
