"""Undoing the FC layer without the masks (TabVFL IV-A and IV-D): does it help not to send them?"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks import mask_messages as messages
from attacks.base import FeatureAttack, Requirement
from attacks.component_matching import named
from attacks.hidden_planes import find
from attacks.mask_planes import carried
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.view import View
from vflaudit.errors import InputError

MESSAGES = Requirement(
    "intermediate results of pretraining (the host of tabvfl)",
    lambda view: bool(list(view.transcript.select(kind=messages.MASKED))),
)
PEOPLE = Requirement(
    "people to tell columns from each other (--knows distribution=100 or known-samples=5,ids)",
    lambda view: (
        view.knowledge.distribution is not None
        or (view.knowledge.samples is not None and view.knowledge.samples.handles is not None)
    ),
)


class BlindUnmixing(FeatureAttack):
    """Find the columns in intermediate results without knowing the masks, and name them by what is known.

    - planes: a masked cell is exactly zero, so in each message the rows without cell j are exactly on a hyperplane.
      Hyperplanes with many rows on them are found without masks; needs as many numbers per row as columns, and a few
      more masked cells per message and column than numbers.
    - fastica: independent components of the same messages, the usual weaker way. Masks make columns less dependent.
    Either gives directions, which also read what was sent after pretraining. The order of the columns, signs and units
    come from known people, or from quantiles and correlations of others of the same population.
    """

    name: ClassVar[str] = "blind-unmixing"
    requires: ClassVar[tuple[Requirement, ...]] = (MESSAGES, PEOPLE)
    method: Literal["planes", "fastica"] = Field("planes", description="how to find the columns' directions")
    messages: int = Field(10, ge=1, description="the last messages of pretraining to use")
    draws: int = Field(20_000, ge=1, description="hyperplanes that are tried in each message")
    resamples: int = Field(20, ge=1, description="of the population, for how sure the order and signs are")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        found: dict[str, int] = {}
        for party in self.victims(view):
            after = messages.served(view, party)
            if after is None:
                raise InputError(f"attack {self.name!r}: the view has nothing that {party!r} sent after training")
            sent, width = self._sent(view, party), len(view.spec.columns[party])
            if self.method == "planes" and sent[0].shape[1] < width:
                raise InputError(
                    f"attack {self.name!r}: method=planes needs as many numbers as columns, and {party!r} sends "
                    f"{sent[0].shape[1]} for {width}"
                )
            normal = self._directions(sent, seed)
            rows, values = carried(normal, messages.first_unmasked(view, party), after)
            scale = messages.scale_rows(view, party, rows)
            values = values - values[scale].mean(axis=0)
            values = values / np.maximum(values[scale].std(axis=0), 1e-300)
            rng = stream(seed, "attack", self.name, party)
            features[party] = RowGuess(rows, named(view, party, rows, values, rng, self.resamples))
            found[party] = values.shape[1]
        return {"features": features, "notes": {"directions": found}}

    def _sent(self, view: View, party: str) -> list[Array]:
        """The last long messages: a short rest of an epoch has too few rows on each hyperplane."""
        sent = [messages.numbers(message) for message in messages.intermediates(view, party, self.messages)]
        if not sent:
            raise InputError(f"attack {self.name!r}: the view has no intermediate results from {party!r}")
        longest = max(len(values) for values in sent)
        return [values for values in sent if len(values) > longest / 2][-self.messages :]

    def _directions(self, sent: list[Array], seed: int) -> Array:
        """What to multiply messages with, as columns."""
        if self.method == "planes":
            return find(sent, stream(seed, "attack", self.name, "planes"), draws=self.draws, keep=200)
        from sklearn.decomposition import FastICA

        pooled = np.vstack([values - values.mean(axis=0) for values in sent])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged is told by the result
            model = FastICA(max_iter=500, random_state=child_seed(seed, self.name) % 2**32)
            return model.fit(pooled).components_.T
