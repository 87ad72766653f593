"""Local differential privacy (RAP, Table 1): clients add calibrated noise to their rows, the server trains on them."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.accounting.gaussian import gaussian_deviation
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.run import Model
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.networks import parameters_of
from vflaudit.protocols.training import TrainedProtocol, collect_tables, fit_alone, network_over, party_states


class LDP(TrainedProtocol):
    """Local differential privacy: clients clip each row, add noise once and send it; the server trains on noisy rows.

    What `epsilon` means: each client's message about one person is epsilon-locally differentially private (Laplace), or
    (epsilon, delta)-locally (Gaussian): any two rows that the client could hold are as hard to tell apart. All rows are
    neighbours, so the sensitivity is twice the clipping norm. A person's columns lie at M clients, which spend M times
    epsilon (and delta) together. Two things are outside the guarantee, as in RAP's Table 1: labels are sent in clear,
    and standardising uses the training columns' mean and deviation. RAP gives neither mechanism nor epsilon; these are
    parameters here. Test rows are sent with noise like all others.
    """

    name: ClassVar[str] = "ldp"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out"})

    mechanism: Literal["laplace", "gaussian"] = Field("laplace", description="L1 clipping, or L2 clipping")
    epsilon: float = Field(10.0, gt=0, description="per client and row")
    delta: float = Field(1e-5, gt=0, lt=1, description="of the Gaussian mechanism, per client and row")
    clip: float | None = Field(
        None, gt=0, description="norm of a client's row; none: the width (Laplace) or its root (Gaussian), both public"
    )

    def bound(self, width: int) -> float:
        """The clipping norm of a client with so many columns."""
        if self.clip is not None:
            return self.clip
        return float(width) if self.mechanism == "laplace" else float(np.sqrt(width))

    def scale(self, width: int) -> float:
        """Laplace's b, or the Gaussian's deviation, of the noise in every cell of a client with so many columns."""
        sensitivity = 2 * self.bound(width)
        if self.mechanism == "laplace":
            return sensitivity / self.epsilon
        return gaussian_deviation(sensitivity, self.epsilon, self.delta)

    def noisy(self, values: Array, rng: np.random.Generator) -> Array:
        """Clipped rows plus noise."""
        order, width = (1 if self.mechanism == "laplace" else 2), values.shape[1]
        norms = np.linalg.norm(values, ord=order, axis=1, keepdims=True)
        clipped = values * np.minimum(1.0, self.bound(width) / np.maximum(norms, 1e-300))
        draw = rng.laplace if self.mechanism == "laplace" else rng.normal
        return clipped + draw(0.0, self.scale(width), values.shape)

    def execute(self, session: Session) -> Outcome:
        parties = session.data.parties
        at_server = collect_tables(
            session, lambda party, values: self.noisy(values, stream(session.seed, self.name, party))
        )
        network = network_over(self, at_server, parties, "server")
        predictor, utility = fit_alone(self, at_server, network, parties, "server")
        return Outcome(
            party_states(session.data, {"server": network}), Model(predictor, parameters_of(network)), utility
        )
