"""What a passive party could do to a representation before it sends it. None of it is in APC-VFL.

Each is a candidate remedy to be put on the privacy/utility plane; none is recommended before it has been attacked. A
narrower representation and the decorrelation penalty are parameters of the protocol: `passive_layers`, `decorrelation`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from defenses.base import ArrayDefense, Hook
from defenses.projection import LocalNoise
from vflaudit.core.dataset import Array


class RandomRotation(ArrayDefense):
    """Turn the representation by a private random rotation, drawn anew in every run.

    For protocols that send once: gradients that come back would have to be turned too.
    """

    name: ClassVar[str] = "random-rotation"
    hook: ClassVar[Hook] = "features_out"
    applies_to: ClassVar[tuple[str, ...]] = ("apc-vfl", "fedonce", "rap")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        seed = rng.bit_generator.seed_seq
        assert isinstance(seed, np.random.SeedSequence)
        fixed = np.random.default_rng(seed)  # from the start again: one rotation for all messages of a run
        q, r = np.linalg.qr(fixed.standard_normal((values.shape[1], values.shape[1])))
        return (values @ (q * np.sign(np.diag(r)))).astype(values.dtype)


class Quantisation(ArrayDefense):
    """Round every number of a message to one of 2^bits levels, evenly spaced over three deviations to either side."""

    name: ClassVar[str] = "quantisation"
    hook: ClassVar[Hook] = "features_out"
    bits: int = Field(1, ge=1, le=16, description="per number; 1 leaves its sign against the column's mean")

    def apply(self, values: Array, rng: np.random.Generator) -> Array:
        middle, reach = values.mean(axis=0), 3 * values.std(axis=0)
        width = np.where(reach > 0, 2 * reach / 2**self.bits, 1.0)
        level = np.floor((values - middle) / width).clip(-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)
        return (middle + (level + 0.5) * width * (reach > 0)).astype(values.dtype)


class RepresentationNoise(LocalNoise):
    """Clip each representation and add Gaussian noise for (epsilon, delta)-local privacy of the rows that are sent.

    Any two rows are neighbours. The guarantee is about the row that goes through the encoder; that the encoder was
    trained on the same rows is not covered by it.
    """

    name: ClassVar[str] = "representation-noise"
    hook: ClassVar[Hook] = "features_out"
    applies_to: ClassVar[tuple[str, ...]] = ("apc-vfl",)
