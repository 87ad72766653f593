"""Membership by the loss alone: a model is surer of the rows that it was trained on (Yeom et al., CSF 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from vflaudit.core.dataset import Array
from vflaudit.core.run import Model
from vflaudit.core.view import View


def _model(view: View) -> Model:
    assert isinstance(view.knowledge.model, Model)
    return view.knowledge.model


class LossThreshold(Attack):
    """Call a candidate a member if the released model's loss on it is small; needs no training and no other data.

    The score is the negative loss: log-likelihood of the true class, or minus the squared error. A threshold for all
    candidates favours classes that are easy anyway; with `per_class` the score is the share of candidates of the same
    class with a greater loss, which is what a threshold of its own for every class amounts to.
    """

    name: ClassVar[str] = "loss-threshold"
    games: ClassVar[tuple[str, ...]] = ("membership",)
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("the trained model (--knows model=black-box)", lambda view: view.knowledge.model is not None),
        Requirement(
            "candidates with their labels from a game of membership",
            lambda view: view.challenge is not None and view.challenge.labels is not None,
        ),
    )
    per_class: bool = Field(False, description="a threshold for each class (classification only)")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        assert view.challenge is not None and view.challenge.labels is not None
        labels = view.challenge.labels
        loss = losses(_model(view), view.challenge.features, labels, view.spec.task)
        score = -loss
        if self.per_class and view.spec.task == "classification":
            for label in np.unique(labels):
                score[labels == label] = share_above(loss[labels == label])
        return {"membership": score, "notes": {"mean_loss": float(loss.mean())}}


def losses(model: Model, features: Any, labels: Array, task: str) -> Array:
    """Cross-entropy of every row, or its squared error."""
    predicted = np.asarray(model.predict(features), dtype=np.float64)
    if task == "classification":
        chance = predicted[np.arange(len(labels)), labels]
        return -np.log(np.maximum(chance, np.finfo(np.float64).tiny))
    return (predicted - labels) ** 2


def share_above(loss: Array) -> Array:
    """For each row the share of rows with a greater loss, equal ones counting half."""
    ordered = np.sort(loss)
    below = np.searchsorted(ordered, loss, "left") + np.searchsorted(ordered, loss, "right")
    return 1 - below / (2 * len(loss))
