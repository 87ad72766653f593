"""What labels alone tell about features: vFedSec 4.2 holds that a server cannot infer anything useful from them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attacks.base import FeatureAttack, Requirement
from attacks.secure_rounds import AT_SERVER, server_rounds
from vflaudit.core.games import RowGuess
from vflaudit.core.regression import linear_ridge
from vflaudit.core.view import View


class FeaturesFromLabels(FeatureAttack):
    """Guess every row's columns from its label alone: the mean of other people with that label.

    The sums, gradients and weights that the server also has are left aside on purpose.
    """

    name: ClassVar[str] = "features-from-labels"
    requires: ClassVar[tuple[Requirement, ...]] = (
        AT_SERVER,
        Requirement(
            "other people with their labels (--knows distribution=150)",
            lambda view: view.knowledge.distribution is not None and view.knowledge.distribution.labels is not None,
        ),
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        pool = view.knowledge.distribution
        assert pool is not None and pool.labels is not None
        rounds = [found for found in server_rounds(view) if found.labels is not None]
        last = max(found.epoch or 0 for found in rounds)
        rounds = [found for found in rounds if found.epoch == last]  # an epoch has every row once
        places = np.concatenate([found.places for found in rounds])
        labels = np.concatenate([found.labels for found in rounds if found.labels is not None])
        if view.spec.task == "regression":  # numeric labels travel standardised
            labels = labels * pool.labels.std() + pool.labels.mean()
        known, asked = view.label_columns(pool.labels), view.label_columns(labels)
        features = {}
        for party in self.victims(view):
            fit = linear_ridge(known, pool.features[party])
            features[party] = RowGuess(places, np.array(fit.predict(asked)), shuffled=True)
        return {"features": features}
