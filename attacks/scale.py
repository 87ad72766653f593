"""One column times one number: the scale from what is known about the column (RAP section 2.3).

The same calibration serves every attack that knows a column up to a factor, such as the stripping of a pseudo feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attacks.base import FeatureAttack, Requirement
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.errors import InputError

NO_MEAN = 1e-4  # a mean below this share of the root mean square is zero: messages are float32

COLUMN_KNOWLEDGE = Requirement(
    "something about the columns (--knows means, moments, known-samples=30 or distribution=100)",
    lambda view: (
        bool(view.knowledge.means) or view.knowledge.samples is not None or view.knowledge.distribution is not None
    ),
)


@dataclass(frozen=True, eq=False)
class ColumnFacts:
    """What is known about one column: exact mean and deviation over the training rows, and values of some people."""

    mean: float | None = None
    deviation: float | None = None
    people: Array | None = None

    @classmethod
    def of(cls, view: View, party: str) -> ColumnFacts:
        """From the knowledge, and from the public fact that inputs were standardised."""
        mean = known_mean(view, party)
        moments = view.knowledge.second_moments.get(party)
        deviation = 1.0 if view.spec.standardised else None
        if moments is not None:
            deviation = float(np.sqrt(max(moments[0, 0] - view.knowledge.means[party][0] ** 2, 0.0)))
        known = [rows.features[party][:, 0] for rows in (view.knowledge.samples, view.knowledge.distribution) if rows]
        return cls(None if mean is None else float(mean[0]), deviation, np.concatenate(known) if known else None)

    @property
    def expected_mean(self) -> float:
        """The exact mean, or that of the people."""
        if self.mean is not None:
            return self.mean
        return float(self.people.mean()) if self.people is not None else 0.0


@dataclass(frozen=True)
class Calibration:
    """column = factor x signal. `error` is the expected relative error of the factor, `sign` the odds of its sign."""

    factor: float
    error: float
    sign: float
    source: str

    def guess(self, signal: Array, facts: ColumnFacts) -> Array:
        """The posterior mean: where the sign is undecided it is the column's mean, worth nothing but no loss either."""
        shrink = 2 * self.sign - 1
        middle = facts.expected_mean
        return middle + shrink * (self.factor * signal - middle)


def calibrate(signal: Array, facts: ColumnFacts) -> Calibration:
    """The factor between a signal and the column, from the mean or the deviation, whichever is known better.

    A mean from n people is off by CV / sqrt(n) of itself, where CV is the deviation over the mean: a few percent for
    100 people, hopeless for standardised columns. The deviation is off by sqrt((kurtosis - 1) / 4n).
    """
    options = [(0.0, 0.0, np.inf, "nothing")]
    people = facts.people if facts.people is not None and len(facts.people) > 1 else None
    size = float(np.sqrt(np.mean(signal**2))) or 1.0
    average, spread = float(signal.mean()), float(signal.std())
    usable = abs(average) > NO_MEAN * size
    if facts.mean is not None and usable:
        options.append((facts.mean, average, spread / abs(average) * 1e-6, "exact mean"))
    elif people is not None and usable:
        cv = spread / abs(average)
        options.append((float(people.mean()), average, cv / np.sqrt(len(people)), "mean of people"))
    if facts.deviation is not None and spread > 0:
        options.append((facts.deviation, spread, 1e-6, "exact deviation"))
    elif people is not None and spread > 0:
        kurtosis = float(np.mean(((signal - average) / spread) ** 4))
        error = np.sqrt(max(kurtosis - 1, 0.1) / (4 * len(people)))
        options.append((float(people.std(ddof=1)), spread, float(error), "deviation of people"))
    known, seen, error, source = min(options, key=lambda option: option[2])
    if seen == 0.0:
        return Calibration(0.0, np.inf, 0.5, source)
    factor = abs(known / seen)
    odds = sign_odds(factor * signal, facts)
    return Calibration(factor if odds >= 0.5 else -factor, float(error), max(odds, 1 - odds), source)


def sign_odds(scaled: Array, facts: ColumnFacts) -> float:
    """The probability that the column is `scaled` and not its mirror image.

    An exact mean decides. People decide by odd statistics (mean and two bounded measures of skewness): if these are m
    in the sample and M in the signal with joint error C, the logarithm of the odds is 2 m' C^-1 M. It stays near zero
    where there is no skew to see. Tried: without `certain` wrong signs are believed more firmly (R2 down to -1.6 on
    wine); cutting it to zero instead of shrinking it loses more right signs than it saves.
    """
    size = float(np.sqrt(np.mean(scaled**2))) or 1.0
    if facts.mean is not None and abs(facts.mean) > NO_MEAN * size:
        return float(facts.mean * scaled.mean() > 0)
    if facts.people is None or len(facts.people) < 2:
        return 0.5
    table, sample = _odd(scaled / size), _odd(facts.people / size)
    noise = np.cov(table.T) * (1 / len(sample) + 1 / len(table))
    noise += 1e-9 * np.trace(noise) * np.eye(len(noise)) + 1e-12 * np.eye(len(noise))
    skew = table.mean(axis=0)
    seen = float(skew @ np.linalg.solve(noise, skew)) * len(table) * (1 / len(sample) + 1 / len(table))
    certain = seen / (seen + len(skew))  # a table without skew shows some by chance
    log_odds = 2 * certain * sample.mean(axis=0) @ np.linalg.solve(noise, skew)
    return float(1 / (1 + np.exp(-np.clip(log_odds, -50, 50))))


def _odd(values: Array) -> Array:
    """Odd functions: the value itself, drawn in, and two that weigh the middle and the tails differently."""
    return np.stack([values / np.sqrt(1 + values**2 / 9), np.tanh(2 * values), values**3 / (1 + values**2)], axis=1)


def single_numeric(view: View, party: str) -> bool:
    """The party of 2.3: one column, and that a number."""
    columns = view.spec.columns[party]
    return len(columns) == 1 and columns[0].kind == "numeric"


def one_column_victims(attack: FeatureAttack, view: View, width: int) -> list[str]:
    """Victims with one numeric column and a transformed table of this width; one that is asked for must be such."""
    found = [
        party
        for party in attack.victims(view)
        if single_numeric(view, party) and view.table_of(party).values.shape[1] == width
    ]
    if not found:
        whom = "no honest client" if attack.party is None else repr(attack.party)
        how = "without" if width == 1 else "with"
        verb = "holds" if attack.party is None else "does not hold"
        raise InputError(
            f"attack {attack.name!r} needs a client with a single numeric column, sent {how} a pseudo feature; "
            f"{whom} {verb} one"
        )
    return found


class MeanScaleRecovery(FeatureAttack):
    """One column without a pseudo feature: divide by its scale, known from a mean or a deviation (RAP 2.3).

    This is the paper's own warning. It asks for the mean; standardised columns have none, and there the deviation gives
    the scale and a sample's skewness the sign.
    """

    name: ClassVar[str] = "mean-scale-recovery"
    requires: ClassVar[tuple[Requirement, ...]] = (COLUMN_KNOWLEDGE,)

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {"scale_from": {}, "expected_relative_error": {}, "sign_odds": {}}
        for party in one_column_victims(self, view, 1):
            table, facts = view.table_of(party), ColumnFacts.of(view, party)
            signal = table.values[:, 0].astype(np.float64)
            found = calibrate(signal, facts)
            features[party] = RowGuess(table.rows, found.guess(signal, facts)[:, None], shuffled=table.shuffled)
            notes["scale_from"][party] = found.source
            notes["expected_relative_error"][party] = found.error if np.isfinite(found.error) else None
            notes["sign_odds"][party] = found.sign
        return {"features": features, "notes": notes}
