"""Membership by the loss alone: a model is surer of the rows that it was trained on (Yeom et al., CSF 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.membership_base import MembershipAttack, candidates, labels_of, losses, released, share_above
from vflaudit.core.view import View


class LossThreshold(MembershipAttack):
    """Call a candidate a member if the released model's loss on it is small; needs no training and no other data.

    The score is the negative loss: log-likelihood of the true class, or minus the squared error. A threshold for all
    candidates favours classes that are easy anyway; with `per_class` the score is the share of candidates of the same
    class with a greater loss, which is what a threshold of its own for every class amounts to.
    """

    name: ClassVar[str] = "loss-threshold"
    per_class: bool = Field(False, description="a threshold for each class (classification only)")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rows = candidates(view)
        labels = labels_of(rows)
        loss = losses(released(view).predict(rows.features), labels, view.spec.task)
        score = -loss
        if self.per_class and view.spec.task == "classification":
            for label in np.unique(labels):
                score[labels == label] = share_above(loss[labels == label])
        return {"membership": score, "notes": {"mean_loss": float(loss.mean())}}
