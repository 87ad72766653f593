"""One execution of a protocol, and the only door through which an attack may look at it: `run.view(adversary)`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vflaudit.core.adversary import Adversary, Rows
from vflaudit.core.costs import Costs
from vflaudit.core.dataset import Array, Column, VerticalDataset, frozen
from vflaudit.core.shadows import ShadowModels
from vflaudit.core.transcript import Transcript
from vflaudit.core.view import Challenge, View
from vflaudit.errors import InputError, unknown


@dataclass(frozen=True)
class ProtocolSpec:
    """What is public about a run: the protocol, its parameters, who takes part, which columns each party has."""

    protocol: str
    parameters: Mapping[str, Any]
    parties: tuple[str, ...]
    columns: Mapping[str, tuple[Column, ...]]
    task: str
    classes: tuple[str, ...]
    label_owner: str
    rows: int
    standardised: bool
    trainer: Callable[[ProtocolSpec, Rows, Array, Sequence[int]], ShadowModels] | None = field(
        default=None, repr=False, compare=False
    )

    def train_many(self, rows: Rows, members: Array, seeds: Sequence[int]) -> ShadowModels:
        """Train the protocol anew, once per line of `members` (shadows, rows), on the adversary's own rows.

        `rows` are in the units of the protocol's input and have labels; each line says which of them a shadow trains
        on, and each shadow has a seed of its own.
        """
        if self.trainer is None:
            raise InputError(f"protocol {self.protocol!r} cannot train shadows: its run has no trainer")
        return self.trainer(self, rows, members, seeds)


@dataclass(frozen=True, eq=False)
class PartyState:
    """What one party privately holds: its own columns, its labels, its model parameters.

    `secrets` are what else only it knows, such as keys or which rows a batch has; they are never printed.
    """

    features: Array | None = None
    present: Array | None = None
    labels: Array | None = None
    parameters: Mapping[str, Array] = field(default_factory=dict)
    secrets: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def copy(self) -> PartyState:
        """A deep copy that shares no memory with anything."""

        def own(array: Array | None) -> Array | None:
            return None if array is None else frozen(array)

        parameters = {name: frozen(value) for name, value in self.parameters.items()}
        secrets = {name: frozen(value) for name, value in self.secrets.items()}
        return PartyState(own(self.features), own(self.present), own(self.labels), parameters, secrets)


@dataclass(frozen=True)
class Model:
    """A trained model: per-party features in, class probabilities (rows, classes) or predicted values (rows,) out."""

    predict: Callable[[Mapping[str, Array]], Array]
    parameters: Mapping[str, Array] = field(default_factory=dict)

    def release(self, *, white_box: bool) -> Model:
        """What an outsider gets: the function, and the parameters only if white-box."""
        parameters = {name: frozen(value) for name, value in self.parameters.items()} if white_box else {}
        return Model(copy.deepcopy(self.predict), parameters)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished execution. `data` is what the protocol worked on: encoded, under the protocol's party names."""

    spec: ProtocolSpec
    data: VerticalDataset
    transcript: Transcript
    states: Mapping[str, PartyState]
    model: Model
    costs: Costs
    utility: Mapping[str, float]
    seed: int
    order: Array | None = None  # the lab's secret: the row at each position of a receiver's unnamed table (-1: none)
    ledger: Any = None  # what each party spent of its people's privacy (vflaudit.accounting.ledger.Ledger)

    def view(self, adversary: Adversary, *, challenge: Challenge | None = None, messages: bool = True) -> View:
        """Exactly what this adversary sees: its parties' messages and states, its knowledge, the game's challenge.

        `messages=False` leaves the transcript out: what the same adversary had without the protocol (the baseline).
        """
        for party in adversary.corrupts:
            if party not in self.spec.parties:
                raise unknown(f"party of {self.spec.protocol!r}", party, self.spec.parties)
        return View(
            adversary=adversary,
            spec=copy.deepcopy(self.spec),
            transcript=self.transcript.only(adversary.corrupts) if messages else Transcript(),
            states={party: self.states[party].copy() for party in sorted(adversary.corrupts) if party in self.states},
            knowledge=adversary.learn(self),
            challenge=challenge,
        )

    def score_rows(self, adversary: Adversary) -> Array:
        """Training rows that the adversary did not know beforehand."""
        return np.setdiff1d(self.data.aligned("train"), adversary.known_rows(self))
