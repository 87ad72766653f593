"""Local training (RAP's Single, FedOnce's Solo): every client alone on its own columns."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, fit_alone, network_over, party_states


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
        measure = "accuracy" if data.task == "classification" else "rmse"
        sign = 1 if data.task == "classification" else -1
        best = max(data.parties, key=lambda party: sign * scores[party][measure])
        utility = dict(scores[best]) | {f"{party}_{measure}": scores[party][measure] for party in data.parties}
        states = party_states(data, networks)
        return Outcome(states, Model(predictors[best], parameters_of(networks[best])), utility)
