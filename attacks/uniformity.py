"""Distinguishers on vFedSec's masked values (Lemma 5.1): are they uniform, and do they tell which input was masked?

    byte_test(values)      chi-square of every byte of Z_R against the uniform distribution
    level_test(values)     Kolmogorov-Smirnov of the values against the uniform distribution
    tell_apart(a, b, seed) a classifier trained on half of the samples of two inputs, judged on the other half
    masked_samples(...)    such samples: the whole view of the masked values, over and over with fresh masks

The lemma is about all clients' masked values together, given their sum. So the strongest test takes two inputs with the
same sum, gives the classifier everything that the server gets, and asks which input it was. Scores of the trials go
into the Distinguishing game, whose bound on epsilon must be 0. Every p-value is uniform if the lemma holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from attacks.masks import messages_by_round
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.view import View
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.defects import gaussian_mask
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KEY, KeySource
from vflaudit.protocols.vfedsec.masks import add_masks

Masking = Literal["masked", "none", "reused-stream", "float-masks"]
FEWEST = 5.0  # expected count per cell below which a chi-square is not to be trusted


def byte_test(values: Array) -> float:
    """The p-value of a chi-square test that every byte of every value is uniform and independent of the others' sums.

    Bytes of a value are counted separately by their significance: 255 degrees of freedom for each.
    """
    from scipy.special import gammaincc

    if values.dtype.kind != "u" or values.size < FEWEST * 256:
        raise InputError(f"the byte test needs {int(FEWEST * 256)} or more unsigned integers")
    places = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)
    counts = np.stack([np.bincount(place, minlength=256) for place in places.T])
    expected = len(places) / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(gammaincc(255 * values.itemsize / 2, statistic / 2))


def level_test(values: Array) -> float:
    """The p-value of a Kolmogorov-Smirnov test that the values are uniform in Z_R (its steps are fine enough)."""
    from scipy.stats import kstest

    if values.dtype.kind != "u" or values.size < 2:
        raise InputError("the level test needs two or more unsigned integers")
    return float(kstest(values.ravel() / 2.0 ** (8 * values.itemsize), "uniform").pvalue)


def message_tests(view: View, kind: str = "masked_output") -> dict[str, dict[str, float]]:
    """Both tests on everything that each client sent to the server under this kind, all rounds together."""
    sent: dict[str, list[Array]] = {}
    for messages in messages_by_round(view, kind).values():
        for party, values in messages.items():
            sent.setdefault(party, []).append(values.ravel())
    joined = {party: np.concatenate(values) for party, values in sent.items()}
    return {party: {"bytes": byte_test(values), "level": level_test(values)} for party, values in joined.items()}


@dataclass(frozen=True, eq=False)
class Telling:
    """How well a classifier tells two inputs by their masked values, on samples that it was not trained on."""

    auc: float
    p_value: float  # of an AUC of one half, one-sided
    first: Array  # held-out scores: higher means the second input
    second: Array


def tell_apart(first: Array, second: Array, seed: int, trees: int = 100) -> Telling:
    """Train a forest on half of the samples, (samples, values) each, and rank the other half.

    It sees numbers and, for integers, all their bits. Held-out scores of equal inputs are exchangeable, so the rank
    test has its level whatever the forest learns.
    """
    from scipy.stats import mannwhitneyu
    from sklearn.ensemble import ExtraTreesClassifier

    if first.shape[1:] != second.shape[1:] or min(len(first), len(second)) < 4:
        raise InputError("telling two inputs apart needs four or more samples of each, of the same shape")
    rng = stream(seed, "uniformity")
    halves = [np.array_split(part[rng.permutation(len(part))], 2) for part in (first, second)]
    train, test = ([features(half[place]) for half in halves] for place in (0, 1))
    labels = np.repeat([0, 1], [len(part) for part in train])
    forest = ExtraTreesClassifier(
        trees, min_samples_leaf=5, max_features=0.3, random_state=child_seed(seed, "forest") % 2**31, n_jobs=1
    )
    forest.fit(np.concatenate(train), labels)
    low, high = (forest.predict_proba(part)[:, 1] for part in test)
    found = mannwhitneyu(high, low, alternative="greater")
    return Telling(float(found.statistic) / (len(high) * len(low)), float(found.pvalue), low, high)


def features(samples: Array) -> Array:
    """What the classifier looks at: the numbers, and the bits of integers."""
    flat = samples.reshape(len(samples), -1)
    if flat.dtype.kind != "u":
        return flat
    size = 8 * flat.itemsize
    bits = (flat[:, :, None] >> np.arange(size, dtype=flat.dtype)) & flat.dtype.type(1)
    return np.hstack([flat / 2.0**size, bits.reshape(len(flat), -1).astype(np.float32)])


def masked_samples(
    inputs: Mapping[str, Array],
    count: int,
    source: KeySource,
    round: int,
    *,
    masking: Masking = "masked",
    points: FixedPoint | None = None,
    deviation: float = 1.0,
) -> Array:
    """What clients with these inputs send, `count` times with fresh masks: shape (count, clients, values).

    This is the protocol's own arithmetic: all samples of a call are masked as one message of that round. Two inputs
    that are to be told apart need different rounds, and keys that are as fresh for one as for the other: the same seed,
    or the operating system for both. `masking` also has ways that do not work, for controls; a reused stream needs the
    same seed.
    """
    group = list(inputs)
    points = points or FixedPoint(32, 16, len(group))
    pairs = [tuple(sorted(pair)) for pair in combinations(group, 2)]
    shared = {pair: source.take(KEY, "uniformity", *pair) for pair in pairs}
    sent = []
    for party in group:
        keys = {other: shared[min(party, other), max(party, other)] for other in group if other != party}
        if masking == "float-masks":
            out = np.tile(np.ravel(inputs[party]).astype(np.float64), (count, 1))
            for other, key in keys.items():
                sign = 1.0 if group.index(other) > group.index(party) else -1.0
                out += sign * gaussian_mask(key, out.shape, deviation, round, "forward")
        else:
            fresh = masking != "reused-stream"
            out = np.tile(points.encode(np.ravel(inputs[party])), (count if fresh else 1, 1))
            if masking != "none":
                add_masks(out, party, keys, group, round if fresh else 0, "forward")
            out = out if fresh else np.tile(out, (count, 1))
        sent.append(out)
    return np.stack(sent, axis=1)


def gaussian_auc(distance: float, deviation: float, rounds: int = 1) -> float:
    """The AUC of the best test between two inputs `distance` apart under Gaussian noise, after so many rounds.

    The likelihood ratio is normal with means that differ by d' = distance sqrt(rounds) / deviation in units of its own
    deviation, so its AUC is Phi(d' / sqrt(2)): above one half for every deviation, and one in the end.
    """
    return 0.5 * (1 + math.erf(distance * math.sqrt(rounds) / deviation / 2))
