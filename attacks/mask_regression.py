"""The masks that are sent along undo the layer that is to hide the features (TabVFL, Alg. 1 and IV-A)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.mask_algebra import Found, Step, solve
from attacks.scale import ColumnFacts, calibrate
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError

MASKED, UNMASKED, TRAINED = "intermediate", "representation", "intermediate_gradient"


def _has_masks(view: View) -> bool:
    """Whether some message tells, for rows that it names, numbers and masks."""
    return any("mask" in m.arrays and m.rows is not None for m in view.transcript.select(kind=MASKED))


MASKS = Requirement("masks and intermediate results of rows that it can link (the host of tabvfl)", _has_masks)


class MaskRegression(FeatureAttack):
    """Solve intermediate results and masks of the same rows over epochs for the features: bilinear least squares.

    A guest sends z = b_t + sum_j (1 - m_ij) x_ij a_tj with masks m that the host knows; a_t and b_t change with every
    batch and are free. What was served after training ties all rows to one map, which also reads rows that were never
    masked. A column's factor comes from the public fact that columns are standardised, or from known people; its sign
    from known people or the skewness of a sample; one-hot columns need neither, because a group sums to one.
    """

    name: ClassVar[str] = "mask-regression"
    requires: ClassVar[tuple[Requirement, ...]] = (MASKS,)
    epochs: int = Field(50, ge=1, description="the last epochs of pretraining to use")
    served: bool = Field(True, description="also use what was served after training")
    iterations: int = Field(200, ge=1, description="of alternating least squares, at most")
    signs: Literal["likely", "arbitrary"] = Field(
        "likely", description="arbitrary: full size whatever the odds of the sign, for measuring |correlation|"
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {"residual": {}, "iterations": {}}
        for party in self.victims(view):
            steps = self.masked(view, party)
            found = solve(steps, self.unmasked(view, party), view.spec.rows, self.iterations)
            features[party] = RowGuess(found.rows, self.scaled(view, party, found))
            notes["residual"][party], notes["iterations"][party] = found.residual, found.iterations
        return {"features": features, "notes": notes}

    def masked(self, view: View, party: str) -> list[Step]:
        """The party's messages with masks in the last epochs of pretraining."""
        found = [
            (m.epoch, Step(m.rows, 1.0 - m.arrays["mask"], m.arrays["values"].astype(np.float64)))
            for m in view.transcript.select(sender=party, kind=MASKED)
            if "mask" in m.arrays and m.rows is not None and m.epoch is not None
        ]
        if not found:
            raise InputError(f"attack {self.name!r}: the view has no masks from {party!r}")
        first = max(epoch for epoch, _ in found) - self.epochs
        return [step for epoch, step in found if epoch > first]

    def unmasked(self, view: View, party: str) -> Step | None:
        """What was served after training: the message without masks and without an epoch."""
        found = None
        for message in view.transcript.select(sender=party, kind=UNMASKED):
            if self.served and message.rows is not None and message.epoch is None:
                kept = np.ones((len(message.rows), len(view.spec.columns[party])))
                found = Step(message.rows, kept, message.arrays["values"].astype(np.float64))
        return found

    def scaled(self, view: View, party: str, found: Found) -> Array:
        """The values in the columns' own unit."""
        columns, values = view.spec.columns[party], found.values.copy()
        trained = [m.rows for m in view.transcript.select(receiver=party, kind=TRAINED) if m.rows is not None]
        fitted = np.isin(found.rows, np.concatenate(trained)) if trained else np.ones(len(values), dtype=bool)
        groups: dict[str, list[int]] = {}
        for place, column in enumerate(columns):
            if column.kind == "indicator" and column.group is not None:
                groups.setdefault(column.group, []).append(place)
            else:
                values[:, place] = self._number(view, party, place, found, fitted)
        for places in groups.values():
            values[:, places] = _categories(found.values[:, places], fitted)
        return values

    def _number(self, view: View, party: str, place: int, found: Found, fitted: Array) -> Array:
        """A numeric column: its factor and sign from known rows, or from what is known about the column."""
        signal, samples = found.values[:, place], view.knowledge.samples
        if samples is not None and samples.handles is not None:
            at = np.searchsorted(found.rows, samples.handles).clip(max=len(found.rows) - 1)
            there = found.rows[at] == samples.handles
            pairs, truth = signal[at[there]], samples.features[party][there, place]
            if pairs @ pairs > 0:
                return signal * (pairs @ truth) / (pairs @ pairs)
        facts = _facts(view, party, place)
        calibration = calibrate(signal[fitted], facts)
        if self.signs == "arbitrary":
            return signal * (calibration.factor or 1.0)
        return calibration.guess(signal, facts)


def _facts(view: View, party: str, place: int) -> ColumnFacts:
    """What is known about one column. A mean of zero tells nothing about the factor."""
    mean, moments = known_mean(view, party), view.knowledge.second_moments.get(party)
    deviation = 1.0 if view.spec.standardised else None
    if moments is not None:
        deviation = float(np.sqrt(max(moments[place, place] - view.knowledge.means[party][place] ** 2, 0.0)))
    known = [rows.features[party][:, place] for rows in (view.knowledge.samples, view.knowledge.distribution) if rows]
    told = None if mean is None or abs(mean[place]) < 1e-12 else float(mean[place])
    return ColumnFacts(told, deviation, np.concatenate(known) if known else None)


def _categories(values: Array, fitted: Array) -> Array:
    """One-hot columns up to factors: the factors that make every row sum to one, then the largest cell."""
    factors = np.linalg.lstsq(values[fitted], np.ones(int(fitted.sum())), rcond=1e-6)[0]
    return np.eye(values.shape[1])[(values * factors).argmax(axis=1)]
