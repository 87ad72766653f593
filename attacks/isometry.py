"""Turning a representation back without a single known pair, because good encoders hardly distort distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.separation import DISTRIBUTION
from vflaudit.core.baseline import no_message_fits
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.regression import Fit
from vflaudit.core.view import View

SOMEBODY = Requirement(
    "known samples with their ids (--knows known-samples=30,ids) or other people (--knows distribution=200)",
    lambda view: (
        view.knowledge.distribution is not None
        or (view.knowledge.samples is not None and view.knowledge.samples.handles is not None)
    ),
)
FAR = 3.0  # deviations beyond which own columns count as this far: products of outliers would be all that is seen

LITTLE = 0.05  # share of the variance


@dataclass(frozen=True, eq=False)
class Clouds:
    """Messages and other people's columns, both centred and of one size and width, each with what goes with its rows.

    `beside` are functions of the adversary's own columns, white over both clouds together; `own` are the columns
    themselves in deviations.
    """

    messages: Array
    targets: Array
    beside: tuple[Array, Array]
    own: tuple[Array, Array]


class IsometricAlignment(FeatureAttack):
    """Rotate representations until they move with the active party's own columns as other people's columns do.

    APC-VFL (IV-E) rests on there being infinitely many encoders. An autoencoder that keeps its input does so nearly by
    a rotation into more dimensions, and rotations are few: with Z = X A the covariance of Z with any function h of the
    adversary's own columns is A' cov(X, h), and cov(X, h) can be had from other people of the population (own columns
    are instruments, in two samples). Steps, each in closed form:
    1. the leading directions of Z, as many as the party has columns, scaled to the columns' total variance;
    2. the rotation that best explains cov(Z, h) and cov(Z) by theirs (Procrustes, repeated), from principal axes in
       order with the signs that h gives;
    3. the same with the energy distance of the two clouds, own columns included (Procrustes with weights 1 / distance);
    4. the optimal transport between two Gaussians, which repairs the distortion that is left;
    5. all of it for random halves of the other people, averaged: what only one half says cancels out;
    6. a mean of the result and of regression from own columns, weighted by how far the result follows that regression.
    If messages are unrelated to own columns, step 6 leaves the regression nearly alone.

    What fails: nothing of the adversary's own goes with the columns, or little is known of the population. Tried and
    left out: weights per column in step 6 and turning single axes over by the energy distance, which gained nothing.
    """

    name: ClassVar[str] = "isometric-alignment"
    requires: ClassVar[tuple[Requirement, ...]] = (DISTRIBUTION,)
    steps: int = Field(200, ge=0, description="of the rotation by covariances")
    shape_steps: int = Field(60, ge=0, description="of the rotation by the energy distance; 0 leaves it out")
    shape_weight: float = Field(10.0, ge=0, description="of the energy distance against covariances")
    rows: int = Field(400, ge=20, description="people of each cloud used at most for the energy distance")
    halves: int = Field(16, ge=1, description="random halves of the other people that are averaged over")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        trust: dict[str, float] = {}
        for party in self.victims(view):
            sent = view.sent_by(party)
            values, trust[party] = self.guess(view, party, sent.values, sent.rows, seed)
            features[party] = RowGuess(sent.rows, values)
        return {"features": features, "notes": {"trust": trust}}

    def guess(self, view: View, party: str, messages: Array, rows: Array, seed: int) -> tuple[Array, float]:
        """The party's columns behind these messages, and how far the alignment follows the regression, 0 to 1."""
        pool = view.knowledge.distribution
        assert pool is not None
        targets, rng = pool.features[party], stream(seed, "attack", self.name, party)
        prior = min((f for f in no_message_fits(view, party, seed) if len(f.errors) == len(targets)), key=_error)
        own, own_pool = view.own_columns()[rows], view.own_pool_columns(pool)
        start, middle, found = np.array(prior.predict(own)), targets.mean(axis=0), np.zeros((len(rows), 1))
        for _ in range(self.halves):
            half = rng.permutation(len(targets))[: max(2, len(targets) // 2)]
            clouds = make_clouds(messages, targets[half], own, own_pool[half])
            if clouds is None:
                return start, 0.0
            found = found + transported(clouds.messages @ self.rotation(clouds), clouds.targets) / self.halves
        explained = np.maximum(targets.var(axis=0) - prior.errors.mean(axis=0), 0.0)
        trust = followed(found, start, explained, targets.var(axis=0))
        return trust**2 * (found + middle) + (1 - trust**2) * start, trust

    def rotation(self, clouds: Clouds) -> Array:
        """Steps 2 and 3."""
        z, x, (hz, hx), (oz, ox) = clouds.messages, clouds.targets, clouds.beside, clouds.own
        pull = (z.T @ hz / len(z)) @ (x.T @ hx / len(x)).T
        spread, wanted = z.T @ z / len(z), x.T @ x / len(x)
        axes = np.linalg.eigh(wanted)[1][:, ::-1]
        signs = np.where(np.sum((z.T @ hz / len(z)) * (axes.T @ x.T @ hx / len(x)), axis=1) < 0, -1.0, 1.0)
        turned = signs[:, None] * axes.T
        for _ in range(self.steps):
            turned = nearest_rotation(pull + spread @ turned @ wanted)
        few = slice(self.rows)
        for _ in range(self.shape_steps):
            here, there = np.hstack([z[few] @ turned, oz[few]]), np.hstack([x[few], ox[few]])
            square = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1) - 2 * here @ there.T
            weights = 1.0 / np.sqrt(np.maximum(square, 1e-9))
            shape = z[few].T @ (weights / weights.sum()) @ x[few]
            turned = nearest_rotation(self.shape_weight * shape + pull + spread @ turned @ wanted)
        return turned


def make_clouds(messages: Array, targets: Array, own: Array, own_pool: Array) -> Clouds | None:
    """Step 1; none if messages or columns do not vary."""
    x = targets - targets.mean(axis=0)
    left, size, _ = np.linalg.svd(messages - messages.mean(axis=0), full_matrices=False)
    z = (left * size)[:, : x.shape[1]]
    if z.shape[1] < x.shape[1]:
        z = np.hstack([z, np.zeros((len(z), x.shape[1] - z.shape[1]))])
    if not (z.any() and x.any()):
        return None
    z *= np.sqrt((x**2).mean() / (z**2).mean())
    middle, spread = own_pool.mean(axis=0), own_pool.std(axis=0)
    usable = spread > 1e-9
    deviations = [((side - middle)[:, usable] / spread[usable]).clip(-FAR, FAR) for side in (own, own_pool)]
    return Clouds(z, x, _functions(*deviations), (deviations[0], deviations[1]))


def _functions(own: Array, own_pool: Array) -> tuple[Array, Array]:
    """Columns, squares and products, centred by the pool, white over both sides."""
    a, b = np.triu_indices(own.shape[1])
    sides = [np.hstack([side, side[:, a] * side[:, b]]) for side in (own, own_pool)]
    sides = [side - sides[1].mean(axis=0) for side in sides]
    both = np.vstack(sides)
    values, vectors = np.linalg.eigh(both.T @ both / len(both) + 1e-2 * np.eye(both.shape[1]))
    return sides[0] @ (vectors / np.sqrt(values)), sides[1] @ (vectors / np.sqrt(values))


def nearest_rotation(matrix: Array) -> Array:
    """The orthogonal matrix nearest to a square one."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def transported(values: Array, targets: Array) -> Array:
    """Step 4: the linear map of least displacement that gives centred values the covariance of the targets."""
    spread, wanted = values.T @ values / len(values), targets.T @ targets / len(targets)
    half, back = _power(spread, 0.5), _power(spread, -0.5)
    return values @ (back @ _power(half @ wanted @ half, 0.5) @ back)


def _power(matrix: Array, exponent: float) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-9 * values[-1]) ** exponent) @ vectors.T


def followed(found: Array, prior: Array, explained: Array, variance: Array) -> float:
    """Step 6: r in 'the alignment is r times the truth plus something unrelated', from 0 to 1.

    Its covariance with a regression that was fitted on other people is then r times that of the truth, which is what
    the regression explains. A regression that explains next to nothing cannot vouch for anything.
    """
    together = ((found - found.mean(axis=0)) * (prior - prior.mean(axis=0))).mean(axis=0)
    enough = max(float(explained.sum()), LITTLE * float(variance.sum()), 1e-12)
    return float(np.clip(together.sum() / enough, 0.0, 1.0))


def _error(fit: Fit) -> float:
    return fit.mse
