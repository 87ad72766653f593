"""RAP's private transformations of features and labels (sections 2.1 and 2.3).

All algebra is float64; what goes over the wire is float32 like everywhere else. Matrices have independent standard
normal entries and no intercept, as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array


@dataclass(frozen=True, eq=False)
class FeatureTransform:
    """T_m: x -> x A, with a pseudo feature beside a client's only numeric column (2.3).

    The pseudo feature is drawn anew for every row that is transformed, at serving too, from the normal distribution
    with the training column's mean and variance.
    """

    matrix: Array
    pseudo: tuple[float, float] | None = None

    @classmethod
    def draw(cls, train: Array, rng: np.random.Generator, *, pseudo: bool) -> FeatureTransform:
        """A fresh transformation for a client whose training rows (already one-hot) are `train`."""
        width = train.shape[1]
        if width == 1 and pseudo:
            return cls(rng.standard_normal((2, 2)), (float(train.mean()), float(train.std())))
        return cls(rng.standard_normal((width, width)))

    def __call__(self, values: Array, rng: np.random.Generator) -> Array:
        """Transformed rows."""
        if self.pseudo is not None:
            mean, deviation = self.pseudo
            values = np.hstack([values, rng.normal(mean, deviation, (len(values), 1))])
        return values @ self.matrix


@dataclass(frozen=True, eq=False)
class NumericLabel:
    """T_Y for regression: the label and a pseudo label, projected by a 2x2 matrix (2.3).

    The paper draws A_Y once, whatever its condition. Decoding multiplies the two models' errors by A_Y^-1, so a
    nearly singular draw spoils the predictions; `condition` redraws until the condition number is at most that.
    """

    matrix: Array
    mean: float
    deviation: float

    @classmethod
    def draw(cls, train: Array, rng: np.random.Generator, *, condition: float | None = None) -> NumericLabel:
        """A fresh transformation for these training labels."""
        matrix = rng.standard_normal((2, 2))
        while condition is not None and np.linalg.cond(matrix) > condition:
            matrix = rng.standard_normal((2, 2))
        return cls(matrix, float(train.mean()), float(train.std()))

    def encode(self, labels: Array, rng: np.random.Generator) -> Array:
        """[Y, Y_p] A_Y, shape (rows, 2)."""
        pseudo = rng.normal(self.mean, self.deviation, len(labels))
        return np.stack([labels, pseudo], axis=1) @ self.matrix

    def decode(self, predictions: Array) -> Array:
        """The first column of y A_Y^-1."""
        return np.linalg.solve(self.matrix.T, predictions.T)[0]


@dataclass(frozen=True, eq=False)
class CategoricalLabel:
    """T_Y for classification: each of C classes becomes one of its own two of 2C codes, at random (2.3)."""

    codes: Array  # (classes, 2)

    @classmethod
    def draw(cls, classes: int, rng: np.random.Generator) -> CategoricalLabel:
        """A random assignment of 2C codes to C classes."""
        return cls(rng.permutation(2 * classes).reshape(classes, 2))

    def encode(self, labels: Array, rng: np.random.Generator) -> Array:
        """One of the two codes of each label, with equal probability."""
        return self.codes[labels, rng.integers(2, size=len(labels))]

    def decode(self, codes: Array) -> Array:
        """The class of each code."""
        owner = np.empty(self.codes.size, dtype=np.int64)
        owner[self.codes.ravel()] = np.repeat(np.arange(len(self.codes)), 2)
        return owner[codes]

    def merge(self, probabilities: Array) -> Array:
        """Class probabilities from code probabilities: the sum of a class's two codes."""
        return probabilities[:, self.codes].sum(axis=2)
