"""Distinguishing: tell runs with a record from runs without it; what a differential-privacy audit plays."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.errors import InputError


class Proof(Protocol):
    """What the game reads of a bound that an auditor found (vflaudit.accounting.audit.Bound is one)."""

    @property
    def epsilon(self) -> float: ...
    @property
    def ceiling(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def neighbours(self) -> str: ...
    @property
    def trials_in(self) -> int: ...
    @property
    def trials_out(self) -> int: ...


class Distinguishing(Game):
    """Tell runs with a record from runs without it; scored by a lower bound on epsilon at 95% confidence.

    `neighbours` says what "without" means: the record is missing (`add-remove`) or another one is in its place
    (`replace-one`). A bound for one says nothing about a claim for the other.
    """

    name: ClassVar[str] = "distinguishing"
    metric: ClassVar[str] = "epsilon_lower"
    delta: float = 1e-5
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"

    def score(self, run: Run, guess: Guess) -> Score:
        """One run cannot be told from its neighbour by itself: the game owns all its trials."""
        raise InputError("distinguishing is played over many runs: use score_trials with one score per trial")

    def score_trials(
        self, with_record: Array, without_record: Array, *, attack: str, adversary: Adversary, seed: int
    ) -> Score:
        """Scores of trials with and without the record in, a bound on epsilon out. No attack at all certifies 0."""
        rng = stream(seed, "score", self.name)
        bound = stats.epsilon_lower_bound(np.asarray(with_record), np.asarray(without_record), self.delta, rng)
        trials = bound.trials_in + bound.trials_out
        found = {"epsilon_lower": bound.epsilon, "auditor_ceiling": bound.ceiling}
        return self._judge((bound.epsilon, bound.upper), trials, found, attack, adversary)

    def score_bound(self, bound: Proof, *, attack: str, adversary: Adversary) -> Score:
        """A bound that was found otherwise, such as by one-run auditing. Its interval ends at the auditor's ceiling."""
        if bound.neighbours != self.neighbours or bound.delta != self.delta:
            raise InputError(
                f"the bound is about {bound.neighbours} neighbours at delta {bound.delta:g}, "
                f"expected {self.neighbours} at {self.delta:g}"
            )
        ceiling = min(bound.ceiling, stats.EPSILON_CAP)
        found = {
            "epsilon_lower": bound.epsilon,
            "auditor_ceiling": ceiling,
            "method": getattr(bound, "method", "unknown"),
            "kind": getattr(bound, "kind", "unknown"),
        }
        interval = (bound.epsilon, max(ceiling, bound.epsilon))
        return self._judge(interval, bound.trials_in + bound.trials_out, found, attack, adversary)

    def _judge(
        self, interval: tuple[float, float], trials: int, found: dict[str, Any], attack: str, adversary: Adversary
    ) -> Score:
        return self._score(
            Guess(attack=attack, adversary=adversary),
            party=None,
            score=interval[0],
            baseline=0.0,
            interval=interval,
            rows=trials,
            metrics={**found, "delta": self.delta, "neighbours": self.neighbours},
        )
