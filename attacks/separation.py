"""Undoing a random projection from the population's distribution alone (RAP section 3, Case 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks import alignment
from attacks.alignment import Block, Rotations
from attacks.base import FeatureAttack, Requirement
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.view import SentTable, View
from vflaudit.errors import InputError

DISTRIBUTION = Requirement(
    "other rows of the same population (--knows distribution=200)", lambda view: view.knowledge.distribution is not None
)
SAME = 0.1  # entries of two rotations that differ by less are one alignment
FEWEST = 10  # rows of the population below which there is no shape to speak of


@dataclass(frozen=True)
class Effort:
    """How hard to search."""

    restarts: int = 100
    candidates: int = 12
    rows: int = 400
    steps: int = 40
    resamples: int = 24


def search(blocks: Sequence[Block], effort: Effort, seed: int) -> tuple[Rotations, Array]:
    """The best alignments found, and their weights.

    The weights stand for the posterior: an alignment and its mirror image that fit equally well get one half each.
    """
    rng = stream(seed, "alignment")
    few = _subset(blocks, effort.rows // 2, rng)
    many = _subset(blocks, effort.rows, rng)
    starts, left = alignment.match_correlations(blocks, alignment.random_rotations(blocks, effort.restarts, rng), 60)
    starts = alignment.pick(starts, _different(left, 40) if len(blocks) > 1 else slice(None))
    rough = alignment.refine(
        few, alignment.stack(starts, _mirror(blocks, starts), alignment.matched_components(blocks, seed)), 12
    )
    if len(blocks) > 1:
        rough = alignment.stack(rough, _alone(few, rng))
        rough = _recombined(few, _closest(few, rough, 24))
    best = _closest(few, _distinct(_closest(few, rough, 40)), (effort.candidates + 1) // 2)
    best = alignment.stack(best, *_one_mirrored(blocks, alignment.pick(best, [0])))
    best = alignment.stack(best, _mirror(blocks, best))  # an alignment and its mirror image must have equal chances
    found = _distinct(alignment.refine(many, best, effort.steps))
    return found, _weights(_subset(blocks, 2 * effort.rows, rng), found, rng, effort.resamples)


def _distinct(q: Rotations) -> Rotations:
    """Without those that arrived at the same place as an earlier one."""
    kept: list[int] = []
    for k in range(len(q[0])):
        if all(max(float(np.abs(r[k] - r[j]).max()) for r in q) > SAME for j in kept):
            kept.append(k)
    return alignment.pick(q, kept)


def _mirror(blocks: Sequence[Block], q: Rotations) -> Rotations:
    """The same alignments, seen in a mirror: what correlations cannot tell apart."""
    return [r if b.fixed else -r for b, r in zip(blocks, q, strict=True)]


def _one_mirrored(blocks: Sequence[Block], q: Rotations) -> list[Rotations]:
    """Only one block mirrored at a time."""
    free = [i for i, b in enumerate(blocks) if not b.fixed] if len(blocks) > 1 else []
    return [[-r if j == i else r for j, r in enumerate(q)] for i in free]


def _closest(blocks: Sequence[Block], q: Rotations, count: int) -> Rotations:
    return alignment.pick(q, np.argsort(alignment.energy(blocks, q), kind="stable")[:count])


def _alone(blocks: Sequence[Block], rng: np.random.Generator, starts: int = 20, count: int = 6) -> Rotations:
    """Every block aligned by its own shape, without the others."""
    found: Rotations = []
    for b in blocks:
        own = alignment.random_rotations([b], starts, rng)
        found += alignment.pick(own, slice(count)) if b.fixed else _closest([b], alignment.refine([b], own, 12), count)
    return [q[: min(len(r) for r in found)] for q in found]


def _recombined(blocks: Sequence[Block], pool: Rotations, count: int = 3) -> Rotations:
    """Starts that are right about different parties, joined: swap single blocks while the distance falls."""
    made = []
    for k in range(min(count, len(pool[0]))):
        now = alignment.pick(pool, [k])
        for i in [i for _ in range(2) for i, b in enumerate(blocks) if not b.fixed]:
            tried = [pool[i] if j == i else np.repeat(r, len(pool[0]), axis=0) for j, r in enumerate(now)]
            now = _closest(blocks, alignment.stack(now, tried), 1)
        made.append(alignment.refine(blocks, now, 12))
    return alignment.stack(*made, pool)


def _subset(blocks: Sequence[Block], count: int, rng: np.random.Generator) -> list[Block]:
    rows, targets = (rng.permutation(len(side))[:count] for side in (blocks[0].cloud, blocks[0].target))
    return [b.take(rows, targets) for b in blocks]


def _different(left: Array, count: int) -> Array:
    """The best starts, one of each: those that ended with the same misfit are the same."""
    order = np.argsort(left, kind="stable")
    new = np.append(True, np.diff(left[order]) > 1e-3 * left[order[0]])
    return order[new][:count]


def _weights(blocks: Sequence[Block], q: Rotations, rng: np.random.Generator, resamples: int) -> Array:
    """The odds of every alignment against the closest one.

    If one of two alignments is right, their distances to the targets differ by the distance between the two, `apart`,
    which the cloud tells about itself; the observed difference deviates from it by `noise`. Then the logarithm of the
    odds is 2 x difference x apart / noise^2. Noise comes from random halves, made white again as a fresh sample would
    be. Tried: the closest alone is wrong by a sign (R2 below -2) where a mirror image fits nearly as well; the share of
    wins among resamples is overconfident there; two standard errors instead of one lose more on wine than they save.
    """
    whole = alignment.energy(blocks, q)
    best = int(whole.argmin())
    gaps, apart = np.zeros((resamples, len(whole))), np.zeros((resamples, len(whole)))
    for k in range(resamples):
        orders = [rng.permutation(len(side)) for side in (blocks[0].cloud, blocks[0].target)]
        first, second = ([order[part::2] for order in orders] for part in range(2))
        one, two = ([b.white(*half) for b in blocks] for half in (first, second))
        costs = alignment.energy(one, q)
        gaps[k] = costs - costs[best]
        own = [_against(a, b.cloud @ r[best]) for a, b, r in zip(one, two, q, strict=True)]
        costs = alignment.energy(own, q)
        apart[k] = costs - costs[best]
    noise = gaps.var(axis=0, ddof=1) / 2 if resamples > 1 else np.ones(len(whole))
    sure = np.maximum(apart.mean(axis=0) - apart.std(axis=0) / np.sqrt(2), 0.0)
    odds = -2 * (whole - whole[best]) * sure / np.maximum(noise, 1e-300)
    weights = np.exp(odds - odds.max())
    return weights / weights.sum()


def _against(b: Block, target: Array) -> Block:
    return Block(b.cloud, target, np.zeros(b.width), np.zeros(b.width), b.fixed)


def chance(blocks: Sequence[Block], effort: Effort, seed: int, draws: int = 199) -> float:
    """The p-value of 'no rotation is better than another': align one half, judge on the other; the worse of both ways.

    If the cloud has nothing to do with the targets' shape and with their correlations (Gaussian noise), the rotation
    found on one half is as good on the other half as any random one.
    """
    rng = stream(seed, "alignment", "chance")
    orders = [rng.permutation(len(side)) for side in (blocks[0].cloud, blocks[0].target)]
    halves = [[order[k::2][: effort.rows] for order in orders] for k in range(2)]
    parts = [[b.white(*half) for b in blocks] for half in halves]
    p_values = []
    for fitted, judged in (parts, parts[::-1]):
        found, _ = search(fitted, effort, seed)
        small = _subset(judged, effort.rows // 2, rng)
        tried = alignment.stack(
            alignment.pick(found, [int(alignment.energy(fitted, found).argmin())]),
            alignment.random_rotations(blocks, draws, rng),
        )
        costs = alignment.energy(small, tried)
        p_values.append(float((costs <= costs[0]).mean()))
    return max(p_values)


class BlindSeparation(FeatureAttack):
    """Rotate the transformed tables until they look like other people of the same population (RAP Case 2).

    Case 2 says that a server which knows the distribution finds infinitely many solutions. That is true of the mean,
    and of Gaussian columns of one client taken alone. It is not true of
    - the shape of one client's columns, if they are not Gaussian (tables=own);
    - the correlations between clients, which every client's matrix must respect at once (tables=all). These are second
      moments: they give Gaussian columns away too, up to one sign for all if inputs are standardised, and completely if
      not, as there is no intercept and the means then tell the sign.
    Columns of corrupted parties join in the clear. Where several alignments fit, the guess is their mean, weighted by
    their odds; where none is better than a random rotation, it is the column mean.

    What fails: Gaussian columns of one client alone, or equally correlated ones; columns that are exchangeable (equal
    shapes, equal correlations) or symmetric, as far as that goes; one client alone with few people (53 rows of wine do
    not tell a four-column cloud from its mirror image); now and then a sign that is believed too firmly.
    """

    name: ClassVar[str] = "blind-separation"
    requires: ClassVar[tuple[Requirement, ...]] = (DISTRIBUTION,)
    tables: Literal["all", "own"] = Field("all", description="align all clients together, or each one by itself")
    restarts: int = Field(100, ge=1, description="random starts")
    candidates: int = Field(12, ge=1, description="alignments that are refined and weighed")
    rows: int = Field(400, ge=20, description="people used at most to fit the shape of two clouds; moments use all")
    level: float = Field(0.05, gt=0, le=1, description="p-value above which an alignment counts as chance")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        pool = view.knowledge.distribution
        assert pool is not None
        count = len(next(iter(pool.features.values())))
        if count < FEWEST:
            raise InputError(f"attack {self.name!r} needs {FEWEST} rows of the population or more, not {count}")
        victims = self.victims(view)
        sent = {party: view.table_of(party) for party in (view.victims if self.tables == "all" else victims)}
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {"p_value": {}, "weight_of_best": {}}
        groups = [tuple(sent)] if self.tables == "all" else [(party,) for party in victims]
        for group in groups:
            guesses, p_value, weight = self._align(view, {party: sent[party] for party in group}, seed)
            for party in [party for party in victims if party in group]:
                features[party] = guesses[party]
                notes["p_value"][party], notes["weight_of_best"][party] = p_value, weight
        return {"features": {party: features[party] for party in victims}, "notes": notes}

    def _align(self, view: View, sent: dict[str, SentTable], seed: int) -> tuple[dict[str, RowGuess], float, float]:
        pool = view.knowledge.distribution
        assert pool is not None
        rng = stream(seed, "attack", self.name)
        shuffled = any(table.shuffled for table in sent.values())
        rows = next(iter(sent.values())).rows
        for table in sent.values():
            rows = np.intersect1d(rows, table.rows)
        blocks, back = [], {}
        for party, table in sent.items():
            order = np.argsort(table.rows)
            values = table.values[order[np.searchsorted(table.rows, rows, sorter=order)]].astype(np.float64)
            joined, back[party] = alignment.block(values, pool.features[party], rng)
            blocks.append(joined)
        if self.tables == "all" and not shuffled:
            blocks += [
                alignment.fixed_block(state.features[rows], pool.features[party])
                for party, state in view.states.items()
                if state.features is not None and party in pool.features and state.present is not None
            ]
        effort = Effort(self.restarts, self.candidates, self.rows)
        quick = Effort(max(1, self.restarts // 3), 4, min(self.rows, 300), 20, resamples=1)
        p_value = chance(blocks, quick, seed)
        found, weights = search(blocks, effort, seed)
        guesses = {}
        for joined, rotations, (party, whitening) in zip(blocks, found, back.items(), strict=False):
            values = np.zeros((len(rows), len(whitening.mean)))
            for rotation, weight in zip(rotations, weights, strict=True):
                if weight > 0 and p_value <= self.level:
                    turned = (joined.cloud @ rotation)[:, : len(whitening.outer)] @ whitening.outer
                    values += weight * _rescaled(view, party, turned)
            mean = known_mean(view, party)
            values += pool.features[party].mean(axis=0) if mean is None else mean
            guesses[party] = RowGuess(rows, values, shuffled=shuffled)
        return guesses, p_value, float(weights.max())


def _rescaled(view: View, party: str, values: Array) -> Array:
    """Centred columns, each with its exact deviation over the training rows where that is known."""
    values = values - values.mean(axis=0)
    found = values.std(axis=0)
    exact = found.copy()
    if view.spec.standardised:
        exact[[column.kind == "numeric" for column in view.spec.columns[party]]] = 1.0
    if party in view.knowledge.second_moments:
        variance = np.diag(view.knowledge.second_moments[party]) - view.knowledge.means[party] ** 2
        exact = np.sqrt(np.maximum(variance, 0.0))
    return values * np.divide(exact, found, out=np.ones_like(exact), where=found > 1e-3)
