"""Membership by quantile regression: how sure should the model be of such a row? (Bertran et al., NeurIPS 2023)"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import Requirement
from attacks.membership_base import (
    CANDIDATES,
    MODEL,
    POPULATION,
    MembershipAttack,
    candidates,
    confidence,
    labels_of,
    released,
)
from vflaudit.core.adversary import Rows
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.core.view import View
from vflaudit.errors import InputError

FEWEST = 40  # rows to learn from
TREES, FOLDS = 100, 5


class Quantile(MembershipAttack):
    """Call a candidate a member if the model is surer of it than of most non-members with such features and label.

    One quantile regression on the adversary's sample of the population, whose rows are no members, and no shadow at
    all. The score is the margin (minus the log of the absolute residual in a regression) less its predicted quantile.
    """

    name: ClassVar[str] = "quantile"
    requires: ClassVar[tuple[Requirement, ...]] = (MODEL, CANDIDATES, POPULATION)
    quantile: float = Field(0.9, gt=0, lt=1, description="of the margins of non-members")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rows, sample, task = candidates(view), view.knowledge.distribution, view.spec.task
        assert sample is not None
        if len(labels_of(sample)) < FEWEST:
            raise InputError(
                f"attack 'quantile' learns from {FEWEST} other rows or more: distribution={len(labels_of(sample))}"
            )
        sure = confidence(released(view).predict(sample.features), labels_of(sample), task)
        seen = confidence(released(view).predict(rows.features), labels_of(rows), task)
        expected, trees = self.predicted(_table(view, sample), sure, _table(view, rows), seed)
        return {"membership": seen - expected, "notes": {"shadows": 0, "rows_to_learn_from": len(sure), "trees": trees}}

    def predicted(self, table: Array, values: Array, wanted: Array, seed: int) -> tuple[Array, int]:
        """The quantile for the wanted rows, and by how many trees: as many as predict best in cross-validation.

        With no tree at all it is the same for everybody, and the attack is a threshold on the margin.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.metrics import mean_pinball_loss
        from sklearn.model_selection import KFold

        state = child_seed(seed, "attack", self.name) % 2**32
        model = HistGradientBoostingRegressor(
            loss="quantile", quantile=self.quantile, max_iter=TREES, max_leaf_nodes=15, min_samples_leaf=20,
            early_stopping=False, random_state=state,
        )  # fmt: skip
        loss = np.zeros(TREES + 1)
        for train, test in KFold(FOLDS, shuffle=True, random_state=state).split(table):
            model.fit(table[train], values[train])
            constant = np.full(len(test), np.quantile(values[train], self.quantile))
            stages = [constant, *model.staged_predict(table[test])]
            loss += [mean_pinball_loss(values[test], stage, alpha=self.quantile) * len(test) for stage in stages]
        trees = int(loss.argmin())
        if not trees:
            return np.full(len(wanted), np.quantile(values, self.quantile)), 0
        return model.set_params(max_iter=trees).fit(table, values).predict(wanted), trees


def _table(view: View, rows: Rows) -> Array:
    """Everybody's columns and the label."""
    return np.hstack([*(rows.features[party] for party in view.spec.columns), view.label_columns(labels_of(rows))])
