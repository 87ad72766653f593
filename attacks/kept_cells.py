"""Features from masked messages whatever stands in masked cells: a kept cell is a linear function of what was sent.

If a guest sends as many numbers as it has columns, its layer can be undone in every message: for each column j there
are weights with z w_tj + c_tj = x_ij for all rows whose cell j was kept. What was served after training is such a
function of the same cells, of all rows. So column j is the direction of what was served that messages t predict best on
rows with cell j kept: a small eigenvalue problem, with weights that are free in every message. Zeros in masked cells
are not needed, hence other people's values in them do not help, nor does a layer that is turned in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.linalg import eigh

from attacks import mask_messages as messages
from attacks.base import FeatureAttack, Requirement
from attacks.mask_algebra import Step
from attacks.mask_columns import Signals, in_units
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View


def _usable(view: View) -> bool:
    """Masks, named rows, and what was served, from everybody who is to be attacked."""
    return messages.has_masks(view) and all(
        messages.linkable(view, party) and messages.served(view, party) is not None for party in view.victims
    )


class KeptCells(FeatureAttack):
    """Read kept cells out of masked messages: an eigenvalue problem per column, whatever stands in masked ones.

    Needs as many numbers per row as columns; with a narrower layer it finds what it can. A column's factor and sign
    come from what is known, as in mask-regression.
    """

    name: ClassVar[str] = "kept-cells"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("masks, intermediate results of rows that it can link, and what was served (tabvfl)", _usable),
    )
    epochs: int = Field(50, ge=1, description="the last epochs of pretraining to use")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        unexplained: dict[str, float] = {}
        for party in self.victims(view):
            served = messages.served(view, party)
            assert served is not None and served.rows is not None
            steps = messages.steps_of(messages.intermediates(view, party, self.epochs))
            whole = np.zeros((view.spec.rows, served.arrays["values"].shape[1]))
            whole[served.rows] = messages.numbers(served)
            directions, unexplained[party] = kept_directions(steps, whole)
            scale = messages.scale_rows(view, party, served.rows)
            values = whole[served.rows] @ directions
            signals = Signals(served.rows, values - values[scale].mean(axis=0), scale)
            features[party] = RowGuess(served.rows, in_units(view, party, signals, certain=False))
        return {"features": features, "notes": {"residual": unexplained}}


def kept_directions(steps: Sequence[Step], whole: Array) -> tuple[Array, float]:
    """For each column the direction of `whole` (all rows) that messages predict best where the cell was kept.

    Also the largest share of a column's variance that is left unexplained: next to nothing if the equations hold.
    """
    width, outputs = steps[0].kept.shape[1], whole.shape[1]
    found, worst = np.zeros((outputs, width)), 0.0
    for column in range(width):
        left, total = np.zeros((outputs, outputs)), np.zeros((outputs, outputs))
        for step in steps:
            kept = step.kept[:, column] == 1
            if kept.sum() <= outputs + 2:  # so few rows are explained whatever they are
                continue
            target, sent = whole[step.rows[kept]], step.sent[kept]
            target, basis = target - target.mean(axis=0), np.linalg.qr(sent - sent.mean(axis=0))[0]
            rest = target - basis @ (basis.T @ target)
            left, total = left + rest.T @ rest, total + target.T @ target
        size = np.trace(total) / outputs
        if size > 0:
            shares, directions = eigh(left, total + 1e-10 * size * np.eye(outputs))
            found[:, column], worst = directions[:, 0], max(worst, float(shares[0]))
    return found, worst
