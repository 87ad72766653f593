"""A guess, a score, and the game that turns the one into the other. Only the game knows the secret."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from vflaudit.core.adversary import Adversary
from vflaudit.core.config import Configurable
from vflaudit.core.dataset import Array
from vflaudit.core.run import Run
from vflaudit.core.view import Challenge
from vflaudit.errors import InputError


@dataclass(frozen=True, eq=False)
class RowGuess:
    """Guessed values for some rows: handles and as many values.

    Where nobody but the lab knows handles (after a shuffle, or in batches whose ids are encrypted), `shuffled` says
    that `rows` are positions in what the receiver got, and the lab's `run.order` tells which rows they are.
    """

    rows: Array
    values: Array
    shuffled: bool = False

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.values):
            raise InputError(f"a guess names {len(self.rows)} rows but gives {len(self.values)} values")

    def places(self, run: Run, rows: Array) -> Array:
        """Where each guessed row stands among `rows` (handles), -1 if it is not there."""
        made = np.asarray(self.rows)
        most = len(run.data) if run.order is None or not self.shuffled else len(run.order)
        if made.size and (made.dtype.kind not in "iu" or made.min() < 0 or made.max() >= most):
            raise InputError(f"a guess names a row that is none of the {most} rows")
        if self.shuffled:
            if run.order is None:
                raise InputError("the guess is about a shuffled table, but nothing was shuffled")
            made = run.order[made]
        lookup = np.full(len(run.data) + 1, -1)  # the last entry is for positions without a row (-1)
        lookup[rows] = np.arange(len(rows))
        return lookup[made]


@dataclass(frozen=True, eq=False)
class Guess:
    """What an attack says. `verified` is the attack's own check of itself (None: it has none), never a grade.

    `shuffled` says that `matches` are positions in a shuffled table, as in `RowGuess`.
    """

    attack: str
    adversary: Adversary
    features: Mapping[str, RowGuess] = field(default_factory=dict)
    labels: RowGuess | None = None
    membership: Array | None = None
    matches: Array | None = None
    shuffled: bool = False
    verified: bool | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Attack, baseline, and advantage over it with its 95% interval."""

    game: str
    metric: str
    party: str | None
    score: float
    baseline: float
    interval: tuple[float, float]
    metrics: Mapping[str, Any]
    attack: str
    adversary: str
    rows: int
    verified: bool | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def advantage(self) -> float:
        """How much better than the best guess without the protocol."""
        return self.score - self.baseline

    def __str__(self) -> str:
        low, high = self.interval
        target = f" of {self.party}" if self.party else ""
        return (
            f"{self.attack}: {self.game}{target}: {self.metric} {self.score:.3f}, baseline {self.baseline:.3f}, "
            f"advantage {self.advantage:+.3f} [{low:+.3f}, {high:+.3f}]  ({self.adversary})"
        )


class Game(Configurable):
    """Owns a secret, a scorer and a baseline."""

    metric: ClassVar[str]
    needs_party: ClassVar[bool] = False

    def challenge(self, run: Run) -> Challenge | None:
        """Candidates to hand to the adversary; most games have none."""
        return None

    @abstractmethod
    def score(self, run: Run, guess: Guess) -> Score:
        """Grade a guess against the secret and against the best guess without the protocol."""

    def _score(self, guess: Guess, **values: Any) -> Score:
        """Fill in what every score shares."""
        return Score(
            game=self.name,
            metric=self.metric,
            attack=guess.attack,
            adversary=str(guess.adversary),
            verified=guess.verified,
            notes=guess.notes,
            **values,
        )
