"""Telling a column from the pseudo feature that hides it (RAP section 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.scale import COLUMN_KNOWLEDGE, ColumnFacts, calibrate, one_column_victims
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import SentTable, View
from vflaudit.errors import InputError

CONTRAST_ROWS = 20_000  # more rows sharpen nothing that a grid of a quarter of a degree could show
SKEW_WEIGHT, PEAK_WEIGHT = 36 / (8 * np.sqrt(3) - 9), 24 / (16 * np.sqrt(3) - 27)  # Hyvarinen 1998


@dataclass(frozen=True, eq=False)
class Stripped:
    """Directions w such that table @ w is the column up to scale, their probabilities, and the evidence for the best.

    `evidence` is how much each source prefers the best direction to the one at a right angle, in nats.
    """

    directions: Array
    probabilities: Array
    evidence: Mapping[str, float]

    @property
    def best(self) -> Array:
        """The most probable direction."""
        return self.directions[int(self.probabilities.argmax())]

    @property
    def decided_by(self) -> str:
        """The strongest evidence."""
        return max(self.evidence, key=lambda name: self.evidence[name])


class PseudoFeatureStripping(FeatureAttack):
    """Find the real column in [x, pseudo] A (RAP 2.3): the pseudo feature is Gaussian, independent, of equal moments.

    After whitening, x is one direction of a plane and the pseudo feature the one at a right angle. Three things tell
    which, and their log-likelihoods add up:
    - correlation: N I(x; others), as only x can depend on other clients' tables and on the (transformed) labels;
    - shape: N times the negentropy of x, as only x can differ from a Gaussian;
    - 45 degrees: x and its pseudo feature share mean and variance (2.3 draws one from the other's moments), so the
      whitened mean lies half way between their axes. That needs a mean, hence columns that are not standardised.
    What is left is the safe case of the paper: an independent Gaussian column with mean zero, where every direction is
    as good as another; with a mean, two candidates remain. The guess is the mean over all directions by probability.
    """

    name: ClassVar[str] = "pseudo-feature-stripping"
    requires: ClassVar[tuple[Requirement, ...]] = (COLUMN_KNOWLEDGE,)
    directions: int = Field(720, ge=8, description="directions that are tried over half a turn")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {"decided_by": {}, "evidence": {}, "scale_from": {}, "sign_odds": {}}
        for party in one_column_victims(self, view, 2):
            table, facts = view.table_of(party), ColumnFacts.of(view, party)
            values = table.values.astype(np.float64)
            stripped = self.strip(values, others(view, party, table))
            guess = np.zeros(len(values))
            likely = stripped.probabilities > 1e-4
            for direction, probability in zip(
                stripped.directions[likely],
                stripped.probabilities[likely] / stripped.probabilities[likely].sum(),
                strict=True,
            ):
                signal = values @ direction
                guess += probability * calibrate(signal, facts).guess(signal, facts)
            features[party] = RowGuess(table.rows, guess[:, None], shuffled=table.shuffled)
            scale = calibrate(values @ stripped.best, facts)
            notes["decided_by"][party], notes["evidence"][party] = stripped.decided_by, dict(stripped.evidence)
            notes["scale_from"][party], notes["sign_odds"][party] = scale.source, scale.sign
        return {"features": features, "notes": notes}

    def strip(self, table: Array, others: Array) -> Stripped:
        """The direction of the real column in a table [x, pseudo] A of two columns, given other columns of the rows.

        The same for a numeric label and its pseudo label.
        """
        if table.ndim != 2 or table.shape[1] != 2 or len(table) < 4:
            raise InputError(f"a column and its pseudo feature are a table of two columns, not {table.shape}")
        mean = table.mean(axis=0)
        _, size, axes = np.linalg.svd(table - mean, full_matrices=False)
        if size[1] < 1e-6 * size[0]:
            raise InputError("the transformed table has rank one: it holds no pseudo feature")
        whiten = axes.T / size * np.sqrt(len(table))
        angles = np.arange(self.directions) * np.pi / self.directions
        turns = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        white = (table - mean) @ whiten
        scores = {
            "correlation": _correlation(white, others, turns),
            "shape": _shape(white, turns),
            "45 degrees": _bisector(mean @ whiten, turns, len(table)),
        }
        total = np.sum(list(scores.values()), axis=0)
        best, across = int(total.argmax()), (int(total.argmax()) + self.directions // 2) % self.directions
        evidence = {name: float(score[best] - score[across]) for name, score in scores.items()}
        odds = np.exp(total - total.max())
        return Stripped((whiten @ turns.T).T, odds / odds.sum(), evidence)


def _correlation(white: Array, others: Array, turns: Array) -> Array:
    """N I(x; others) under a Gaussian model: -N/2 log(1 - R^2), corrected for the number of columns."""
    count = len(white)
    centred = others - others.mean(axis=0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    basis = left[:, size > max(size[0] * 1e-6, 1e-300)] if size.size else left
    free = count - basis.shape[1] - 1
    if basis.shape[1] == 0 or free < 2:
        return np.zeros(len(turns))
    explained = ((basis.T @ white @ turns.T) ** 2).sum(axis=0) / count
    adjusted = 1 - (1 - explained) * (count - 1) / free
    return -free / 2 * np.log1p(-np.clip(adjusted, 0.0, 1 - 1e-9))


def _shape(white: Array, turns: Array) -> Array:
    """N times the negentropy, by two bounded measures: one of skewness, one of peakedness (Hyvarinen 1998)."""
    rows = white[:: -(-len(white) // CONTRAST_ROWS)]
    negentropy = np.empty(len(turns))
    for start in range(0, len(turns), 64):
        projected = rows @ turns[start : start + 64].T
        bell = np.exp(-(projected**2) / 2)
        skew, peak = (projected * bell).mean(axis=0), bell.mean(axis=0) - np.sqrt(0.5)
        negentropy[start : start + 64] = SKEW_WEIGHT * skew**2 + PEAK_WEIGHT * peak**2
    return len(white) * negentropy


def _bisector(mean: Array, turns: Array, count: int) -> Array:
    """The whitened mean has equal parts along x and along the pseudo feature, up to the error of the latter's moments.

    The two parts differ by the error of a mean, of a deviation and of the right angle between the columns.
    """
    length = float(mean @ mean)
    along = np.abs(turns @ mean)
    across = np.abs(turns @ np.array([mean[1], -mean[0]]))
    return -count * (along - across) ** 2 / (2 * (1 + length))


def others(view: View, party: str, table: SentTable) -> Array:
    """What the adversary sees about the same rows besides this table: other tables, labels or codes, own columns."""
    parts = [np.zeros((len(table.rows), 0))]
    for other in view.spec.columns:
        if other != party:
            parts += _aligned(view, other, "features", table)
    owner = view.spec.label_owner
    if owner != party:
        for labels in _aligned(view, owner, "labels", table):
            parts.append(_codes(labels) if view.spec.task == "classification" else labels)
    own = view.own_columns()
    if not table.shuffled and own.shape[1]:
        parts.append(own[table.rows])
    return np.hstack(parts)


def _aligned(view: View, party: str, kind: str, table: SentTable) -> list[Array]:
    try:
        sent = view.table_of(party, kind)
    except InputError:
        return []  # the adversary got no such table
    if sent.shuffled != table.shuffled or not np.isin(table.rows, sent.rows).all():
        return []
    order = np.argsort(sent.rows)
    values = sent.values[order[np.searchsorted(sent.rows, table.rows, sorter=order)]].astype(np.float64)
    return [values.reshape(len(values), -1)]


def _codes(values: Array) -> Array:
    """One column per code."""
    return (values == np.unique(values)).astype(np.float64)
