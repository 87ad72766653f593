"""Model completion: a guest puts a head on its own trained bottom, with a few labels that it knows.

Fu et al., 'Label inference attacks against vertical federated learning' (USENIX Security 2022). The passive attack
keeps to the protocol. The active one makes the top lean on the guest's bottom: run the target with `malicious=PARTY`.
The paper trains its head with MixMatch, which augments images. Here columns are of any kind, so two simpler learners
share the vote: logistic regression, and label spreading over the graph of near rows (Zhou et al. 2004), which learns
from rows without a label too.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from attacks.label_embedding import COLUMNS, INPUTS, Inputs, guest_inputs
from attacks.label_gradient import CLASSES, known_classes
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View


class ModelCompletion(Attack):
    """Train a head on a guest's own bottom from a few known labels; `inputs=columns` does it without the protocol.

    The game's baseline is logistic regression on the guest's columns from the same labels. What the head adds by
    learning from unlabelled rows is no leak: compare with `inputs=columns`.
    """

    name: ClassVar[str] = "model-completion"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (
        CLASSES,
        COLUMNS,
        Requirement("some known labels (--knows labels=40)", lambda view: view.knowledge.labelled is not None),
    )
    inputs: Inputs = INPUTS
    head: Literal["both", "logistic", "spreading"] = Field("both", description="how the head learns; both: their mean")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        table, classes = guest_inputs(view, self.inputs), len(view.spec.classes)
        told = known_classes(view, table.rows)
        seen = sorted(int(label) for label in set(told[told >= 0]))
        values = np.zeros((len(table.rows), classes))
        if len(seen) > 1:  # with labels of one class there is nothing to learn
            x = _scaled(table.values)
            if self.head != "spreading":
                values[:, seen] += _logistic(x, told)
            if self.head != "logistic":
                values[:, seen] += _spreading(x, told)
        notes = {"known_labels": int((told >= 0).sum()), "known_classes": len(seen), "width": table.values.shape[1]}
        return {"labels": RowGuess(table.rows, values), "notes": notes}


def _scaled(values: Array) -> Array:
    """Columns that move, centred and of unit deviation over all rows."""
    deviation = values.std(axis=0)
    moves = deviation > 1e-9 * (1 + np.abs(values.mean(axis=0)))
    return (values[:, moves] - values[:, moves].mean(axis=0)) / deviation[moves]


def _logistic(x: Array, told: Array) -> Array:
    from sklearn.linear_model import LogisticRegression

    known = told >= 0
    return np.asarray(LogisticRegression(max_iter=1000).fit(x[known], told[known]).predict_proba(x))


def _spreading(x: Array, told: Array) -> Array:
    from sklearn.semi_supervised import LabelSpreading

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that no label reaches have no distribution: 0 / 0
        model = LabelSpreading(kernel="rbf", gamma=1 / x.shape[1], alpha=0.9, max_iter=200).fit(x, told)
    return np.nan_to_num(model.label_distributions_)
