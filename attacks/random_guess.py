"""The floor: a guess that ignores everything."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attacks.base import FeatureAttack
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.view import View


class RandomGuess(FeatureAttack):
    """Guess at random (RAP Case 1): the floor of every game."""

    name: ClassVar[str] = "random-guess"
    games: ClassVar[tuple[str, ...]] = ("reconstruction", "label-inference", "membership", "reidentification")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rng = stream(seed, "attack", self.name)
        rows = np.arange(view.spec.rows)
        features = {
            party: RowGuess(rows, rng.standard_normal((len(rows), len(view.spec.columns[party]))))
            for party in self.victims(view)
        }
        labels = RowGuess(rows, rng.random((len(rows), max(1, len(view.spec.classes)))))
        guess: dict[str, Any] = {"features": features, "labels": labels}
        if view.challenge is not None:
            guess["membership"] = rng.random(len(view.challenge))
            guess["matches"] = rng.integers(view.spec.rows, size=len(view.challenge))
        return guess
