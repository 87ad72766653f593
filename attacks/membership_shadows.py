"""Shadows for membership attacks: the protocol trained again on halves of what the adversary has.

With the candidates among the rows (online), every candidate is in the training rows of half of the shadows and not in
those of the other half. Offline, shadows know nothing of the candidates: they are trained on the adversary's sample of
the population alone, and may be trained before there are any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attacks.membership_base import candidates, labels_of
from vflaudit.core.adversary import Rows
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.shadows import ShadowModels
from vflaudit.core.view import View
from vflaudit.errors import InputError

FEWEST = 20  # rows that a shadow trains on


@dataclass(frozen=True, eq=False)
class Shadows:
    """Shadow models, the rows they were trained on, and who is whose (shadows, rows).

    Online, the candidates come first among the rows.
    """

    models: ShadowModels
    rows: Rows
    members: Array

    def predict(self, features: Mapping[str, Array]) -> Array:
        """(shadows, rows, classes), or (shadows, rows) in a regression."""
        return self.models.predict(features)

    def inside(self, count: int, *, offline: bool) -> Array:
        """Which shadow trained on which of the `count` candidates."""
        return np.zeros((len(self.members), count), dtype=bool) if offline else self.members[:, :count]


# The last shadows, by everything that decides them: attacks on one run follow each other and share theirs.
_last: tuple[str, Shadows] | None = None


def train_shadows(view: View, count: int, seed: int, *, offline: bool = False) -> Shadows:
    """Shadows on random halves of the pool in complementary pairs, so that each row is in exactly half of them."""
    global _last
    rows = pool(view, offline=offline)
    labels = labels_of(rows)
    if len(labels) < 2 * FEWEST:
        raise InputError(f"shadows need at least {2 * FEWEST} rows to train on halves of them: there are {len(labels)}")
    members = halves(count, len(labels), stream(seed, "attack", "shadows"))
    seeds = [child_seed(seed, "attack", "shadows", place) for place in range(count)]
    key = _key(view, rows, members, seeds)
    if _last is None or _last[0] != key:
        _last = key, Shadows(view.spec.train_many(rows, members, seeds), rows, members)
    return _last[1]


def pool(view: View, *, offline: bool = False) -> Rows:
    """What shadows may train on: the candidates and the adversary's sample (no row twice), or the sample alone."""
    sample = view.knowledge.distribution
    if offline:
        if sample is None or sample.labels is None:
            raise InputError("offline shadows are trained on other rows of the population: --knows distribution=N")
        return sample
    own = candidates(view)
    if sample is None or sample.labels is None:
        return own
    parties, seen = list(own.features), set(_lines(own))
    new = np.array([line not in seen for line in _lines(sample)])
    features = {party: np.concatenate([own.features[party], sample.features[party][new]]) for party in parties}
    return Rows(features, labels=np.concatenate([labels_of(own), sample.labels[new]]))


def halves(shadows: int, rows: int, rng: np.random.Generator) -> Array:
    """(shadows, rows): random halves, every second line the complement of the one before."""
    order = rng.random((shadows // 2, rows)).argsort(axis=1)
    chosen = order < rows // 2
    return np.stack([chosen, ~chosen], axis=1).reshape(-1, rows)


def _lines(rows: Rows) -> list[bytes]:
    """Every row as bytes, in the order of its parties' names."""
    table = np.hstack([rows.features[party] for party in sorted(rows.features)])
    return [line.tobytes() for line in np.ascontiguousarray(table)]


def _key(view: View, rows: Rows, members: Array, seeds: list[int]) -> str:
    digest = hashlib.sha256(f"{view.spec}{seeds}".encode())
    for array in (*(rows.features[party] for party in sorted(rows.features)), labels_of(rows), members):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
