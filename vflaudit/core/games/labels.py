"""Label inference: guess the labels of training rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import LabeledSamples
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.core.view import View
from vflaudit.errors import InputError


class LabelInference(Game):
    """Guess the class of every training row; scored by (macro) AUC against priors and the attacker's own columns."""

    name: ClassVar[str] = "label-inference"
    metric: ClassVar[str] = "auc"

    def score(self, run: Run, guess: Guess) -> Score:
        """`guess.labels.values` are scores (rows, classes), or (rows,) for the second of two classes."""
        if run.data.task != "classification":
            raise InputError(f"label inference needs classes; {run.data.name!r} is a regression dataset")
        if run.data.label_owner in guess.adversary.corrupts:
            raise InputError(f"{run.data.label_owner!r} holds the labels and is corrupted: they are no secret")
        if guess.labels is None:
            raise InputError(f"attack {guess.attack!r} made no guess about labels")
        known = [item.rows(run) for item in guess.adversary.knows if isinstance(item, LabeledSamples)]
        rows = np.setdiff1d(run.data.aligned("train"), np.concatenate(known) if known else [])
        labels, classes = run.data.labels[rows], len(run.data.classes)
        attack = _scores(run, guess, rows, classes)
        value, influence = stats.macro_auc_influence(labels, attack)
        baseline, baseline_influence, source = _baseline(run, guess, rows, labels)
        rarest = int(np.unique(labels, return_counts=True)[1].min())
        interval = stats.difference_interval(value - baseline, influence - baseline_influence, smaller_class=rarest)
        return self._score(
            guess,
            party=run.data.label_owner,
            score=value,
            baseline=baseline,
            interval=interval,
            rows=len(rows),
            metrics=_metrics(run, labels, attack, value) | {"baseline_source": source},
        )


def _metrics(run: Run, labels: Array, scores: Array, value: float) -> dict[str, Any]:
    hits = stats.category_accuracy(np.eye(scores.shape[1])[labels], scores)
    prior = np.bincount(labels).max() / len(labels)
    rng = stream(run.seed, "score", LabelInference.name)
    return {
        "auc": value,
        "accuracy": float(hits.mean()),
        "accuracy_interval": list(stats.bootstrap_mean_interval(hits, rng, bounds=(0, 1))),
        "majority_class": float(prior),
    }


def _scores(run: Run, guess: Guess, rows: Array, classes: int) -> Array:
    assert guess.labels is not None
    values = np.asarray(guess.labels.values, dtype=np.float64)
    if values.ndim == 1 and classes == 2:
        values = np.stack([-values, values], axis=1)
    if values.ndim != 2 or values.shape[1] != classes:
        raise InputError(f"attack {guess.attack!r} scored {values.shape[1:]} classes per row, expected {classes}")
    out = np.zeros((len(rows), classes))
    at = guess.labels.places(run, rows)
    out[at[at >= 0]] = values[at >= 0]
    return out


def _baseline(run: Run, guess: Guess, rows: Array, labels: Array) -> tuple[float, Array, str]:
    """The best of the class prior (AUC 0.5), a classifier on own columns from labels known beforehand, and own columns.

    Columns that go with the label separate two classes without any label: their first principal component does, in the
    better of its two directions. Which of them that is the adversary may not know, so this is if anything too good.
    """
    best, influence, source = 0.5, np.zeros(len(rows)), "class prior"
    view, classes = run.view(guess.adversary, messages=False), len(run.data.classes)
    own = view.own_columns()[rows]
    tried = [
        (name, _classify(x, y, own, classes)) for name, x, y in _examples(view) if x.shape[1] and len(np.unique(y)) > 1
    ]
    along = _first_component(view, rows) if classes == 2 else None
    if along is not None:
        tried += [("own columns alone", np.stack([-way, way], axis=1)) for way in (along, -along)]
    for name, scores in tried:
        value, effect = stats.macro_auc_influence(labels, scores)
        if value > best:
            best, influence, source = value, effect, name
    return best, influence, source


def _first_component(view: View, rows: Array) -> Array | None:
    """Along the direction in which the standardised own columns differ most; zero for rows that are not held."""
    held = [(state.features[rows], state.present[rows]) for state in view.states.values()
            if state.features is not None and state.present is not None]  # fmt: skip
    if not held:
        return None
    own, here = np.hstack([values for values, _ in held]), np.logical_and.reduce([present for _, present in held])
    if here.sum() < 2 or not own.shape[1]:
        return None
    centred, spread = own[here] - own[here].mean(axis=0), own[here].std(axis=0)
    left, scale, _ = np.linalg.svd(centred / np.where(spread > 0, spread, 1.0), full_matrices=False)
    along = np.zeros(len(rows))
    along[here] = left[:, 0] * scale[0]
    return along


def _examples(view: View) -> list[tuple[str, Array, Array]]:
    found = []
    if view.knowledge.distribution is not None and view.knowledge.distribution.labels is not None:
        pool = view.knowledge.distribution
        assert pool.labels is not None
        found.append(("own columns, distribution sample", view.own_pool_columns(pool), pool.labels))
    if view.knowledge.labelled is not None:
        handles, y = view.knowledge.labelled
        found.append(("own columns, known labels", view.own_columns()[handles], y))
    return found


def _classify(x: Array, y: Array, new: Array, classes: int) -> Array:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    out = np.zeros((len(new), classes))
    out[:, model[-1].classes_] = model.predict_proba(new)
    return out
