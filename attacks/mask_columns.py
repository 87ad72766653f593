"""From columns that are known up to a factor to columns in their own unit, by what is known about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attacks.scale import ColumnFacts, calibrate
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.view import View


@dataclass(frozen=True, eq=False)
class Signals:
    """Columns up to a factor each: rows (handles, or positions if they are `shuffled`), values, who sets the scale.

    Where only some cells were `read` and the others filled in, known people and the scale go by those.
    """

    rows: Array
    values: Array
    scale: Array
    shuffled: bool = False
    read: Array | None = None


def in_units(view: View, party: str, found: Signals, *, certain: bool) -> Array:
    """Numbers by their deviation and sign (at full size whatever the odds of the sign, if `certain`), categories."""
    values, groups = found.values.copy(), one_hot_groups(view, party)
    for place in np.setdiff1d(np.arange(values.shape[1]), np.concatenate([[], *groups])).astype(int):
        values[:, place] = _number(view, party, place, found, certain=certain)
    for places in groups:
        values[:, places] = _categories(found.values[:, places], found.scale)
    return values


def one_hot_groups(view: View, party: str) -> list[list[int]]:
    """The places of the columns of each one-hot group."""
    groups: dict[str, list[int]] = {}
    for place, column in enumerate(view.spec.columns[party]):
        if column.kind == "indicator" and column.group is not None:
            groups.setdefault(column.group, []).append(place)
    return list(groups.values())


def known_pairs(view: View, party: str, rows: Array) -> tuple[Array, Array]:
    """Places among `rows` of people that are known, and their columns; none if ids are not known."""
    samples = view.knowledge.samples
    if samples is None or samples.handles is None or not len(rows):
        return np.zeros(0, dtype=int), np.zeros((0, len(view.spec.columns[party])))
    order = np.argsort(rows)
    at = order[np.searchsorted(rows, samples.handles, sorter=order).clip(max=len(rows) - 1)]
    there = rows[at] == samples.handles
    return at[there], samples.features[party][there]


def _number(view: View, party: str, place: int, found: Signals, *, certain: bool) -> Array:
    """A numeric column: its factor and sign from known rows, or from what is known about the column.

    A standardised column has no mean, which also undoes whatever else than zero stands in masked cells.
    """
    signal = found.values[:, place]
    told = np.ones(len(signal), dtype=bool) if found.read is None else found.read[:, place]
    scale = found.scale & told if (found.scale & told).any() else found.scale
    if view.spec.standardised:
        signal = signal - signal[scale].mean()
    if not found.shuffled:
        at, truth = known_pairs(view, party, found.rows)
        pairs = signal[at] * told[at]
        if pairs @ pairs > 0:
            return signal * (pairs @ truth[:, place]) / (pairs @ pairs)
    facts = _facts(view, party, place)
    calibration = calibrate(signal[scale], facts)
    return signal * (calibration.factor or 1.0) if certain else calibration.guess(signal, facts)


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
