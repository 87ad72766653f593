"""Centralized training: everybody hands the server its raw columns. The most useful and the leakiest target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, fit_alone, network_over, party_states


class Centralized(TrainedProtocol):
    """Centralized training: clients send raw columns to the server (RAP's ideal for accuracy, worst for privacy)."""

    name: ClassVar[str] = "centralized"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out"})

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        names = ("server", *data.parties)
        return names if data.label_owner in names else (*names, data.label_owner)

    def execute(self, session: Session) -> Outcome:
        data, wire = session.data, session.wire
        received: dict[str, np.ndarray] = {}
        wire.next_round()
        for party, block in data.blocks.items():
            rows = np.flatnonzero(block.present)
            values = session.protect("features_out", party, block.values[rows].astype(np.float32))
            received[party] = np.zeros((len(data), block.width))
            received[party][rows] = wire.send(party, "server", "features", {"values": values}, rows=rows)["values"]
        if data.label_owner != "server":
            wire.send(data.label_owner, "server", "labels", {"values": data.labels}, rows=np.arange(len(data)))
        at_server = Session(_received(data, received), wire, session.protect, session.seed)
        network = network_over(self, at_server, data.parties, "server")
        predictor, utility = fit_alone(self, at_server, network, data.parties, "server")
        states = party_states(data, {"server": network})
        return Outcome(states, Model(predictor, parameters_of(network)), utility)


def _received(data: VerticalDataset, values: Mapping[str, np.ndarray]) -> VerticalDataset:
    """The dataset as the server has it: what came over the wire, defenses included."""
    blocks = {party: replace(block, values=values[party]) for party, block in data.blocks.items()}
    return replace(data, blocks=blocks)
