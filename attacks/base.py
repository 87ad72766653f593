"""What every attack shares: it says what it needs, it sees a view, it makes a guess. It never grades itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from vflaudit.core.config import Configurable
from vflaudit.core.games import Guess
from vflaudit.core.view import View
from vflaudit.errors import InputError, unknown


@dataclass(frozen=True)
class Requirement:
    """Something that a view must have; `need` reads on from 'it needs'."""

    need: str
    met: Callable[[View], bool]


KNOWN_PAIRS = Requirement(
    "known samples with their ids (--knows known-samples=50,ids)",
    lambda view: view.knowledge.samples is not None and view.knowledge.samples.handles is not None,
)


class Attack(Configurable):
    """Turns a view into a guess. `games` are the games it can play, the first one by default."""

    games: ClassVar[tuple[str, ...]]
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def run(self, view: View, seed: int = 0) -> Guess:
        """Check that the view has what the attack needs, then attack."""
        for requirement in self.requires:
            if not requirement.met(view):
                raise InputError(f"attack {self.name!r} cannot work for {view.adversary}: it needs {requirement.need}")
        return Guess(attack=self.name, adversary=view.adversary, **self.attack(view, seed))

    @abstractmethod
    def attack(self, view: View, seed: int) -> dict[str, Any]:
        """The fields of the guess."""


class FeatureAttack(Attack):
    """An attack on the columns of one honest party, or of all of them."""

    games: ClassVar[tuple[str, ...]] = ("reconstruction",)
    party: str | None = None

    def victims(self, view: View) -> tuple[str, ...]:
        """Whom to attack."""
        if self.party is None:
            return view.victims
        if self.party not in view.victims:
            raise unknown("honest party with columns", self.party, view.victims)
        return (self.party,)
