"""Additive Gaussian noise on what a party sends about its features, or on the gradients that it sends back."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from defenses.base import ArrayDefense, Hook
from vflaudit.core.dataset import Array


class GaussianNoise(ArrayDefense):
    """Add independent Gaussian noise of deviation sigma to every number sent (no privacy guarantee is claimed)."""

    name: ClassVar[str] = "gaussian-noise"
    at: Literal["features_out", "gradients_out"] = Field(
        "features_out", description="which messages: those about features, or gradients at them"
    )
    sigma: float = Field(1.0, ge=0, description="deviation of the noise, in the units of the message")

    @property
    def hook(self) -> Hook:  # type: ignore[override]
        """Where it acts: the user's choice."""
        return self.at

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        return (values + self.sigma * rng.standard_normal(values.shape)).astype(values.dtype)
