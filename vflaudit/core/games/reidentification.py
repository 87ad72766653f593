"""Re-identification: find a known person's row among the protocol's rows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import KnownSamples
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.view import Challenge
from vflaudit.errors import InputError


class Reidentification(Game):
    """Find the rows of known people at one party; scored by the share found against guessing (1/N)."""

    name: ClassVar[str] = "reidentification"
    metric: ClassVar[str] = "hit_rate"
    needs_party: ClassVar[bool] = True
    party: str
    candidates: int = 50

    def secret(self, run: Run) -> Array:
        """The handles of the candidates."""
        train = run.data.aligned("train")
        if not 1 <= self.candidates <= len(train):
            raise InputError(f"candidates={self.candidates}: there are {len(train)} training rows")
        return stream(run.seed, "game", self.name, self.party).permutation(train)[: self.candidates]

    def challenge(self, run: Run) -> Challenge:
        """The candidates' feature rows at the party."""
        return Challenge({self.party: run.data.block(self.party).values[self.secret(run)]})

    def score(self, run: Run, guess: Guess) -> Score:
        """`guess.matches`: one row handle per candidate, or a position after a shuffle. Naming an identical row counts.

        Candidates whose ids the adversary knew beforehand are not scored.
        """
        if self.party in guess.adversary.corrupts:
            raise InputError(f"party {self.party!r} is corrupted: its rows are no secret from this adversary")
        truth = self.secret(run)
        if guess.matches is None or np.shape(guess.matches) != truth.shape:
            raise InputError(f"attack {guess.attack!r} must name one row for each of {len(truth)} candidates")
        values, named = run.data.block(self.party).values, np.asarray(guess.matches)
        if guess.shuffled and run.order is None:
            raise InputError(f"attack {guess.attack!r} named positions after a shuffle, but nothing was shuffled")
        rows = run.order if guess.shuffled and run.order is not None else np.arange(len(values))
        if named.dtype.kind not in "iu" or named.min() < 0 or named.max() >= len(rows):
            raise InputError(f"attack {guess.attack!r} named a row that is none of the {len(rows)} rows")
        named = rows[named]
        told = [item.rows(run) for item in guess.adversary.knows if isinstance(item, KnownSamples) and item.with_ids]
        secret = ~np.isin(truth, told)
        if not secret.any():
            raise InputError("the adversary knows the ids of all candidates: there is nobody to find")
        truth, named = truth[secret], named[secret]
        total = len(run.data.aligned("train"))
        hits = (values[named] == values[truth]).all(axis=1)
        train = values[run.data.aligned("train")]
        chance = float(np.mean([(train == values[row]).all(axis=1).sum() / total for row in truth]))
        low, high = stats.clopper_pearson(int(hits.sum()), len(hits))
        return self._score(
            guess,
            party=self.party,
            score=float(hits.mean()),
            baseline=chance,
            interval=(low - chance, high - chance),
            rows=len(truth),
            metrics={"hit_rate": float(hits.mean()), "candidates": len(truth), "rows": total},
        )
