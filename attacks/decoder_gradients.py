"""Features from the gradients that TabVFL's guests send for the decoder (Alg. 1, lines 22-32), and the masks.

The loss of a guest is a mean over its masked cells (m_ij = 1) of ((o_i w_j - x_ij) / s_j)^2, where the host knows o_i,
which it sent, and the masks. The gradient at o_i that comes back is, up to a known factor over the number of masked
cells, sum_j m_ij (o_i w_j - x_ij) w_j / s_j^2. So what comes back, times that number, is

    y_i = sum_j m_ij (o_i B_tj - x_ij a_tj)

with B_tj and a_tj = w_tj / s_j^2 the same for all rows of a message. For given rows that is a small least-squares
problem per message, for given maps one per row. Noise on the intermediate results does not touch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks import mask_messages as messages
from attacks.base import FeatureAttack, Requirement
from attacks.mask_algebra import EXACT, RIDGE, Step, blocks_of
from attacks.mask_columns import Signals, in_units
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError


def _usable(view: View) -> bool:
    """Masks, and gradients of rows with names."""
    named = any(message.rows is not None for message in view.transcript.select(kind="decoded_gradient"))
    return named and messages.has_masks(view)


@dataclass(frozen=True, eq=False)
class Answer:
    """One message: rows, which cells were masked (ones), what the guest got about them, and y."""

    rows: Array
    masked: Array
    told: Array
    back: Array

    @property
    def known(self) -> Array:
        """The regressors that do not depend on the features: m_ij o_i."""
        return (self.masked[:, :, None] * self.told[:, None, :]).reshape(len(self.rows), -1)


class DecoderGradients(FeatureAttack):
    """Solve the gradients that guests send back for the decoder, with their masks, for the features.

    It needs neither the intermediate results nor anything that was served, and guesses rows that were trained on. A
    column's factor and sign come from what is known, as in mask-regression.
    """

    name: ClassVar[str] = "decoder-gradients"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("masks and decoder gradients of rows that it can link (the host of tabvfl)", _usable),
    )
    epochs: int = Field(50, ge=1, description="the last epochs of pretraining to use")
    iterations: int = Field(300, ge=1, description="of alternating least squares, at most")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        residual: dict[str, float] = {}
        for party in self.victims(view):
            found = answers(view, party, self.epochs)
            if not found:
                raise InputError(f"attack {self.name!r}: no batch of {party!r} has more rows than unknowns")
            values, residual[party] = solve_answers(found, view.spec.rows, self.iterations)
            rows = np.unique(np.concatenate([answer.rows for answer in found]))
            signals = Signals(rows, values[rows], np.ones(len(rows), dtype=bool))
            features[party] = RowGuess(rows, in_units(view, party, signals, certain=False))
        return {"features": features, "notes": {"residual": residual}}


def answers(view: View, party: str, epochs: int) -> list[Answer]:
    """The guest's answers in the last epochs, with what they were about; those that explain anything are left out."""
    masks: dict[tuple[Any, ...], Array] = {}
    told: dict[tuple[Any, ...], Array] = {}
    found: list[tuple[int, Answer]] = []
    for message in view.transcript:
        if message.rows is None or message.epoch is None or party not in (message.sender, message.receiver):
            continue
        key = (message.epoch, message.rows.tobytes())
        if "mask" in message.arrays:
            masks[key] = message.arrays["mask"].astype(np.float64)
        elif message.kind == "decoded":
            told[key] = message.arrays["values"].astype(np.float64)
        elif message.kind == "decoded_gradient" and key in masks and key in told:
            masked, back = masks[key], message.arrays["values"].astype(np.float64)
            unknowns = masked.shape[1] * (back.shape[1] + 1)
            if len(masked) > unknowns + 1:
                scaled = back * len(masked) * masked.sum(axis=1, keepdims=True)
                found.append((message.epoch, Answer(message.rows, masked, told[key], scaled)))
    first = max((epoch for epoch, _ in found), default=0) - epochs
    return [answer for epoch, answer in found if epoch > first]


def solve_answers(found: Sequence[Answer], count: int, iterations: int) -> tuple[Array, float]:
    """Columns up to a factor each, and the share of y that is left over: alternating least squares."""
    total = sum(float((answer.back**2).sum()) for answer in found) or 1.0
    values, least = begin(found, count), np.inf
    best: tuple[list[Array], Array] = ([], values)
    width = values.shape[1]
    for _ in range(iterations):
        matrices, targets, left = np.zeros((count, width, width)), np.zeros((count, width)), 0.0
        maps = []
        for answer in found:
            known = answer.known
            design = np.hstack([answer.masked * values[answer.rows], known])
            fitted = _solve(design.T @ design, design.T @ answer.back)
            left += float(((answer.back - design @ fitted) ** 2).sum())
            slopes = fitted[:width]
            both = answer.masked[:, :, None] * answer.masked[:, None, :]
            matrices[answer.rows] += both * (slopes @ slopes.T)
            targets[answer.rows] += answer.masked * ((answer.back - known @ fitted[width:]) @ slopes.T)
            maps.append(slopes)
        slow = left / total > least * (1 - 1e-5)
        if left / total < least:
            best, least = (maps, values), left / total
        if slow or least < EXACT:
            break
        values = _unit(_solve(matrices, targets[..., None])[..., 0])
    return linked(found, *best), least


def begin(found: Sequence[Answer], count: int) -> Array:
    """As if maps and decoder never changed: regress each row's y on its masks; each column is a rank-one table."""
    width, outputs = found[0].masked.shape[1], found[0].back.shape[1]
    matrices, targets = np.zeros((count, width, width)), np.zeros((count, width, outputs))
    for answer in found:
        matrices[answer.rows] += answer.masked[:, :, None] * answer.masked[:, None, :]
        targets[answer.rows] += answer.masked[:, :, None] * answer.back[:, None, :]
    products = np.linalg.solve(matrices + 1e-2 * np.eye(width), targets)
    values = np.zeros((count, width))
    for column in range(width):
        left, sizes, _ = np.linalg.svd(products[:, column], full_matrices=False)
        values[:, column] = left[:, 0] * sizes[0]
    return _unit(values)


def linked(found: Sequence[Answer], maps: Sequence[Array], values: Array) -> Array:
    """One factor per column for blocks of rows that are never in a batch together.

    The unit s_j^2 is the variance in the batch (`reconstruction_loss`), so slopes times that variance are w_tj: nearly
    the same for all batches of an epoch. A block whose column is off by f has slopes off by 1 / f and a variance
    off by f^2: their product is off by f.
    """
    block = blocks_of([Step(answer.rows, answer.masked, answer.back) for answer in found], len(values))
    names = np.unique(block[block >= 0])
    if len(names) < 2:
        return values
    owner = np.array([block[answer.rows[0]] for answer in found])
    spread = [values[answer.rows].var(axis=0)[:, None] for answer in found]
    weights = np.stack(
        [np.mean([s * m for s, m, of in zip(spread, maps, owner, strict=True) if of == name], axis=0) for name in names]
    )
    joined = values.copy()
    for column in range(values.shape[1]):
        left, _, _ = np.linalg.svd(weights[:, column], full_matrices=False)
        for name, factor in zip(names, left[:, 0], strict=True):
            joined[block == name, column] /= factor if abs(factor) > 1e-6 else 1.0
    return _unit(joined)


def _solve(matrices: Array, targets: Array) -> Array:
    """Regularised solutions of small symmetric systems."""
    size = np.trace(matrices, axis1=-2, axis2=-1)[..., None, None] / matrices.shape[-1]
    return np.linalg.solve(matrices + (RIDGE * size + 1e-30) * np.eye(matrices.shape[-1]), targets)


def _unit(values: Array) -> Array:
    """Columns of unit size."""
    return values / np.maximum(np.sqrt((values**2).mean(axis=0)), 1e-300)
