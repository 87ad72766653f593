"""The last step: logistic regression on the enriched data (IV-D, V-A f), and how useful it is (V-A d, e)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError

STEPS = 1000  # of the solver; the paper names no setting, all others are scikit-learn's


def fit_classifier(values: Array, labels: Array, classes: int) -> nn.Linear:
    """Logistic regression as a layer: its softmax gives scikit-learn's probabilities, zero for classes never seen."""
    if len(np.unique(labels)) < 2:
        raise InputError("the training rows of the active party have one class: logistic regression needs two")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(max_iter=STEPS).fit(values.astype(np.float64), labels)
    weights, offsets = fitted.coef_, fitted.intercept_
    if len(fitted.classes_) == 2:  # one score for two classes
        weights, offsets = np.vstack([np.zeros_like(weights), weights]), np.r_[0.0, offsets]
    layer = nn.Linear(values.shape[1], classes)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(-1e4)
        layer.weight[fitted.classes_] = torch.from_numpy(weights).float()
        layer.bias[fitted.classes_] = torch.from_numpy(offsets).float()
    return layer


def classification_utility(predictions: Array, labels: Array, prefix: str = "") -> dict[str, float]:
    """Accuracy (Breast Cancer) and the F1 scores of Table II (MIMIC-III; micro F1 is accuracy)."""
    if len(labels) == 0:
        return {}
    guess = predictions.argmax(axis=1)
    return {
        f"{prefix}accuracy": float((guess == labels).mean()),
        f"{prefix}f1_macro": float(f1_score(labels, guess, average="macro", zero_division=0)),
        f"{prefix}f1_weighted": float(f1_score(labels, guess, average="weighted", zero_division=0)),
    }


def cross_validated(values: Array, labels: Array, folds: int, seed: int) -> list[float]:
    """Accuracy of the classifier on each of k folds (Alg. 1, line 5; V-A e); fewer folds if a class is smaller."""
    smallest = int(np.unique(labels, return_counts=True)[1].min())
    if min(folds, smallest) < 2 or len(np.unique(labels)) < 2:
        return []
    splitter = StratifiedKFold(min(folds, smallest), shuffle=True, random_state=child_seed(seed, "folds") % 2**32)
    found = []
    for train, test in splitter.split(values, labels):
        layer = fit_classifier(values[train], labels[train], int(labels.max()) + 1)
        with torch.no_grad():
            scores = layer(torch.from_numpy(values[test].astype(np.float32))).numpy()
        found.append(float((scores.argmax(axis=1) == labels[test]).mean()))
    return found


def fold_utility(values: Array, labels: Array, folds: int | None, seed: int) -> Mapping[str, float]:
    """The mean over the folds, as Fig. 6 reports it."""
    found = [] if folds is None else cross_validated(values, labels, folds, seed)
    return {"fold_accuracy": float(np.mean(found))} if found else {}
