"""RAP section 3, Other applications: do distances survive the projection well enough to work with?

Corollary 2 says that |A x - A y|^2 / F is close to |x - y|^2 with high probability. Anomaly detection, k-means and
nearest neighbours are run on the original columns and on what the clients sent, and their results compared: 1 is
agreement, about 0 (k-means) or the share of a random answer (the others) is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run
from vflaudit.errors import InputError

Measure = Literal["euclidean", "inner-product", "angular"]
MEASURES: tuple[Measure, ...] = ("euclidean", "inner-product", "angular")


def distances(values: Array) -> Array:
    """Euclidean distances of all rows."""
    squares = (values**2).sum(axis=1)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * values @ values.T, 0.0))


def anomaly_agreement(original: Array, projected: Array, *, near: float = 0.1, share: float = 0.05) -> dict[str, float]:
    """Rows with few others within a distance are anomalies: how far do both tables flag the same rows?

    The distance is the `near` quantile of all distances of the original and 'few' is what flags a `share` of its rows.
    With `projected` in the same scale (divided by sqrt(F) as in Corollary 2) both thresholds are used as they are.
    """
    table = distances(original)
    radius = float(np.quantile(table[np.triu_indices(len(table), 1)], near))
    close = (table <= radius).sum(axis=1) - 1
    few = float(np.quantile(close, share))
    flagged = close <= few
    other = (distances(projected) <= radius).sum(axis=1) - 1 <= few
    both, either = int((flagged & other).sum()), int((flagged | other).sum())
    total = int(flagged.sum() + other.sum())
    return {"jaccard": both / either if either else 1.0, "f1": 2 * both / total if total else 1.0}


def kmeans_agreement(original: Array, projected: Array, *, clusters: int = 5, seed: int = 0) -> float:
    """Adjusted Rand index of k-means on both tables, started from the same rows."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    rows = stream(seed, "kmeans").choice(len(original), clusters, replace=False)
    found = [
        KMeans(clusters, init=values[rows], n_init=1, max_iter=300).fit_predict(values)
        for values in (np.ascontiguousarray(original), np.ascontiguousarray(projected))
    ]
    return float(adjusted_rand_score(*found))


def similarity(values: Array, measure: Measure) -> Array:
    """Similarity of all rows; greater is nearer."""
    if measure == "euclidean":
        return -distances(values)
    if measure == "angular":
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return values @ values.T


def neighbour_agreement(original: Array, projected: Array, *, k: int = 10, measure: Measure = "euclidean") -> float:
    """Recall: the share of each row's k nearest neighbours that are among its k nearest in the projection."""
    if not 1 <= k < len(original):
        raise InputError(f"k={k}: expected at least 1 and fewer than the {len(original)} rows")
    found = []
    for values in (original, projected):
        near = similarity(values, measure)
        np.fill_diagonal(near, -np.inf)
        mask = np.zeros(near.shape, dtype=bool)
        np.put_along_axis(mask, np.argpartition(-near, k - 1, axis=1)[:, :k], True, axis=1)
        found.append(mask)
    return float((found[0] & found[1]).sum() / (k * len(original)))


def tables(run: Run, rows: int = 1000) -> tuple[Array, Array]:
    """Training rows before and after the transformation, all clients side by side, each scaled by 1/sqrt(F_m)."""
    handles = run.data.aligned("train")
    if len(handles) > rows:
        handles = np.sort(stream(run.seed, "applications").choice(handles, rows, replace=False))
    before, after = [], []
    for party, block in run.data.blocks.items():
        sent = np.full((len(run.data), 0), np.nan)
        for message in run.transcript.select(sender=party, kind="features"):
            if message.rows is not None:
                values = np.asarray(message.arrays["values"], dtype=np.float64)
                if sent.shape[1] == 0:
                    sent = np.full((len(run.data), values.shape[1]), np.nan)
                sent[message.rows] = values
        if sent.shape[1] == 0 or np.isnan(sent[handles]).any():
            raise InputError(f"the run has no message with the transformed training rows of {party!r}")
        before.append(block.values[handles])
        after.append(sent[handles] / np.sqrt(sent.shape[1]))
    return np.hstack(before), np.hstack(after)


def applications(run: Run, *, rows: int = 1000, clusters: int = 5, k: int = 10) -> Mapping[str, float]:
    """How well a RAP server could do section 3's tasks on what it was sent: one agreement per task."""
    original, projected = tables(run, rows)
    anomalies = anomaly_agreement(original, projected)
    found = {
        "anomaly_jaccard": anomalies["jaccard"],
        "anomaly_f1": anomalies["f1"],
        "kmeans_adjusted_rand": kmeans_agreement(original, projected, clusters=clusters, seed=run.seed),
    }
    for measure in MEASURES:
        found[f"neighbours_{measure.replace('-', '_')}"] = neighbour_agreement(
            original, projected, k=k, measure=measure
        )
    return found
