"""Undoing per-row random signs: T = diag(s) X A. Norms, leverages and squared products do not notice signs.

Which sign a known row got follows from linear algebra. What the map then gives of any other row is right up to its
sign, and people of the population say which of x and -x is more like a person.
"""

from __future__ import annotations

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.view import View

DEFENSE = "random-signs"
PENALTIES = (0.01, 0.1, 1.0, 10.0)  # inverse strengths of the ridge that are tried


def turned(view: View) -> bool:
    """Whether the public parameters say that rows have random signs."""
    return any(defense["name"] == DEFENSE for defense in view.spec.parameters.get("defenses", ()))


def find_signs(sent: Array, known: Array) -> Array | None:
    """Signs s with diag(s) sent R = known for some R, up to one common sign; None if the rows are too few.

    What is orthogonal to all columns of `sent` is orthogonal to diag(s) known: linear equations in s. With the
    projector P on that complement their squared residual is s'(P o known known')s (o is the product by entries), whose
    smallest eigenvector is s. F columns need F + 2 rows, so that one is left over.
    """
    left, sizes, _ = np.linalg.svd(sent, full_matrices=False)
    basis = left[:, sizes > max(sizes[0], 1e-300) * 1e-6]
    if len(sent) < basis.shape[1] + 2:
        return None
    scaled = known / np.maximum(known.std(axis=0), 1e-300)
    residual = (np.eye(len(sent)) - basis @ basis.T) * (scaled @ scaled.T)
    vector = np.linalg.eigh(residual)[1][:, 0]
    return np.where(vector < 0, -1.0, 1.0)


def upright(values: Array, examples: Array, seed: int) -> Array:
    """The mean of x and -x, weighed by which is more likely a person: rows that look alike both ways get zero.

    An odd logistic model, fitted to tell examples from their mirror images; the ridge is chosen by cross-validation, in
    which an example and its mirror image stay together, and 'no idea' is one of the choices.
    """
    if len(examples) < 4:
        return np.zeros_like(values)
    scale = np.maximum(np.sqrt((examples**2).mean(axis=0)), 1e-300)
    odd = _odd(examples / scale)
    fold = np.random.default_rng(seed).permutation(len(odd)) % min(5, len(odd))
    best, penalty = np.log(2.0), None
    for choice in PENALTIES:
        loss = np.concatenate(
            [np.logaddexp(0, -odd[fold == part] @ _fit(odd[fold != part], choice)) for part in range(fold.max() + 1)]
        )
        # few examples are easily lucky: the gain must be more than a standard error
        if loss.mean() < best and loss.mean() + loss.std() / np.sqrt(len(loss)) < np.log(2.0):
            best, penalty = float(loss.mean()), choice
    if penalty is None:
        return np.zeros_like(values)
    lean = np.tanh(_odd(values / scale) @ _fit(odd, penalty) / 2)  # the chance of x less that of -x
    return values * lean[:, None]


def _odd(values: Array) -> Array:
    """Odd functions of each column: the value drawn in, the middle, the tails; and of all columns by their size."""
    size = np.log1p((values**2).mean(axis=1, keepdims=True))
    drawn = values / np.sqrt(1 + values**2 / 9)
    return np.hstack([drawn, np.tanh(2 * values), values**3 / (1 + values**2) / 3, drawn * size])


def _fit(odd: Array, penalty: float) -> Array:
    """Weights w that make the logarithm of the odds of x against -x the number odd(x) w."""
    from sklearn.linear_model import LogisticRegression

    both, labels = np.vstack([odd, -odd]), np.repeat([1, 0], len(odd))
    return LogisticRegression(C=penalty, fit_intercept=False, max_iter=1000).fit(both, labels).coef_[0]
