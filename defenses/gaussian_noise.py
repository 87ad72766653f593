"""Additive Gaussian noise on what a party sends about its features."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from defenses.base import ArrayDefense, Hook
from vflaudit.core.dataset import Array


class GaussianNoise(ArrayDefense):
    """Add independent Gaussian noise of deviation sigma to every feature message (no privacy guarantee is claimed)."""

    name: ClassVar[str] = "gaussian-noise"
    hook: ClassVar[Hook] = "features_out"
    sigma: float = Field(1.0, ge=0, description="deviation of the noise, in the units of the message")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        return (values + self.sigma * rng.standard_normal(values.shape)).astype(values.dtype)
