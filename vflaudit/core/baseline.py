"""The best guess without the protocol: what the adversary could say from its knowledge and its own columns alone."""

from __future__ import annotations

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.regression import Fit, constant, fits
from vflaudit.core.view import View


def known_mean(view: View, party: str) -> Array | None:
    """The column means, where the adversary has them exactly: told, or public because inputs are standardised.

    Standardising makes numeric columns zero on average; indicators of categories keep their frequency, so a party with
    any of those has no public mean.
    """
    if party in view.knowledge.means:
        return view.knowledge.means[party]
    if view.spec.standardised and all(column.kind == "numeric" for column in view.spec.columns[party]):
        return np.zeros(len(view.spec.columns[party]))
    return None


def no_message_fits(view: View, party: str, seed: int) -> list[Fit]:
    """Predictors of a victim's columns from the corrupted parties' own columns, shape (rows, own) -> (rows, columns).

    Examples come from the distribution sample if there is one, and from known samples whose ids are known (without ids
    they cannot be joined with own columns).
    """
    found: list[Fit] = []
    mean = known_mean(view, party)
    own = view.own_columns()
    samples, pool = view.knowledge.samples, view.knowledge.distribution
    if pool is not None:
        targets = pool.features[party]
        found.append(constant(targets, mean))
        found += fits(view.own_pool_columns(pool), targets, seed, learners=("ridge", "kernel"))
    if samples is not None:
        targets = samples.features[party]
        found.append(constant(targets, mean))
        if samples.handles is not None:
            found += fits(own[samples.handles], targets, seed, learners=("ridge", "kernel"))
    if not found:
        width = len(view.spec.columns[party])
        found.append(constant(np.zeros((1, width)), mean if mean is not None else np.zeros(width)))
    return found
