"""How good a model and its latent vectors are: the evaluation pipeline of Fig. 4 (V-B), and what a run leaves behind.

run = TabVFL().run(data)
quality = latent_quality(run, seed=0)
quality.mean["f1"], quality.models["random forest"]["roc_auc"]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import child_seed
from vflaudit.core.run import Model, PartyState, Run
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.networks import utility_of
from vflaudit.protocols.training import Labels

if TYPE_CHECKING:
    from vflaudit.protocols.tabvfl.protocol import TabVFL

METRICS = ("accuracy", "f1", "roc_auc")


@dataclass(frozen=True)
class LatentQuality:
    """Accuracy, weighted F1 and weighted one-against-rest ROC-AUC of every model."""

    models: Mapping[str, Mapping[str, float]]

    @property
    def mean(self) -> dict[str, float]:
        """The mean over the models, which is what the paper reports for a run."""
        return {metric: float(np.mean([scores[metric] for scores in self.models.values()])) for metric in METRICS}


def classical_models(seed: int) -> dict[str, Any]:
    """The six models of V-B with their libraries' defaults; without XGBoost where it is not installed."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import LinearSVC
    from sklearn.tree import DecisionTreeClassifier

    models: dict[str, Any] = {
        "logistic regression": LogisticRegression(random_state=seed),
        "decision tree": DecisionTreeClassifier(random_state=seed),
        "random forest": RandomForestClassifier(random_state=seed),
        "mlp": MLPClassifier(random_state=seed),
        # a linear SVM has no probabilities of its own to draw a ROC curve with; the authors calibrate it like this
        "linear svm": CalibratedClassifierCV(LinearSVC(random_state=seed), method="sigmoid"),
    }
    try:
        from xgboost import XGBClassifier
    except ImportError:
        return models
    return {**models, "xgboost": XGBClassifier(random_state=seed, n_jobs=1)}


def evaluate_latent(latent: Array, labels: Array, seed: int = 0) -> LatentQuality:
    """Split the latent set 70/30 at random (stratified, as in the authors' code), fit each model, score the rest."""
    from sklearn.model_selection import train_test_split

    classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2 or counts.min() < 8:
        raise InputError("the evaluation pipeline needs two classes or more with eight rows each")
    number = child_seed(seed, "tabvfl", "evaluation") % 2**31
    train, test, train_codes, test_codes = train_test_split(
        latent, codes, test_size=0.3, random_state=number, stratify=codes
    )
    found = {}
    for name, model in classical_models(number).items():
        with warnings.catch_warnings():  # the defaults stop some models before they converge, in the paper too
            warnings.simplefilter("ignore")
            model.fit(train, train_codes)
        found[name] = scores(model.predict_proba(test), test_codes)
    return LatentQuality(found)


def scores(probabilities: Array, codes: Array) -> dict[str, float]:
    """The three metrics of one model."""
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    predicted = probabilities.argmax(axis=1)
    if probabilities.shape[1] == 2:
        auc = roc_auc_score(codes, probabilities[:, 1])
    else:
        auc = roc_auc_score(codes, probabilities, average="weighted", multi_class="ovr")
    f1 = f1_score(codes, predicted, average="weighted")
    return {"accuracy": float(accuracy_score(codes, predicted)), "f1": float(f1), "roc_auc": float(auc)}


def latent_quality(run: Run, seed: int = 0) -> LatentQuality:
    """The evaluation pipeline on a run of TabVFL or a baseline: all rows' latent vectors are at the host."""
    secrets = run.states[HOST].secrets
    if run.data.task != "classification" or "latent" not in secrets:
        raise InputError("the evaluation pipeline is for classes, and for runs of tabvfl and its variants")
    return evaluate_latent(secrets["latent"], run.data.labels[secrets["latent_rows"]], seed)


def validation_score(outputs: torch.Tensor, labels: Labels, data: VerticalDataset, rows: Array) -> float:
    """What early stopping looks at in fine-tuning: weighted F1 (the authors' code), or minus the squared error."""
    from sklearn.metrics import f1_score

    if data.task == "regression":
        return -float(labels.loss(outputs, rows))
    return float(f1_score(data.labels[rows], outputs.argmax(dim=1).numpy(), average="weighted"))


def outcome(
    protocol: TabVFL,
    session: Session,
    states: Mapping[str, PartyState],
    model: Model,
    rows: Array,
    latent: Array,
    predictions: Array,
    notes: Mapping[str, float],
) -> Outcome:
    """What a run leaves behind: the model, its utility, and the latent vectors of all rows at the host."""
    data, utility = session.data, dict(notes)
    for part, prefix in (("validation", "validation_"), ("test", "")):
        chosen = np.isin(rows, data.aligned(part))
        if chosen.any():
            useful = utility_of(predictions[chosen], data.labels[rows[chosen]], data.task)
            utility |= {f"{prefix}{name}": value for name, value in useful.items()}
    if protocol.evaluate:
        if data.task != "classification":
            raise InputError("evaluate=True is for classes (V-B): the dataset's label is a number")
        quality = evaluate_latent(latent, data.labels[rows], session.seed)
        utility |= {f"latent_{name}": value for name, value in quality.mean.items()}
    host = replace(states[HOST], secrets={"latent": latent, "latent_rows": rows})
    return Outcome({**states, HOST: host}, model, utility)
