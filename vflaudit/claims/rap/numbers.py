"""Numbers behind RAP's claims that need no attack: dimensions, singular values, distances, counts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from attacks.pseudo import PseudoFeatureStripping, others
from vflaudit import load_protocol
from vflaudit.core.adversary import Adversary
from vflaudit.core.loading import load_dataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run

CLIENT = "client1"


@cache
def rap_run(data: str, seed: int, protocol: str = "rap", parties: int = 4, **parameters: Any) -> Run:
    """One run, kept for the next number about it."""
    return load_protocol(protocol, **parameters).run(load_dataset(data, parties=parties, seed=seed), seed=seed)


def free_dimensions_given_mean(seed: int) -> float:
    """Case 2: dimensions of the set of R with mean(X~ R) = the known mean, for one client's real table."""
    run = rap_run("breast-cancer", seed)
    table = next(run.transcript.select(sender=CLIENT)).arrays["values"]
    width = table.shape[1]
    # each column of R obeys one linear equation
    return float(width * (width - np.linalg.matrix_rank(table.mean(axis=0, keepdims=True))))


def free_dimensions_given_rows(seed: int) -> float:
    """Case 3a: the same with n = F/2 known rows and their ids."""
    run = rap_run("breast-cancer", seed)
    table = next(run.transcript.select(sender=CLIENT)).arrays["values"].astype(np.float64)
    width = table.shape[1]
    return float(width * (width - np.linalg.matrix_rank(table[: width // 2])))


def pseudo_label_correlation(seed: int) -> float:
    """|correlation| of the true label with what the server strips out of [Y, pseudo] A, on diabetes."""
    run = rap_run("diabetes", seed)
    view = run.view(Adversary({"server"}))
    table = view.table_of(run.data.label_owner, kind="labels")
    direction = PseudoFeatureStripping().strip(table.values, others(view, run.data.label_owner, table)).best
    return float(abs(np.corrcoef(table.values @ direction, run.data.labels[table.rows])[0, 1]))


def messages_to_clients(seed: int) -> float:
    """Messages that any client receives in a whole run: training and serving."""
    run = rap_run("breast-cancer", seed)
    return float(sum(run.costs.received[party].messages for party in run.data.parties))


def full_rank_share(seed: int) -> float:
    """Corollary 1: share of 300 Gaussian matrices, F = 1..100, whose condition number double precision can invert."""
    rng = stream(seed, "corollary-1")
    widths = rng.integers(1, 101, 300)
    return float(np.mean([np.linalg.cond(rng.standard_normal((f, f))) < 1e12 for f in widths]))


def worst_margin_of_distances(seed: int) -> float:
    """Corollary 2: the smallest margin of the measured probability over the stated bound, over F and epsilon.

    For a fixed pair of points ||A d||^2 / ||d||^2 is chi-square with F degrees of freedom, so one draw of it per
    trial is exact and no matrix is needed.
    """
    rng = stream(seed, "corollary-2")
    margins = []
    for width in (2, 8, 30, 100, 300):
        ratio = rng.chisquare(width, 20_000) / width
        for epsilon in (0.1, 0.3, 0.5, 0.9):
            bound = 1 - 2 * np.exp(-width * (3 * epsilon**2 - 2 * epsilon**3) / 12)
            margins.append(np.mean(np.abs(ratio - 1) <= epsilon) - bound)
    return float(min(margins))


def share_of_singular_values_near_one(seed: int) -> float:
    """The remark after corollary 2: share of singular values of A / sqrt(F) within 0.8..1.2, F = 8, 30, 100."""
    rng = stream(seed, "singular-values")
    matrices = [rng.standard_normal((f, f)) / np.sqrt(f) for f in (8, 30, 100) for _ in range(20)]
    values = [np.linalg.svd(matrix, compute_uv=False) for matrix in matrices]
    joined = np.concatenate(values)
    return float(np.mean((joined >= 0.8) & (joined <= 1.2)))
