"""Distinguishing: tell runs with a record from runs without it; what a differential-privacy audit plays."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.errors import InputError


class Distinguishing(Game):
    """Tell runs with a record from runs without it; scored by a lower bound on epsilon at 95% confidence."""

    name: ClassVar[str] = "distinguishing"
    metric: ClassVar[str] = "epsilon_lower"
    delta: float = 1e-5

    def score(self, run: Run, guess: Guess) -> Score:
        """One run cannot be told from its neighbour by itself: the game owns all its trials."""
        raise InputError("distinguishing is played over many runs: use score_trials with one score per trial")

    def score_trials(
        self, with_record: Array, without_record: Array, *, attack: str, adversary: Adversary, seed: int
    ) -> Score:
        """Scores of trials with and without the record in, a bound on epsilon out. No attack at all certifies 0."""
        rng = stream(seed, "score", self.name)
        bound = stats.epsilon_lower_bound(np.asarray(with_record), np.asarray(without_record), self.delta, rng)
        guess = Guess(attack=attack, adversary=adversary)
        return self._score(
            guess,
            party=None,
            score=bound.epsilon,
            baseline=0.0,
            interval=(bound.epsilon, bound.upper),
            rows=bound.trials_in + bound.trials_out,
            metrics={"epsilon_lower": bound.epsilon, "auditor_ceiling": bound.ceiling, "delta": self.delta},
        )
