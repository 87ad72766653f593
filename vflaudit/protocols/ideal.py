"""The negative control: a protocol whose messages have the right kinds and shapes and nothing to do with the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from defenses.base import Defense
from vflaudit import registry
from vflaudit.core.config import configure
from vflaudit.core.dataset import Array, Block, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.transcript import Recording
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Protocol, Session


class Ideal(Protocol):
    """Another protocol's messages, produced from made-up data: whoever attacks it must find nothing.

    The imitated protocol really runs, on random strangers with the same columns. Row handles, shapes, epochs and kinds
    are therefore real, and independent of everybody's data. Parties still hold their own true columns.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: ClassVar[str] = "ideal"
    like: str = Field("splitnn", description="the protocol to imitate; its own parameters may follow")

    @classmethod
    def known_parameters(cls, settings: Mapping[str, object]) -> set[str]:
        like = str(settings.get("like", cls.model_fields["like"].default))
        inner = set() if like == cls.name else registry.load("protocols", like).known_parameters(settings)
        return {"like"} | inner

    def imitated(self) -> Protocol:
        """The protocol behind it, with the parameters that were given."""
        if self.like == self.name:
            raise InputError("ideal cannot imitate itself: expected like=PROTOCOL, as in like=splitnn")
        extra: dict[str, Any] = {"standardise": self.standardise, **(self.model_extra or {})}
        return configure(registry.load("protocols", self.like), extra, f"protocol {self.like!r}")

    def default_corrupts(self) -> frozenset[str]:
        return self.imitated().default_corrupts()

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        return self.imitated().prepare(data)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return self.imitated().parties(data)

    def execute(self, session: Session) -> Outcome:
        raise InputError("ideal runs as a whole")

    def run(
        self,
        data: VerticalDataset,
        *,
        seed: int = 0,
        defenses: Sequence[Defense] = (),
        recording: Recording | None = None,
    ) -> Run:
        inner = self.imitated()
        shadow = inner.run(strangers(data, seed), seed=seed, defenses=defenses, recording=recording)
        prepared = inner.prepare(data)
        states = {
            party: replace(
                state,
                features=prepared.blocks[party].values if party in prepared.blocks else None,
                present=prepared.blocks[party].present if party in prepared.blocks else None,
                labels=prepared.labels if party == prepared.label_owner else None,
            )
            for party, state in shadow.states.items()
        }
        spec = replace(shadow.spec, protocol=self.name, parameters={"like": self.like, **shadow.spec.parameters})
        return replace(shadow, spec=spec, data=prepared, states=states, utility={})


def strangers(data: VerticalDataset, seed: int) -> VerticalDataset:
    """Random people with the same columns, split and presence: standard normals, uniform categories, random labels."""
    rng = stream(seed, "ideal")
    blocks: dict[str, Block] = {}
    for party, block in data.blocks.items():
        values = rng.standard_normal(block.values.shape)
        for position, column in enumerate(block.columns):
            if column.kind == "categorical":
                values[:, position] = rng.integers(len(column.categories), size=len(values))
        blocks[party] = replace(block, values=values)
    if data.task == "classification":
        labels: Array = rng.integers(len(data.classes), size=len(data))
    else:
        labels = rng.standard_normal(len(data))
    return replace(data, blocks=blocks, labels=labels, aux=None, name=f"{data.name} (strangers)")
