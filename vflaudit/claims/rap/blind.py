"""RAP's Case 1: what a server that knows nothing about the features learns from its messages all the same.

Nothing here uses knowledge, so order, sign and scale of columns and the names of categories and classes stay open. Each
number is what is found beyond chance: |correlation| beyond that of randomly rotated messages, or an adjusted Rand
index, which is zero for a random grouping. True values only grade. One epoch is enough: training changes no message.
"""

from __future__ import annotations

import warnings

import numpy as np

from attacks.frequency import same_rows
from attacks.label_codes import LabelCodePairing
from attacks.pseudo import PseudoFeatureStripping, others
from vflaudit.claims.rap.categories import CategoricalClient
from vflaudit.claims.rap.numbers import CLIENT, rap_run
from vflaudit.core.adversary import Adversary, ClassPriors
from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream

GUESSES = 50  # random rotations that chance is averaged over
SERVER = Adversary({"server"})


def matched_correlation(truth: Array, found: Array) -> float:
    """Mean |correlation| of the true columns with the found ones, in the best one-to-one order."""
    from scipy.optimize import linear_sum_assignment

    table = np.abs(np.corrcoef(truth.T, found.T)[: truth.shape[1], truth.shape[1] :])
    return float(table[linear_sum_assignment(-table)].mean())


def chance(truth: Array, values: Array, rng: np.random.Generator) -> float:
    """The same for random rotations of the whitened messages.

    That is more than the paper's randomly guessed matrix finds, as everybody can whiten, so it is the fairer floor.
    """
    white = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)[0]
    turns = np.linalg.qr(rng.standard_normal((GUESSES, values.shape[1], values.shape[1])))[0]
    return float(np.mean([matched_correlation(truth, (white @ turn)[:, : truth.shape[1]]) for turn in turns]))


def separated_columns(seed: int, data: str = "breast-cancer") -> float:
    """FastICA on a client's messages: |correlation| with its columns, beyond chance."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    run = rap_run(data, seed, max_epochs=1)
    table = run.view(SERVER).table_of(CLIENT)
    truth = run.data.block(CLIENT).values[table.rows]
    rng = stream(seed, "case-1")
    values = np.asarray(table.values, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ica = FastICA(whiten="unit-variance", random_state=int(rng.integers(2**31)), max_iter=500)
        found = matched_correlation(truth, ica.fit_transform(values))
    return found - chance(truth, values, rng)


def separated_skewed(seed: int) -> float:
    """The same where the columns are independent and skewed, as FastICA assumes."""
    return separated_columns(seed, "synthetic:rows=2000,features=16,skew=1,correlation=0")


def stripped_column(seed: int) -> float:
    """A one-feature client of wine: |correlation| of what is found behind its pseudo feature, beyond chance."""
    run = rap_run("wine", seed, parties=13, max_epochs=1)
    view = run.view(SERVER)
    table = view.table_of(CLIENT)
    values = np.asarray(table.values, dtype=np.float64)
    truth = run.data.block(CLIENT).values[table.rows]
    best = PseudoFeatureStripping().strip(values, others(view, CLIENT, table)).best
    return matched_correlation(truth, (values @ best)[:, None]) - chance(truth, values, stream(seed, "case-1"))


def grouped_people(seed: int, client: CategoricalClient) -> float:
    """Rows that look alike against rows that share all categories: adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score

    run = client.run(seed)
    table = run.view(SERVER).table_of(client.party)
    seen = same_rows(np.asarray(table.values, dtype=np.float64), stream(seed, "case-1"))[0]
    _, true = np.unique(run.data.block(client.party).values[table.rows], axis=0, return_inverse=True)
    return float(adjusted_rand_score(true.ravel(), seen))


def paired_codes(seed: int, data: str = "breast-cancer") -> float:
    """Label codes paired by the features: adjusted Rand index with the classes.

    The attack wants class shares to name the pairs; the grouping that is scored here does not use them.
    """
    from sklearn.metrics import adjusted_rand_score

    run = rap_run(data, seed, max_epochs=1)
    guess = LabelCodePairing().run(run.view(Adversary({"server"}, [ClassPriors()])), seed=seed).labels
    assert guess is not None
    return float(adjusted_rand_score(run.data.labels[guess.rows], guess.values.argmax(axis=1)))
