"""Re-identifying people in a linearly transformed table without ids, then solving the transformation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.stats import chi2

from attacks import gram_search as gram
from attacks import signs
from attacks.base import FeatureAttack, Requirement
from attacks.gram_search import Evidence, Whitening, fit, left_out, nearest, second_moment
from vflaudit.core.baseline import known_mean
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import stream
from vflaudit.core.view import SentTable, View
from vflaudit.errors import InputError

POOL = 5000  # rows from which sampling errors are estimated
EQUAL = 1e-8  # whitened distance up to which rows are the same
SPARE = 2  # known rows beyond the rank that the search itself places
BEST = 10  # tuples that are tried on the other known rows
CHANCE = 1e-8  # probability below which a coincidence is ruled out
CAUTION = 4.0  # how much larger than estimated the variance of a second moment may be
MISFIT = 0.2  # relative error of left-out known rows that contradicts a match
FAKES, MARGIN = 3, 10.0  # searches for made-up people, and how much better the real ones must fit

KNOWN_ROWS = Requirement(
    "known rows (--knows known-samples=12)",
    lambda view: view.knowledge.samples is not None or view.challenge is not None,
)


@dataclass(frozen=True, eq=False)
class Tables:
    """One victim: its table in whitened coordinates without repetitions, and where each distinct row stands."""

    sent: SentTable
    whitening: Whitening
    distinct: Array  # (distinct rows, rank)
    place: Array  # position in the table of each distinct row
    alone: Array  # whether the distinct row stands there once
    rounding: Array  # (rank, rank) covariance of the rounding on the wire, for a row of average size
    blur: Array  # deviation of the rounding of each distinct row in the worst direction
    turned: bool = False  # rows have random signs: each distinct row stands here twice, as x and as -x


@dataclass(frozen=True, eq=False)
class Match:
    """Where known rows stand among the distinct rows (-1: not found), and how sure that is."""

    placed: Array
    method: str
    error: float = np.inf  # of left-out known rows, relative to their spread
    rank: int = 0  # directions of the table that the placed rows span
    verified: bool = False
    convincing: bool = False


class LeverageMatching(FeatureAttack):
    """Find known people in RAP's table by x'S^-1x, which no matrix changes, then solve the table (RAP case 3b, no ids).

    RAP says that with n >= F known rows the server still needs their ids from a colluding client, and that a shuffle
    hides these. With T = X A and S = X'X/N, x_i'S^-1 x_j = t_i (T'T/N)^-1 t_j' for all pairs, whatever A and whatever
    the order. S is known exactly (`moments`), or estimated from other people of the population (`distribution`), or
    from the known rows themselves (about a hundred at F = 8). Tuples of table rows are searched by the likelihood of
    all pairwise residuals, then the map is solved by least squares and the other known rows confirm it or not.

    Verified means that known rows which were left out are predicted much closer to one table row than to any other,
    beyond coincidence, and that known rows span the table (rare categories may be missing from them). That takes at
    least two more known rows than the rank. With fewer, a match is proposed if it fits better than made-up people do.
    Otherwise the guess is the mean. One table in which people were found gives ids for all others.

    Measured with n = F + 4 on Gaussian data, F = 8: 2000 rows are mostly solved with 200 people to estimate S from,
    20000 rows with 2000, but not with 200 (a beam of 60000 solved 2 of 8, with work of 60). Noise of 1% in known
    values loses about a third, 5% everything. Raw units in float32 lose columns that are tiny beside others. One column
    behind a pseudo feature has no such invariant.
    """

    name: ClassVar[str] = "leverage-matching"
    games: ClassVar[tuple[str, ...]] = ("reconstruction", "reidentification")
    requires: ClassVar[tuple[Requirement, ...]] = (KNOWN_ROWS,)
    beam: int = Field(20_000, ge=1, description="most tuples that the search keeps at a time")
    work: float = Field(
        10.0, gt=0, description="billions of multiplications, about as many seconds, that a search may take per table"
    )
    noise: tuple[float, ...] = Field(
        (0.0, 0.001, 0.01),
        min_length=1,
        description="relative noise of known values to reckon with, tried in this order",
    )
    tolerance: float = Field(0.05, gt=0, description="relative error of left-out known rows that counts as verified")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        victims = self.victims(view)
        turned = signs.turned(view)
        tables = {party: read(view.table_of(party), turned) for party in victims}
        matches = {party: self.match(view, party, tables[party], seed) for party in victims}
        if not any(match.verified for match in matches.values()):
            # other honest parties' tables are asked only for the ids they may give away
            for party in (party for party in view.victims if party not in victims and has_table(view, party)):
                tables[party] = read(view.table_of(party), turned)
                matches[party] = self.match(view, party, tables[party], seed)
                if matches[party].verified:
                    break
        for party in victims:
            if not matches[party].verified:
                matches[party] = self.borrow(view, party, tables, matches)
        features = {party: self.reconstruct(view, party, tables[party], matches[party], seed) for party in victims}
        notes = {
            "method": {party: matches[party].method if matches[party].convincing else "none" for party in victims},
            "matched": {party: int((matches[party].placed >= 0).sum()) for party in victims},
            "known": {party: len(matches[party].placed) for party in victims},
            "directions": {party: f"{matches[party].rank} of {tables[party].whitening.rank}" for party in victims},
            "found": {party: matches[party].verified for party in victims},
            "left_out_relative_error": {
                party: matches[party].error if np.isfinite(matches[party].error) else None for party in victims
            },
        }
        guess: dict[str, Any] = {"features": features, "notes": notes}
        # people may be found beyond doubt who do not span the table: then part of it is still unknown, as are the
        # signs of all other rows where signs are random
        guess["verified"] = all(
            matches[party].verified
            and (view.challenge is not None or (matches[party].rank == tables[party].whitening.rank and not turned))
            for party in victims
        )
        if view.challenge is not None:
            named = [party for party in victims if party in view.challenge.features]
            if len(named) == 1:
                guess["matches"] = self.name_rows(view, named[0], tables[named[0]], matches[named[0]])
                guess["shuffled"] = tables[named[0]].sent.shuffled
        return guess

    def match(self, view: View, party: str, table: Tables, seed: int) -> Match:
        """Place the known rows of one party, by ids if these are known."""
        known = known_rows(view, party)
        handles = None if view.knowledge.samples is None else view.knowledge.samples.handles
        if handles is not None and not table.sent.shuffled:
            placed = np.full(len(known), -1)
            placed[: len(handles)] = positions(table, handles, known[: len(handles)])
            return self.verify(known, table, placed, "ids")
        best = Match(np.full(len(known), -1), "none")
        if not len(known):
            return best
        told, budget = party in view.knowledge.second_moments, gram.Budget(self.work * 1e9)
        for noise, caution in [(noise, 1.0) for noise in self.noise] if told else self.cautious():
            evidence = gather(view, party, table, noise, seed)
            if evidence is None:
                return best  # the known rows do not tell the metric of this table
            evidence = replace(evidence, spread=evidence.spread * caution)
            for beam in dict.fromkeys((max(1, self.beam // 10), self.beam)):
                steps = gram.plan(evidence, table.whitening.rank + SPARE)
                found = gram.search(evidence, steps, beam, budget)
                best = max(best, self.judge(known, table, evidence, found, (beam, budget), seed), key=_quality)
                if best.convincing or budget.left < 0:
                    return best
                if not found.full:
                    break
        return best

    def cautious(self) -> list[tuple[float, float]]:
        """Noise to reckon with, and by how much sampling errors may exceed their estimate (heavy tails), in turn."""
        least, most = min(self.noise), max(self.noise)
        return [(least, 1.0), (least, CAUTION), *([(most, CAUTION)] if most > least else [])]

    def judge(
        self,
        known: Array,
        table: Tables,
        evidence: Evidence,
        found: gram.Tuples,
        limits: tuple[int, gram.Budget],
        seed: int,
    ) -> Match:
        """The best tuple that was found, refined and verified; not convincing if made-up people fit as well."""
        method = "estimated moments" if evidence.spread else "exact moments"
        best = Match(np.full(len(known), -1), "none")
        for rows in found.rows[:BEST]:
            seeds = evidence.chosen[found.known]
            placed = gram.refine(known / _scale(known), table.distinct, seeds, rows, table.blur)
            best = max(best, self.verify(known, table, placed, method), key=_quality)
            if best.verified:
                return best
        contradicted = len(known) >= table.whitening.rank + 2 and best.error > MISFIT
        if not len(found.rows) or contradicted:
            return best
        rng = stream(seed, "attack", self.name, "fakes")
        for _ in range(FAKES):
            crowd = evidence.pool if len(evidence.pool) >= 4 * len(evidence.known) else None
            shape = evidence.known.shape
            fake = rng.standard_normal(shape) if crowd is None else rng.permutation(crowd)[: shape[0]]
            twin = replace(evidence, known=fake)  # as large as the real ones, which is how coarse they are taken to be
            other = gram.search(twin, gram.plan(twin, len(found.known)), *limits)
            if limits[1].left < 0 or (len(other.rows) and other.misfit[0] < found.misfit[0] + MARGIN):
                return best
        return replace(best, convincing=bool((best.placed >= 0).any()))

    def borrow(self, view: View, party: str, tables: dict[str, Tables], matches: dict[str, Match]) -> Match:
        """Ids from another party's verified table: rows stand in the same order in all tables."""
        samples = view.knowledge.samples
        for other, match in matches.items():
            same = np.array_equal(tables[other].sent.rows, tables[party].sent.rows)
            if samples is None or not match.verified or not same or other == party:
                continue
            mine, theirs = tables[party], tables[other]
            count = len(samples.features[party])
            placed, spot = np.full(len(known_rows(view, party)), -1), match.placed[:count]
            sure = (spot >= 0) & theirs.alone[spot]
            known = known_rows(view, party)
            placed[:count][sure] = positions(mine, mine.sent.rows[theirs.place[spot[sure]]], known[:count][sure])
            found = self.verify(known, mine, placed, f"ids from the table of {other}")
            return max(matches[party], found, key=lambda match: (match.convincing, (match.placed >= 0).sum()))
        return matches[party]

    def verify(self, known: Array, table: Tables, placed: Array, method: str) -> Match:
        """Whether left-out known rows are predicted next to one table row and far from all others."""
        once = np.sort(np.unique(known, axis=0, return_index=True)[1])  # equal rows would predict each other
        at = once[placed[once] >= 0]
        match = Match(placed, method, convincing=method.startswith("ids"))
        if not len(at):
            return match
        scaled, there, blur = known / _scale(known), table.distinct[placed[at]], table.blur[placed[at]]
        error, proven, rank = left_out(there, scaled[at], blur)
        spare, match = len(at) - rank, replace(match, rank=rank)
        if spare < 1 or proven.sum() < 2:
            return match
        near, centred = np.linalg.norm(error[proven], axis=1), scaled[at] - scaled[at].mean(axis=0)
        relative = float(np.linalg.norm(near) / (np.linalg.norm(centred[proven]) or 1.0))
        mapped = table.distinct @ fit(there, scaled[at], blur)
        far = nearest(scaled[at][proven], mapped, excluding=placed[at][proven])[1]
        ratio = np.ones(len(once) - len(at) + len(near))  # a known row that was not found speaks against the rest
        ratio[: len(near)] = np.clip(near / np.maximum(far, 1e-300), 1e-12, 1.0)
        # for somebody who is not in the table, neighbours are random and ratio^dimension is uniform; only `spare`
        # residuals are free, the others follow from them
        surprise = float(chi2.sf(-2 * spare * gram.dimension(mapped) * np.log(ratio).mean(), 2 * spare))
        # a direction that no known row shows, as a rare category, stays unknown: what is solved is then only a part
        whole = rank >= min(table.whitening.rank, known.shape[1])
        sure = whole and spare >= 2 and surprise < CHANCE and relative < self.tolerance and len(at) >= len(once) / 2
        return replace(match, error=relative, verified=sure, convincing=match.convincing or sure)

    def reconstruct(self, view: View, party: str, table: Tables, match: Match, seed: int) -> RowGuess:
        """The whole table by least squares (of least norm if there are too few rows), or the mean."""
        known, at, sent = known_rows(view, party), np.flatnonzero(match.placed >= 0), table.sent
        if not match.convincing or not len(at):
            mean, others = known_mean(view, party), view.knowledge.distribution
            if mean is None:
                rows = known if others is None else np.vstack([known, others.features[party]])
                mean = rows.mean(axis=0) if len(rows) else np.zeros(known.shape[1])
            return RowGuess(sent.rows, np.tile(mean, (len(sent.rows), 1)), sent.shuffled)
        scale, spot = _scale(known), match.placed[at]
        back = table.whitening.forward @ fit(table.distinct[spot], known[at] / scale, table.blur[spot]) * scale
        values = np.vstack([block @ back for block in gram.blocks(sent.values)])
        if table.turned:
            others = view.knowledge.distribution
            examples = known if others is None else np.vstack([known, others.features[party]])
            values = signs.upright(values, examples, seed)
        return RowGuess(sent.rows, values, sent.shuffled)

    def name_rows(self, view: View, party: str, table: Tables, match: Match) -> Array:
        """A table row for each candidate of the game: where the map puts it, or the nearest leverage without a map."""
        assert view.challenge is not None
        wanted, known = view.challenge.features[party], known_rows(view, party)
        at = np.flatnonzero(match.placed >= 0)
        if match.convincing and len(at):
            scale, spot = _scale(known), match.placed[at]
            back = fit(table.distinct[spot], known[at] / scale, table.blur[spot])
            found = nearest(wanted / scale, table.distinct @ back)[0]
        else:
            evidence = gather(view, party, table, 0.0, 0)
            lengths = np.einsum("ij,ij->i", table.distinct, table.distinct)
            own = np.ones(len(wanted)) if evidence is None else ((wanted @ evidence.metric) ** 2).sum(axis=1)
            found = np.abs(lengths - own[:, None]).argmin(axis=1)
        return table.sent.rows[table.place[found]]


def _quality(match: Match) -> tuple[bool, bool, float, int]:
    return match.verified, match.convincing, -match.error, int((match.placed >= 0).sum())


def _scale(known: Array) -> Array:
    deviation = known.std(axis=0)
    return np.where(deviation > 1e-12 * np.abs(known).max(initial=0.0), deviation, 1.0)


def has_table(view: View, party: str) -> bool:
    """Whether the view has a table about the party's columns."""
    try:
        return len(view.table_of(party).values) > 0
    except InputError:
        return False


def known_rows(view: View, party: str) -> Array:
    """All rows of a party that the adversary knows to be in the table: its samples, then the game's candidates."""
    parts = [np.zeros((0, len(view.spec.columns[party])))]
    if view.knowledge.samples is not None:
        parts.append(view.knowledge.samples.features[party])
    if view.challenge is not None and party in view.challenge.features:
        parts.append(view.challenge.features[party])
    return np.vstack(parts).astype(np.float64)


def read(sent: SentTable, turned: bool = False) -> Tables:
    """Whiten a table and group its equal rows, in blocks; with random signs, rows that are equal up to sign."""
    values = sent.values.reshape(len(sent.values), -1)
    precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 2.0**-52
    moment = second_moment(values)
    whitening = Whitening.of(moment, max(4 * precision, 1e-7))
    white = np.vstack([block @ whitening.forward for block in gram.blocks(values)])
    # rounding errs by up to half a unit, evenly: precision^2 / 12; doubled, since large values round more coarsely
    rounding = (whitening.forward.T * np.diag(moment)) @ whitening.forward * precision**2 / 6
    rounding += np.eye(whitening.rank) * 1e-18
    if turned:
        white = white * np.where(white @ gram.generic(whitening.rank) < 0, -1.0, 1.0)[:, None]
    place, counts = gram.groups(white, EQUAL)  # equal people are rounded alike
    size = (values[place].astype(np.float64) ** 2).sum(axis=1) / np.trace(moment)
    blur, distinct, alone = np.sqrt(np.linalg.norm(rounding, 2) * size), white[place], counts == 1
    if turned:
        distinct, place, alone, blur = np.vstack([distinct, -distinct]), *(np.tile(a, 2) for a in (place, alone, blur))
    return Tables(replace(sent, values=values), whitening, distinct, place, alone, rounding, blur, turned)


def positions(table: Tables, handles: Array, known: Array) -> Array:
    """The distinct row of each handle (-1: not sent), with the sign that goes with the known values."""
    order = np.argsort(table.sent.rows, kind="stable")
    spot = order[np.searchsorted(table.sent.rows, handles, sorter=order).clip(max=len(order) - 1)]
    white = table.sent.values[spot].astype(np.float64) @ table.whitening.forward
    if table.turned and len(handles):
        found = signs.find_signs(white, known)
        white = white if found is None else white * found[:, None]
    return np.where(table.sent.rows[spot] == handles, nearest(white, table.distinct)[0], -1)


def gather(view: View, party: str, table: Tables, noise: float, seed: int) -> Evidence | None:
    """What is known about second moments, best first: told, from other people, from the known rows themselves."""
    known, rank, total = known_rows(view, party), table.whitening.rank, len(table.sent.values)
    chosen = np.sort(np.unique(known, axis=0, return_index=True)[1])  # equal people stand in one place
    told = view.knowledge.second_moments.get(party)
    if told is not None:
        moment, pool, spread, shrunk = told, known[:0], 0.0, 1.0
    else:
        others = view.knowledge.distribution
        pool = known[:0] if others is None else others.features[party]
        if len(pool) < 5 * len(known):
            # rows that are searched for must not shape the metric as well: a random part of them is enough to search
            wanted = min(len(chosen), max(rank + 2 * SPARE, len(known) // 4))
            mixed = stream(seed, "attack", LeverageMatching.name, "split").permutation(chosen)
            chosen = np.sort(mixed[:wanted])
            pool = np.vstack([pool, known[np.setdiff1d(np.arange(len(known)), chosen)]])
        if len(pool) <= rank + 2:
            return None
        rest = total - len(known)
        moment = (known.T @ known + max(rest, 0) * second_moment(pool)) / max(total, len(known))
        spread = 1 / len(pool) + 1 / max(rest, 1)
        shrunk = (len(pool) - rank - 1) / len(pool)  # the inverse of an estimated moment is too large by this
    metric = Whitening.of(moment, 1e-7, rank)
    if metric.rank < rank:
        return None
    forward = metric.forward * np.sqrt(shrunk)
    error = (forward.T * (noise * _scale(known)) ** 2) @ forward
    keep = np.linspace(0, len(pool) - 1, min(len(pool), POOL)).astype(int)
    # a random matrix keeps sizes, more or less, and large rows are rounded more coarsely
    size = np.maximum((known[chosen] ** 2).sum(axis=1) / max(float(np.trace(moment)), 1e-300), 1.0)
    return Evidence(
        table=table.distinct,
        known=known[chosen] @ forward,
        pool=pool[keep] @ forward,
        spread=spread,
        noise=error,
        rounding=float(np.linalg.norm(table.rounding, 2)),  # the worst direction: which one it is, is not known here
        size=size,
        metric=forward,
        chosen=chosen,
    )
