"""The shadow-model attack: learn from shadows how a model's output differs on its members (Shokri et al., S&P 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.membership_base import MembershipAttack, candidates, confidence, labels_of, losses, released
from attacks.membership_shadows import train_shadows
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.view import View

LARGEST = 40_000  # outputs that the attack model learns from
SHOWN = 5  # of the sorted probabilities


class Shadow(MembershipAttack):
    """Train a classifier on the outputs of shadow models for members and others, and apply it to the released model.

    It sees the loss, the margin, the greatest probabilities, the entropy and the label (predicted value, residual and
    label in a regression). One classifier serves all classes: it sees the label, so it can have rules for each.
    """

    name: ClassVar[str] = "shadow"
    shadows: int = Field(16, ge=2, multiple_of=2, description="shadow models")
    offline: bool = Field(False, description="shadows know nothing of the candidates; needs other rows")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        from sklearn.ensemble import HistGradientBoostingClassifier

        rows, task = candidates(view), view.spec.task
        shadows = train_shadows(view, self.shadows, seed, offline=self.offline)
        outputs, labels = shadows.predict(shadows.rows.features), labels_of(shadows.rows)
        table = np.concatenate([describe(output, labels, task) for output in outputs])
        known = shadows.members.ravel()
        if len(known) > LARGEST:
            chosen = stream(seed, "attack", self.name).choice(len(known), LARGEST, replace=False)
            table, known = table[chosen], known[chosen]
        model = HistGradientBoostingClassifier(
            max_iter=100, max_leaf_nodes=15, early_stopping=False, random_state=child_seed(seed, self.name) % 2**32
        ).fit(table, known)
        seen = describe(released(view).predict(rows.features), labels_of(rows), task)
        notes = {"shadows": self.shadows, "rows_per_shadow": int(shadows.members[0].sum())}
        return {"membership": model.decision_function(seen), "notes": notes}


def describe(predicted: Array, labels: Array, task: str) -> Array:
    """What the attack model sees of one output: (rows, columns)."""
    predicted = np.asarray(predicted, dtype=np.float64)
    common = [confidence(predicted, labels, task), losses(predicted, labels, task), labels]
    if task != "classification":
        return np.column_stack([*common, predicted])
    ordered = -np.sort(-predicted, axis=1)[:, :SHOWN]
    entropy = -(predicted * np.log(np.maximum(predicted, np.finfo(np.float64).tiny))).sum(axis=1)
    return np.column_stack([*common, ordered, entropy])
