"""What membership attacks share: the released model, the candidates, and how sure a model is of a true label."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from attacks.base import Attack, Requirement
from vflaudit.core.adversary import Rows
from vflaudit.core.dataset import Array
from vflaudit.core.run import Model
from vflaudit.core.view import View

MODEL = Requirement("the trained model (--knows model=black-box)", lambda view: view.knowledge.model is not None)
CANDIDATES = Requirement(
    "candidates with their labels from a game of membership",
    lambda view: view.challenge is not None and view.challenge.labels is not None,
)
POPULATION = Requirement(
    "other rows of the same population (--knows distribution=200)",
    lambda view: view.knowledge.distribution is not None and view.knowledge.distribution.labels is not None,
)
SATURATED = float(np.finfo(np.float64).eps)  # stands for a probability that was rounded to zero


class MembershipAttack(Attack):
    """An attack that queries the released model about candidates."""

    games: ClassVar[tuple[str, ...]] = ("membership",)
    requires: ClassVar[tuple[Requirement, ...]] = (MODEL, CANDIDATES)


def released(view: View) -> Model:
    """The model under attack."""
    assert isinstance(view.knowledge.model, Model)
    return view.knowledge.model


def candidates(view: View) -> Rows:
    """The rows to tell apart."""
    assert view.challenge is not None and view.challenge.labels is not None
    return Rows(view.challenge.features, labels=view.challenge.labels)


def labels_of(rows: Rows) -> Array:
    """The labels of rows that have them."""
    assert rows.labels is not None
    return rows.labels


def losses(predicted: Array, labels: Array, task: str) -> Array:
    """Cross-entropy of every row, or its squared error; a stack of models keeps its first axis."""
    predicted = np.asarray(predicted, dtype=np.float64)
    if task == "classification":
        chance = predicted[..., np.arange(len(labels)), labels]
        return -np.log(np.maximum(chance, np.finfo(np.float64).tiny))
    return (predicted - labels) ** 2


def margins(predicted: Array, labels: Array, task: str) -> Array:
    """log p(y) - log(sum of the others), or the signed residual; a stack of models keeps its first axis.

    The first is the stable form of the logit of the true class (Carlini et al., S&P 2022): the others are
    summed and not taken as 1 - p(y), which rounds to zero long before. It is close to normal over models, as is the
    residual of a regression.
    """
    predicted = np.asarray(predicted, dtype=np.float64)
    if task != "classification":
        return predicted - labels
    true = labels[:, None] == np.arange(predicted.shape[-1])
    chance, others = (predicted * true).sum(axis=-1), (predicted * ~true).sum(axis=-1)
    chance, others = (np.where(part > 0, part, SATURATED) for part in (chance, others))
    return np.log(chance) - np.log(others)


def confidence(predicted: Array, labels: Array, task: str) -> Array:
    """Higher is surer: the margin, or minus the log of the absolute residual."""
    signed = margins(predicted, labels, task)
    return signed if task == "classification" else -np.log(np.abs(signed) + SATURATED)


def share_above(values: Array) -> Array:
    """For each row the share of rows with a greater value, equal ones counting half."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return 1 - below / (2 * len(values))
