"""Predicting one table from another out of a few examples: the learners behind attacks and baselines.

Every learner reports an honest error from the examples themselves (leave-one-out in closed form, or k-fold), so that
the best one is chosen without ever seeing the rows that are scored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array

Predictor = Callable[[Array], Array]
KERNEL_LIMIT = 2000  # rows; kernel ridge needs the eigenvalues of a rows x rows matrix


@dataclass(frozen=True)
class Fit:
    """A fitted learner and the squared errors it made on examples it had not seen, shape (examples, targets)."""

    name: str
    predict: Predictor
    errors: Array

    @property
    def mse(self) -> float:
        """Mean over targets of the held-out error."""
        return float(self.errors.mean())


def _moves(x: Array) -> Array:
    """Columns that move in three examples or more; the others are left out.

    A unit that is active for one example only is fitted to that example's noise, which no left-out example shows, and
    blows up on new rows.
    """
    often = (x != np.median(x, axis=0)).sum(axis=0) >= min(3, len(x) - 1)
    return often & (x.std(axis=0) > 1e-9 * (1 + np.abs(x.mean(axis=0))))


def _common_scale(x: Array) -> Predictor:
    """Centre, and scale all columns by one factor: units of a layer are comparable, rarely active ones stay small."""
    mean, usable = x.mean(axis=0), _moves(x)
    size = np.sqrt(np.mean((x - mean) ** 2)) or 1.0
    return lambda new: (new - mean) * (usable / size)


def _own_scale(x: Array) -> Predictor:
    """Centre and scale each column by itself."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=_moves(x))
    return lambda new: (new - mean) * scale


SCALES: dict[str, Callable[[Array], Predictor]] = {"": _common_scale, ", columns scaled": _own_scale}


def constant(y: Array, mean: Array | None = None) -> Fit:
    """Always the mean: the given one if it is known exactly, otherwise that of the examples."""
    count = len(y)
    if mean is not None:
        return Fit("mean", lambda new: np.broadcast_to(mean, (len(new), y.shape[1])), (y - mean) ** 2)
    average = y.mean(axis=0)
    inflate = (count / (count - 1)) ** 2 if count > 1 else 4.0
    return Fit("mean", lambda new: np.broadcast_to(average, (len(new), y.shape[1])), (y - average) ** 2 * inflate)


def kernel_ridge(x: Array, y: Array, kind: str, scaling: str = "") -> Fit:
    """Ridge regression in dual form with exact leave-one-out errors; strength and width picked by them per target.

    With G = K + lambda I, the leave-one-out residuals are (G^-1 y) / diag(G^-1); one eigendecomposition of K per kernel
    gives them for all strengths at once. Restricting K and y to the complement of the constant vector is centring them,
    which absorbs the intercept.
    """
    from scipy.linalg import helmert

    if len(x) > KERNEL_LIMIT:
        x, y = x[:KERNEL_LIMIT], y[:KERNEL_LIMIT]
    scale = SCALES[scaling](x)
    inputs, mean = scale(x), y.mean(axis=0)
    count, centred = len(x), y - mean
    options = [("linear", 0.0)] if kind == "linear" else [("rbf", gamma) for gamma in (0.01, 0.1, 0.3, 1.0)]
    strengths = np.logspace(-9, 4, 27)
    errors = constant(y).errors.copy()  # the mean, unless something beats it
    best = errors.mean(axis=0)
    basis = helmert(count).T  # orthonormal, and orthogonal to the constant vector: this is what centring leaves
    chosen: list[tuple[tuple[str, float], Array]] = [(options[0], np.zeros(count)) for _ in range(y.shape[1])]
    for option in options:
        values, within = np.linalg.eigh(basis.T @ _kernel(option, inputs, inputs) @ basis)
        if values[-1] < 1e-12:  # all examples look alike
            continue
        values, vectors = np.maximum(values, 0.0), basis @ within
        rotated, squared = vectors.T @ centred, vectors**2
        for strength in strengths * values[-1]:
            inverse = 1.0 / (values + strength)
            weights = vectors @ (inverse[:, None] * rotated)
            residual = weights / (squared @ inverse)[:, None]
            loss = (residual**2).mean(axis=0)
            for target in np.flatnonzero(loss < best):
                best[target], errors[:, target] = loss[target], residual[:, target] ** 2
                chosen[target] = (option, weights[:, target])

    def predict(new: Array) -> Array:
        out = np.empty((len(new), y.shape[1]))
        fresh = scale(new)
        for option in {choice for choice, _ in chosen}:
            targets = [t for t, (choice, _) in enumerate(chosen) if choice == option]
            weights = np.stack([chosen[t][1] for t in targets], axis=1)
            gram = _kernel(option, inputs, inputs)
            offset = gram.mean(axis=0) @ weights  # centring of the kernel between examples and new rows
            out[:, targets] = _kernel(option, fresh, inputs) @ (weights - weights.mean(axis=0)) + (
                mean[targets] - offset + gram.mean() * weights.sum(axis=0)
            )
        return out

    return Fit(("ridge" if kind == "linear" else "kernel ridge") + scaling, predict, errors)


def _kernel(option: tuple[str, float], a: Array, b: Array) -> Array:
    kind, gamma = option
    product = a @ b.T
    if kind == "linear":
        return product
    distance = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * product
    return np.exp(-gamma / max(1, a.shape[1]) * np.maximum(distance, 0.0))


def linear_ridge(x: Array, y: Array) -> Fit:
    """Ridge regression in primal form for many examples (scikit-learn's leave-one-out)."""
    from sklearn.linear_model import RidgeCV

    scale = _own_scale(x)
    model = RidgeCV(alphas=np.logspace(-6, 6, 25), alpha_per_target=True).fit(scale(x), y)
    # RidgeCV keeps the mean leave-one-out error per target; spread it over the examples for the error bars
    residual = (y - model.predict(scale(x)).reshape(y.shape)) ** 2
    loo = -np.atleast_1d(model.best_score_)
    inflate = loo / np.maximum(residual.mean(axis=0), 1e-300)
    return Fit("ridge", lambda new: model.predict(scale(new)).reshape(len(new), -1), residual * inflate)


def mlp(x: Array, y: Array, seed: int, folds: int = 5) -> Fit:
    """A small multi-layer perceptron (scikit-learn), its error by k-fold cross-validation."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import KFold
    from sklearn.neural_network import MLPRegressor

    scale, level = _common_scale(x), _own_scale(y)
    inputs, targets = scale(x), level(y)
    deviation = y.std(axis=0)

    def fitted(rows: Array) -> MLPRegressor:
        small = len(rows) <= 500
        model = MLPRegressor(
            hidden_layer_sizes=(64,),
            solver="lbfgs" if small else "adam",
            alpha=1e-2,
            max_iter=200 if small else 60,
            random_state=seed % 2**32,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(inputs[rows], targets[rows] if y.shape[1] > 1 else targets[rows, 0])

    errors = np.zeros_like(y)
    for train, held in KFold(folds, shuffle=True, random_state=seed % 2**32).split(inputs):
        guess = fitted(train).predict(inputs[held]).reshape(len(held), -1)
        errors[held] = ((guess - targets[held]) * deviation) ** 2
    model, mean = fitted(np.arange(len(x))), y.mean(axis=0)
    return Fit("mlp", lambda new: model.predict(scale(new)).reshape(len(new), -1) * deviation + mean, errors)


def fits(x: Array, y: Array, seed: int, *, learners: Sequence[str] = ("ridge", "kernel", "mlp")) -> list[Fit]:
    """All learners that make sense for this many examples."""
    found: list[Fit] = []
    if x.shape[1] == 0 or len(x) < 3:
        return found
    few = len(x) <= KERNEL_LIMIT
    if "ridge" in learners:
        found += [kernel_ridge(x, y, "linear", scaling) for scaling in SCALES] if few else [linear_ridge(x, y)]
    if "kernel" in learners:
        found += [kernel_ridge(x, y, "rbf", scaling) for scaling in SCALES]
    if "mlp" in learners and len(x) >= 20:
        found.append(mlp(x, y, seed))
    return found
