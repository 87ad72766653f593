"""Deliberately broken masks, as controls: what vFedSec's choice of fresh streams in Z_R is for. Never use them.

`reused-stream` starts every PRG stream over in each round, as long as a key lives (section 3 relies on a seed
that is never reset). `float-masks` adds Gaussian noise to real numbers instead of uniform numbers to Z_R (A.2).
Both give the right sums, so training does not show that anything is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.protocols.vfedsec.channel import Batch, Masked
from vflaudit.protocols.vfedsec.masks import Purpose, keystream


class ReusedStream(Masked):
    """Every round of a generation is masked with the same numbers."""

    def _masked(self, party: str, values: Array, group: Sequence[str], purpose: Purpose, batch: Batch) -> Array:
        return super()._masked(party, values, group, purpose, replace(batch, number=0))


class FloatMasked(Masked):
    """Pairwise Gaussian masks on real numbers. Messages are called noisy: nothing in them has to be decoded."""

    def _sum(
        self, kind: str, values: Mapping[str, Array], group: Sequence[str], purpose: Purpose, batch: Batch
    ) -> Array:
        noisy: list[Array] = []
        for party in group:
            with self.wire.computing(party):
                out = np.array(values[party], dtype=np.float64)
                for other in group:
                    if other != party:
                        sign = 1.0 if group.index(other) > group.index(party) else -1.0
                        key = self.rings[party].mask_key(other)
                        out += sign * gaussian_mask(key, out.shape, self.protocol.mask_deviation, batch.number, purpose)
            noisy.append(self.about_rows(party, "server", kind.replace("masked", "noisy"), out, batch))
        with self.wire.computing("server"):
            return np.stack(noisy).sum(axis=0)


def gaussian_mask(key: bytes, shape: tuple[int, ...], deviation: float, round: int, purpose: Purpose) -> Array:
    """Normal numbers from the pair's stream, by the inverse of their distribution function."""
    from scipy.special import ndtri

    uniform = np.empty(shape, dtype=np.uint64)
    keystream(key, uniform, round, purpose)
    return deviation * ndtri(((uniform >> np.uint64(11)) + 0.5) * 2.0**-53)
