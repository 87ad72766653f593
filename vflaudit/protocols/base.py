"""What every protocol shares: preparing the data, opening the wire, closing the run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from defenses.base import Defense, Protection
from vflaudit.accounting.ledger import Ledger
from vflaudit.core.config import Configurable
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.preprocess import encode
from vflaudit.core.run import Model, PartyState, ProtocolSpec, Run
from vflaudit.core.transcript import Recording, Transcript
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError
from vflaudit.protocols.shadows.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Session:
    """What a protocol works with while it runs."""

    data: VerticalDataset
    wire: Wire
    protect: Protection
    seed: int


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a protocol leaves behind besides its messages."""

    states: Mapping[str, PartyState]
    model: Model
    utility: Mapping[str, float]
    order: Array | None = None  # the row at each position of a receiver's unnamed table (after a shuffle, in a batch)
    ledger: Ledger = field(default_factory=Ledger)  # what each party spent of its people's privacy


class Protocol(Configurable):
    """A published system. Fields are its parameters, with the paper's values as defaults."""

    corrupts: ClassVar[frozenset[str]] = frozenset({"server"})
    hooks: ClassVar[frozenset[str]] = frozenset()
    standardise: bool = True

    @classmethod
    def known_parameters(cls, settings: Mapping[str, object]) -> set[str]:
        """Names that `--set` may use, given the other settings."""
        return set(cls.model_fields)

    def default_corrupts(self) -> frozenset[str]:
        """Whom the audit corrupts if nobody is named."""
        return self.corrupts

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        """The data under the protocol's party names, encoded as the protocol's input."""
        return encode(data, standardise=self.standardise)

    @abstractmethod
    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        """Everybody who takes part, for prepared data."""

    @abstractmethod
    def execute(self, session: Session) -> Outcome:
        """Run the protocol; parties talk only through `session.wire`."""

    def run(
        self,
        data: VerticalDataset,
        *,
        seed: int = 0,
        defenses: Sequence[Defense] = (),
        recording: Recording | None = None,
    ) -> Run:
        """Train and serve once. The same data and seed give the same messages, byte for byte."""
        for defense in defenses:
            fits = not defense.applies_to or self.name in defense.applies_to
            if defense.hook not in self.hooks or not fits:
                raise InputError(f"defense {defense.name!r} does not apply to protocol {self.name!r}")
        prepared = self.prepare(data)
        helpers = [name for defense in defenses for name in defense.helpers]
        parties = (*self.parties(prepared), *helpers)
        session = self.session(prepared, seed, defenses, parties, recording or Recording.all())
        outcome = self.execute(session)
        return Run(
            spec=self.spec(prepared, parties, defenses),
            data=prepared,
            transcript=session.wire.transcript,
            states=outcome.states,
            model=outcome.model,
            costs=session.wire.costs,
            utility=outcome.utility,
            seed=seed,
            order=outcome.order,
            ledger=outcome.ledger,
        )

    def session(
        self,
        data: VerticalDataset,
        seed: int,
        defenses: Sequence[Defense],
        parties: tuple[str, ...],
        recording: Recording | None = None,
    ) -> Session:
        """What `execute` works with; nothing is recorded if nothing is said."""
        transcript = Transcript(recording or Recording.none(), population=len(data))
        return Session(data, Wire(parties, transcript), Protection(defenses, seed), seed)

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """The released model of every session, for shadow training; a protocol that can trains all of them at once.

        The sessions have the same columns, parameters and defenses; their training rows and seeds differ.
        """
        return self.train_one_by_one(sessions)

    def train_one_by_one(self, sessions: Sequence[Session]) -> list[Model]:
        """`execute` in every session."""
        return [self.execute(session).model for session in sessions]

    def spec(self, data: VerticalDataset, parties: tuple[str, ...], defenses: Sequence[Defense]) -> ProtocolSpec:
        """What is public about a run on this data."""
        return ProtocolSpec(
            protocol=self.name,
            parameters=self.parameters()
            | {"defenses": [{"name": defense.name, **defense.parameters()} for defense in defenses]},
            parties=parties,
            columns={party: block.columns for party, block in data.blocks.items()},
            task=data.task,
            classes=data.classes,
            label_owner=data.label_owner,
            rows=len(data),
            standardised=data.standardised,
            trainer=Trainer(
                type(self),
                self.model_dump(),
                tuple(defenses),
                data.name,
                {party: block.image for party, block in data.blocks.items()},
            ),
        )
