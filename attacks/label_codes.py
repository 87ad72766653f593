"""Undoing RAP's label codes: the two codes of a class have the same features, so the features tell which two belong.

RAP 2.3 maps each of C classes to two of 2C codes and picks one of the two by a fair coin. The coin knows nothing of the
features, hence both codes of a class have the same feature distribution (and about the same count), and the server
holds features and codes side by side. An invertible projection of the features changes nothing about that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import child_seed
from vflaudit.core.view import SentTable, View
from vflaudit.errors import InputError


def coded_labels(view: View) -> SentTable | None:
    """The label owner's table of whole numbers, if the adversary saw one."""
    try:
        table = view.table_of(view.spec.label_owner, kind="labels")
    except InputError:
        return None
    return table if table.values.ndim == 1 and table.values.dtype.kind in "iu" else None


def feature_tables(view: View, like: SentTable) -> dict[str, Array]:
    """What each party sent about the rows of `like`, in its order; parties that sent nothing are left out."""
    found = {}
    for party in view.spec.columns:
        try:
            table = view.table_of(party)
        except InputError:
            continue
        if table.shuffled == like.shuffled and np.isin(like.rows, table.rows).all():
            order = np.argsort(table.rows)
            at = order[np.searchsorted(table.rows, like.rows, sorter=order)]
            found[party] = np.asarray(table.values[at], dtype=np.float64)
    return found


def _can_name(view: View) -> bool:
    known = view.knowledge
    return known.class_priors is not None or known.labelled is not None or known.distribution is not None


class LabelCodePairing(Attack):
    """Pair RAP's 2C label codes by their features, then name the pairs: by class shares, known labels or other people.

    Merging two codes into one class costs likelihood under a Gaussian model with a shared covariance: a chi-square of
    the difference of their means and one of their counts. The cheapest perfect matching (solved exactly, as an integer
    program) is the most likely pairing. Pairs are named by known labels, by their sizes against known class shares and,
    with other rows of the population, by what no invertible map of a client's columns can change: each row's leverage
    x (X'X/N)^-1 x' at every client, learned per class from the other people. Codes that are not doubled (centralized
    training) are only named.
    """

    name: ClassVar[str] = "label-code-pairing"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            "a table of class codes from the label owner, and feature tables about the same rows",
            lambda view: (table := coded_labels(view)) is not None and bool(feature_tables(view, table)),
        ),
        Requirement(
            "something to name classes by (--knows class-priors, labels=N or distribution=N)",
            _can_name,
        ),
    )
    statistic: Literal["means", "forest", "both"] = Field(
        "both", description="compare codes by features, by a forest's out-of-fold votes, or by both"
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        table = coded_labels(view)
        assert table is not None
        features, classes = feature_tables(view, table), len(view.spec.classes)
        codes = np.asarray(table.values, dtype=np.int64)
        doubled = int(codes.max()) >= classes
        notes: dict[str, Any] = {"codes": len(np.unique(codes))}
        if doubled:
            cost, degrees = self._costs(np.hstack(list(features.values())), codes, 2 * classes, seed)
            partner, margin = best_matching(cost)
            # the costs of two pairings of equally good codes differ by a deviation of at most sqrt(8 degrees)
            convinced = margin > 3 * np.sqrt(8 * degrees)
            notes |= {"pairing_margin": margin, "pairing_margin_needed": float(3 * np.sqrt(8 * degrees))}
            pair_of = np.zeros(2 * classes, dtype=np.int64)
            for number, (one, other) in enumerate(partner):
                pair_of[[one, other]] = number
        else:
            convinced, pair_of = True, np.arange(classes)
            notes["pairing_margin"] = None
        member = pair_of[codes]
        likelihood, sources = naming_likelihood(view, table, member, features, seed)
        named, gap = best_names(likelihood)
        notes |= {"named_by": sources, "naming_margin": gap}
        values = np.eye(classes)[named[member]]
        verified = bool(convinced and gap > NAMED)
        return {
            "labels": RowGuess(table.rows, values, shuffled=table.shuffled),
            "verified": verified,
            "notes": notes,
        }

    def _costs(self, features: Array, codes: Array, count: int, seed: int) -> tuple[Array, int]:
        """What merging each two codes costs, and the degrees of freedom of that chi-square."""
        kinds = {"means": [False], "forest": [True], "both": [False, True]}[self.statistic]
        cost, degrees = np.zeros((count, count)), 0
        white = whitened(features)
        for forest in kinds:
            inputs = _votes(white, codes, child_seed(seed, self.name, "forest")) if forest else white
            more, dimension = mean_costs(inputs, codes, count)
            cost, degrees = cost + more, degrees + dimension
        sizes = np.bincount(codes, minlength=count)
        both = np.maximum(sizes[:, None] + sizes, 1)
        return cost + (sizes[:, None] - sizes) ** 2 / both, degrees + 1


NAMED = np.log(20)  # the runner-up among namings is 20 times less likely


def whitened(values: Array) -> Array:
    """Uncorrelated columns of unit variance: the same for every invertible map of the columns, up to a rotation."""
    centred = values - values.mean(axis=0)
    centred = centred / np.maximum(centred.std(axis=0), 1e-12)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return left[:, sizes > sizes[0] * 1e-5] * np.sqrt(len(values))


def mean_costs(values: Array, codes: Array, count: int) -> tuple[Array, int]:
    """n_i n_j / (n_i + n_j) times the squared Mahalanobis distance of the codes' means, shrunk pooled covariance."""
    from sklearn.covariance import ledoit_wolf

    sizes = np.bincount(codes, minlength=count)
    means = np.zeros((count, values.shape[1]))
    np.add.at(means, codes, values)
    means /= np.maximum(sizes, 1)[:, None]
    pooled, _ = ledoit_wolf(values - means[codes], assume_centered=True)
    pooled = pooled * len(values) / max(len(values) - np.count_nonzero(sizes), 1)
    scaled = means @ np.linalg.cholesky(np.linalg.inv(pooled))
    squared = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    together = np.outer(sizes, sizes) / np.maximum(sizes[:, None] + sizes, 1)
    return squared * together, values.shape[1]


def _votes(values: Array, codes: Array, seed: int) -> Array:
    """Whitened out-of-fold votes of a forest: they see classes whose means are the same."""
    from sklearn.ensemble import ExtraTreesClassifier

    fold = np.random.default_rng(seed).permutation(len(codes)) % 3
    votes = np.zeros((len(codes), int(codes.max()) + 1))
    for part in range(3):
        here = fold == part
        forest = ExtraTreesClassifier(100, min_samples_leaf=3, random_state=seed % 2**31, n_jobs=1)
        forest.fit(values[~here], codes[~here])
        votes[np.ix_(here, forest.classes_)] = forest.predict_proba(values[here])
    votes -= np.stack([votes[fold == part].mean(axis=0) for part in range(3)])[fold]
    return whitened(votes)


def best_matching(cost: Array) -> tuple[list[tuple[int, int]], float]:
    """The perfect matching of least cost, exactly, and how much more the best other matching costs."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    first, second = np.triu_indices(len(cost), 1)
    incidence = np.zeros((len(cost), len(first)))
    incidence[first, np.arange(len(first))] = incidence[second, np.arange(len(first))] = 1
    weight = cost[first, second]
    unit = max(float(weight.max()), 1e-12)  # the solver works to absolute tolerances

    def solve(upper: Array) -> tuple[Array, float] | None:
        found = milp(
            weight / unit,
            constraints=LinearConstraint(incidence, 1, 1),
            integrality=np.ones(len(weight)),
            bounds=Bounds(0, upper),
            options={"mip_rel_gap": 0},
        )
        return None if found.x is None else (np.flatnonzero(found.x > 0.5), float(weight[found.x > 0.5].sum()))

    best = solve(np.ones(len(weight)))
    assert best is not None
    others = []
    for edge in best[0] if len(cost) > 2 else []:  # every other matching lacks at least one of these edges
        upper = np.ones(len(weight))
        upper[edge] = 0
        if (other := solve(upper)) is not None:
            others.append(other[1])
    pairs = [(int(first[edge]), int(second[edge])) for edge in best[0]]
    return pairs, min(others, default=np.inf) - best[1]


def naming_likelihood(
    view: View, table: SentTable, member: Array, features: dict[str, Array], seed: int
) -> tuple[Array, list[str]]:
    """Log-likelihood that each group of rows (first axis) is each class, from everything that is known."""
    known, classes = view.knowledge, len(view.spec.classes)
    sizes = np.bincount(member, minlength=classes).astype(np.float64)
    total, sources = np.zeros((classes, classes)), []
    priors = known.class_priors
    if priors is None and known.distribution is not None and known.distribution.labels is not None:
        counts = np.bincount(known.distribution.labels, minlength=classes)
        # the pool's own chance is part of the comparison: few people say little about shares
        trust = counts.sum() / (counts.sum() + len(member))
        total += trust * np.outer(sizes, np.log((counts + 0.5) / (counts.sum() + 0.5 * classes)))
        sources.append("class shares of the distribution sample")
    elif priors is not None:
        expected = priors * len(member)
        if np.abs(np.sort(sizes) - np.sort(expected)).max() < 0.5:  # exact shares of these rows: sizes are names
            total -= (sizes[:, None] - expected) ** 2
        else:
            total += np.outer(sizes, np.log(np.maximum(priors, 0.5 / len(member))))
        sources.append("class priors")
    if known.distribution is not None and known.distribution.labels is not None:
        found = _leverage_likelihood(known.distribution.features, known.distribution.labels, features, member, classes)
        if found is not None:
            total += found
            sources.append("leverage of other people")
    if known.labelled is not None and not table.shuffled:
        handles, labels = known.labelled
        at = np.full(view.spec.rows, -1)
        at[table.rows] = np.arange(len(table.rows))
        usable = at[handles] >= 0
        seen = np.zeros((classes, classes))
        np.add.at(seen, (member[at[handles[usable]]], labels[usable]), 1)
        total += seen * 10 * np.log(len(member))  # a known label outweighs shares; several outvote a wrong pair
        sources.append("known labels")
    return total, sources


def leverage(values: Array) -> Array:
    """x (X'X/N)^-1 x' of every row: no invertible map x -> x A changes it."""
    left, sizes, _ = np.linalg.svd(values, full_matrices=False)
    kept = left[:, sizes > sizes[0] * 1e-5]
    return (kept**2).sum(axis=1) * len(values)


def invariants(tables: list[Array]) -> Array:
    """Per row: log leverage at every client, and of all clients' columns together."""
    parts = [leverage(values) for values in tables]
    if len(tables) > 1:
        parts.append(leverage(np.hstack(tables)))
    return np.log(np.stack(parts, axis=1) + 1e-3)


def _leverage_likelihood(pool: Any, labels: Array, sent: dict[str, Array], member: Array, classes: int) -> Array | None:
    """How well the rows of each group fit each class by their leverages, learned from the pool; None if it cannot be.

    Rows of a group are not independent witnesses of a fitted classifier, so their sum is scaled down to the number of
    pool rows it was fitted on.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    parties = [party for party in sent if party in pool and pool[party].shape[1] == sent[party].shape[1]]
    width = sum(pool[party].shape[1] for party in parties)
    present, counts = np.unique(labels, return_counts=True)
    if not parties or len(present) < classes or counts.min() < 5 or len(labels) < 2 * width:
        return None
    model = make_pipeline(
        StandardScaler(), PolynomialFeatures(2), StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)
    )
    model.fit(invariants([pool[party] for party in parties]), labels)
    logs = np.log(np.maximum(model.predict_proba(invariants([sent[party] for party in parties])), 1e-4))
    logs -= np.log(counts / counts.sum())  # shares are weighed elsewhere
    sums = np.zeros((classes, classes))
    np.add.at(sums, member, logs)
    return sums * min(1.0, len(labels) / len(member)) / 2


def best_names(likelihood: Array) -> tuple[Array, float]:
    """The most likely one-to-one naming of groups, and by how much (log-likelihood) it beats the next."""
    from scipy.optimize import linear_sum_assignment

    groups, names = linear_sum_assignment(likelihood, maximize=True)
    best, others = likelihood[groups, names].sum(), [-np.inf]
    for group, name in zip(groups, names, strict=True):
        without = likelihood.copy()
        without[group, name] = likelihood.min() - 2 * np.abs(likelihood).sum() - 1
        rows, columns = linear_sum_assignment(without, maximize=True)
        if not np.any((rows == group) & (columns == name)):
            others.append(likelihood[rows, columns].sum())
    return names, float(best - max(others))


def invariants_elsewhere(view: View, party: str) -> tuple[Array, Array] | None:
    """Per row of a party's table, the other parties' leverages: as sent, and of the pool. None if nobody else sent."""
    pool = view.knowledge.distribution
    assert pool is not None
    sent = feature_tables(view, view.table_of(party))
    usable = [
        other
        for other, values in sent.items()
        if other != party
        and 2 * values.shape[1] < len(pool.features[other])
        and values.shape[1] == pool.features[other].shape[1]
    ]
    if not usable:
        return None
    return invariants([sent[other] for other in usable]), invariants([pool.features[other] for other in usable])


def doubly_stochastic(fit: Array) -> Array:
    """Chances of a one-to-one naming: rows and columns of exp(fit) scaled to sum to one."""
    from scipy.special import logsumexp

    logs = np.maximum(fit - fit.max(axis=1, keepdims=True), -60.0)
    for _ in range(300):
        logs = logs - logsumexp(logs, axis=0, keepdims=True)
        logs = logs - logsumexp(logs, axis=1, keepdims=True)
    return np.exp(logs)
