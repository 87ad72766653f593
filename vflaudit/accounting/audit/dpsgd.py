"""DP-SGD with canaries in it: one real training run whose noise and sampling are put to the test.

A softmax regression (on random features, if asked for) is trained by DP-SGD on people and on m canaries, each of which
is in by a coin flip. What the run gives away about the canaries is what it may give away about a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vflaudit.accounting.events import SampledGaussian
from vflaudit.core.rates import finite
from vflaudit.errors import InputError, unknown

Array = np.ndarray
CanaryKind = Literal["gradient", "input"]


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters. Noise and rates are per step; the clip only sets the scale, so it is 1."""

    rate: float = 0.1
    sigma: float = 1.0
    steps: int = 100
    learning_rate: float = 2.0

    def event(self) -> SampledGaussian:
        """What accountants read."""
        return SampledGaussian(self.rate, self.sigma, self.steps)


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """One number per canary for each adversary, greater meaning "in"; which canaries were in; the model's accuracy.

    `iterates`: whoever sees every released step and knows the people, but neither the batches nor the coins (what the
    accountant protects against). `final`: whoever sees the last parameters only.
    """

    included: Array
    iterates: Array
    final: Array
    accuracy: float

    def of(self, adversary: Literal["iterates", "final"]) -> tuple[Array, Array]:
        """Scores of the canaries that were in, and of those that were out."""
        scores = self.iterates if adversary == "iterates" else self.final
        return scores[self.included], scores[~self.included]


def random_features(values: Array, width: int, rng: np.random.Generator) -> Array:
    """Rectified random projections of unit length, with an intercept: public, so they cost no privacy."""
    lifted = np.maximum(values @ rng.standard_normal((values.shape[1], width)), 0)
    lifted /= np.maximum(np.linalg.norm(lifted, axis=1, keepdims=True), 1e-12)
    return np.hstack([lifted, np.ones((len(lifted), 1))]) / np.sqrt(2)


def audit_dpsgd(
    features: Array,
    labels: Array,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    canaries: int = 500,
    kind: CanaryKind = "gradient",
) -> CanaryScores:
    """Train once with canaries.

    `gradient` canaries are Dirac: canary i's gradient is the clip at its own coordinate (Nasr et al. 2023; Steinke et
    al. 2023), the worst person the clip allows. `input` canaries are people with a wrong label, taken from the rows.
    """
    if kind not in get_args(CanaryKind):
        raise unknown("kind of canary", kind, get_args(CanaryKind))
    values, classes = finite("features", features, 2), int(labels.max()) + 1
    included = rng.random(canaries) < 0.5
    if kind == "gradient":
        if canaries > values.shape[1] * classes:
            raise InputError(f"canaries={canaries}: expected at most one per parameter ({values.shape[1] * classes})")
        places = rng.permutation(values.shape[1] * classes)[:canaries]
        rows, targets = values, np.eye(classes)[labels]
        odd_rows, odd_targets = values[:0], targets[:0]
    else:
        if canaries >= len(values):
            raise InputError(f"canaries={canaries}: expected fewer than the {len(values)} rows")
        chosen = rng.permutation(len(values)) < canaries
        wrong = (labels[chosen] + rng.integers(1, classes, canaries)) % classes
        rows, targets = values[~chosen], np.eye(classes)[labels[~chosen]]
        odd_rows, odd_targets = values[chosen], np.eye(classes)[wrong]
    model = np.zeros((values.shape[1], classes))
    evidence = np.zeros(canaries)
    scale = recipe.rate * len(rows)
    for _ in range(recipe.steps):
        errors = _clipped_errors(model, rows, targets)
        batch = rng.random(len(rows)) < recipe.rate
        present = included & (rng.random(canaries) < recipe.rate)
        total = rows[batch].T @ errors[batch]
        if kind == "gradient":
            total.ravel()[places[present]] += 1.0
        else:
            odd_errors = _clipped_errors(model, odd_rows, odd_targets)
            total += odd_rows[present].T @ odd_errors[present]
        released = total + recipe.sigma * rng.standard_normal(total.shape)
        surplus = released - recipe.rate * (rows.T @ errors)  # what people do not explain
        if kind == "gradient":
            seen, strength = surplus.ravel()[places], np.ones(canaries)
        else:
            strength = np.linalg.norm(odd_errors, axis=1) * np.linalg.norm(odd_rows, axis=1)
            seen = ((odd_rows @ surplus) * odd_errors).sum(axis=1) / np.maximum(strength, 1e-12)
        evidence += _log_ratio(seen, strength, recipe)
        model -= recipe.learning_rate / scale * released
    accuracy = float((np.argmax(rows @ model, axis=1) == targets.argmax(axis=1)).mean())
    if kind == "gradient":
        final = -model.ravel()[places]
    else:
        final = (_log_softmax(odd_rows @ model) * odd_targets).sum(axis=1)
    return CanaryScores(included, evidence, final, accuracy)


def _log_ratio(seen: Array, strength: Array, recipe: Recipe) -> Array:
    """Log-likelihood ratio of one step: a sampled shift of `strength` in Gaussian noise against none (best test)."""
    shift = (2 * seen * strength - strength**2) / (2 * recipe.sigma**2)
    if recipe.rate == 1:
        return shift
    return np.logaddexp(np.log1p(-recipe.rate), np.log(recipe.rate) + shift)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _clipped_errors(model: Array, rows: Array, targets: Array) -> Array:
    """Softmax minus target, shrunk so that no row's gradient (row times error) is longer than 1: exact clipping."""
    errors = np.exp(_log_softmax(rows @ model)) - targets
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(errors, axis=1)
    return errors / np.maximum(lengths, 1.0)[:, None]
