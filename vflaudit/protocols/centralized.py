"""Centralized training: everybody hands the server its raw columns. The most useful and the leakiest target."""

from __future__ import annotations

from typing import ClassVar

from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, collect_tables, fit_alone, network_over, party_states


class Centralized(TrainedProtocol):
    """Centralized training: clients send raw columns to the server (RAP's ideal for accuracy, worst for privacy)."""

    name: ClassVar[str] = "centralized"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out"})

    def execute(self, session: Session) -> Outcome:
        parties, at_server = session.data.parties, collect_tables(session)
        network = network_over(self, at_server, parties, "server")
        predictor, utility = fit_alone(self, at_server, network, parties, "server")
        return Outcome(
            party_states(session.data, {"server": network}), Model(predictor, parameters_of(network)), utility
        )
