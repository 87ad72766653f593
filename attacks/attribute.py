"""One sensitive attribute, from what is sent about its owner's row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.isometry import SOMEBODY, IsometricAlignment
from attacks.known_samples import KnownSampleReconstruction
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError, unknown


class AttributeInference(FeatureAttack):
    """Tell the category of one column (Adult: race, relationship) from the messages about each row.

    Columns are solved for, from known pairs (`known-sample-reconstruction`), or without any from other people
    (`isometric-alignment`), and the largest cell of the column's one-hot group is the guess. All other columns are
    left at the mean, so the number to read is `category_accuracy_by_column`, against
    `category_accuracy_baseline_by_column`. Tried and left out: logistic regression on the pairs, which was no better
    with 100 pairs and worse with 30.
    """

    name: ClassVar[str] = "attribute-inference"
    requires: ClassVar[tuple[Requirement, ...]] = (SOMEBODY,)
    column: str | None = Field(None, description="the categorical column; none: the party's first")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        groups = {party: categories(view, party) for party in self.victims(view)}
        owners = {p: self.column or next(iter(g)) for p, g in groups.items() if g and self.column in (None, *g)}
        if not owners:
            known = sorted({name for found in groups.values() for name in found})
            if not known:
                raise InputError(f"attack {self.name!r} needs a categorical column at {', '.join(groups)}")
            raise unknown("categorical column of the party that is attacked", str(self.column), known)
        samples = view.knowledge.samples
        pairs = samples is not None and samples.handles is not None
        features = {}
        for party, column in owners.items():
            method = KnownSampleReconstruction(party=party) if pairs else IsometricAlignment(party=party)
            made = method.attack(view, seed)["features"][party]
            at = np.array(groups[party][column])
            values = np.tile(made.values.mean(axis=0), (len(made.rows), 1))
            values[:, at] = made.values[:, at].argmax(axis=1)[:, None] == np.arange(len(at))
            features[party] = RowGuess(made.rows, values)
        return {"features": features, "notes": {"column": owners}}


def categories(view: View, party: str) -> dict[str, list[int]]:
    """Where the cells of every categorical column stand."""
    found: dict[str, list[int]] = {}
    for place, column in enumerate(view.spec.columns[party]):
        if column.kind == "indicator" and column.group is not None:
            found.setdefault(column.group, []).append(place)
    return found
