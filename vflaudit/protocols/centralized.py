"""Centralized training: everybody hands the server its raw columns. The most useful and the leakiest target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import (
    TrainedProtocol,
    collect_tables,
    fit_alone,
    fit_many_alone,
    network_over,
    party_states,
)


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

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All at once."""
        parties, at_server = sessions[0].data.parties, [collect_tables(session) for session in sessions]
        networks = [network_over(self, session, parties, "server") for session in at_server]
        fitted = fit_many_alone(self, at_server, networks, parties)
        return [
            Model(predictor, parameters_of(network)) for (predictor, _), network in zip(fitted, networks, strict=True)
        ]
