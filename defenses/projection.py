"""What RAP's clients could do instead of, or besides, a random square projection. None of it is in the paper.

Each is a candidate remedy to be put on the privacy/utility plane; none is recommended before it has been attacked.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from defenses.base import ArrayDefense, Hook
from vflaudit.accounting.gaussian import gaussian_deviation
from vflaudit.core.dataset import Array


class LocalNoise(ArrayDefense):
    """Clip each row and add Gaussian noise for (epsilon, delta)-local privacy before the projection."""

    name: ClassVar[str] = "local-noise"
    hook: ClassVar[Hook] = "features_in"
    applies_to: ClassVar[tuple[str, ...]] = ("rap",)
    epsilon: float = Field(10.0, gt=0, description="per client and row; any two rows are neighbours")
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float | None = Field(None, gt=0, description="norm of a row; none: the root of the number of columns")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        bound = self.clip or float(np.sqrt(values.shape[1]))
        norms = np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300)
        clipped = values * np.minimum(1.0, bound / norms)
        return clipped + rng.normal(0.0, gaussian_deviation(2 * bound, self.epsilon, self.delta), values.shape)


class FewerDimensions(ArrayDefense):
    """Send only some columns of the projection, so that no linear map can undo it."""

    name: ClassVar[str] = "fewer-dimensions"
    hook: ClassVar[Hook] = "features_out"
    applies_to: ClassVar[tuple[str, ...]] = ("rap",)
    share: float = Field(0.5, gt=0, le=1, description="of the columns to keep, at least one")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        return values[:, : max(1, round(self.share * values.shape[1]))]


class RandomSigns(ArrayDefense):
    """Turn the sign of each projected row at random: linear maps are lost, norms and squared products are not."""

    name: ClassVar[str] = "random-signs"
    hook: ClassVar[Hook] = "features_out"
    applies_to: ClassVar[tuple[str, ...]] = ("rap",)

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        return (values * rng.choice([-1.0, 1.0], (len(values), 1))).astype(values.dtype)


class RandomFeatures(ArrayDefense):
    """Private random Fourier features cos(x W + b) before the projection: the same idea, but not linear."""

    name: ClassVar[str] = "random-features"
    hook: ClassVar[Hook] = "features_in"
    applies_to: ClassVar[tuple[str, ...]] = ("rap",)
    per_column: float = Field(2.0, gt=0, description="random features per column")
    bandwidth: float = Field(1.0, gt=0, description="larger is closer to linear")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        columns = values.shape[1]
        width = max(2, round(self.per_column * columns))
        weights = rng.standard_normal((columns, width)) / (self.bandwidth * np.sqrt(columns))
        return np.sqrt(2.0) * np.cos(values @ weights + rng.uniform(0, 2 * np.pi, width))


class DecoyColumns(ArrayDefense):
    """Append other people's rows as decoy columns before the projection: distributed like the data, unrelated to it."""

    name: ClassVar[str] = "decoy-columns"
    hook: ClassVar[Hook] = "features_in"
    applies_to: ClassVar[tuple[str, ...]] = ("rap",)
    copies: int = Field(1, ge=1, description="decoy columns for every real one")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        return np.hstack([values, *[values[rng.permutation(len(values))] for _ in range(self.copies)]])
