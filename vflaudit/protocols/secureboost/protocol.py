"""SecureBoost as FedOnce's baseline (5.1): trees grow level by level from histograms that guests send to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.accounting.events import NonPrivate
from vflaudit.accounting.ledger import Ledger
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Model, PartyState
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.hosted import HOST, guests_of, with_host
from vflaudit.protocols.networks import utility_of
from vflaudit.protocols.secureboost.objective import Link, Objective
from vflaudit.protocols.secureboost.paillier import Cipher, Paillier, Plain
from vflaudit.protocols.secureboost.trees import POINT, Bins, Forest, Records, Rule, fixed_point, histograms, walk


class SecureBoost(Protocol):
    """SecureBoost: the host sends encrypted gradients, guests send back histograms, the host picks every split.

    The host (active party) holds the labels and columns of its own. Per level of a tree it learns the sums of gradients
    by bin of every guest's columns, and per chosen split which rows go left; it does not learn thresholds. Guests learn
    which rows share a node, and the gradients themselves if they are not encrypted (`encryption=none`, which is how
    FedOnce 5.1 counts bytes). All trees of a boosting round (one per class beyond two) grow side by side.

    Neither paper prints tree parameters; the defaults are those of the FedOnce authors' code (100 trees, depth 6, step
    0.1) but for their l1=10, which needs thousands of rows.
    """

    name: ClassVar[str] = "secureboost"
    corrupts: ClassVar[frozenset[str]] = frozenset({HOST})

    host: str | None = Field(
        None, description="the party that becomes the host; none: the label owner if it holds columns, else the first"
    )
    trees: int = Field(100, ge=1, description="boosting rounds")
    depth: int = Field(6, ge=1, le=12, description="levels of decisions in a tree")
    learning_rate: float = Field(0.1, gt=0, description="step along each tree")
    bins: int = Field(32, ge=2, le=256, description="quantile bins of a column (approximate split finding)")
    l2: float = Field(1.0, ge=0, description="lambda, penalty on leaf weights")
    l1: float = Field(0.0, ge=0, description="alpha, penalty on leaf weights")
    least_hessian: float = Field(1.0, ge=0, description="least sum of hessians in a child")
    encryption: Literal["none", "paillier"] = Field("none", description="of gradients and histograms")
    key_bits: int = Field(1024, ge=256, description="length of the Paillier modulus")
    budget: int | None = Field(
        None, ge=0, description="stop before the round that would exceed this many bytes (SecureBoost-Comm, 5.2)"
    )

    curve: bool = Field(False, description="also tell utility and bytes after each boosting round (FedOnce, Fig. 6)")

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        """As FedOnce: labels and one party's columns at the host."""
        return with_host(super().prepare(data), self.host)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return (HOST, *guests_of(data))

    def execute(self, session: Session) -> Outcome:
        if not len(session.data.aligned("train")):
            raise InputError(f"dataset {session.data.name!r}: no training row is held by every party")
        return _Boosting(self, session).run()


class _Boosting:
    """The moving parts of one run. Bins and records live at their party, the forest at the host."""

    def __init__(self, protocol: SecureBoost, session: Session) -> None:
        self.protocol, self.session, self.data, self.wire = protocol, session, session.data, session.wire
        self.everybody = protocol.parties(self.data)
        self.guests, self.train = self.everybody[1:], self.data.aligned("train")
        self.bins: dict[str, Bins] = {}
        for party in self.everybody:
            with self.wire.computing(party):
                self.bins[party] = Bins.fit(self.data.blocks[party].values, self.train, protocol.bins)
        self.widths = [self.bins[party].codes.shape[1] for party in self.everybody]
        self.decisions: dict[str, list[tuple[int, float]]] = {party: [] for party in self.everybody}
        self.objective = Objective(self.data, self.train)
        self.forest = Forest(self.objective.targets.shape[1])
        self.spent: list[float] = []  # bytes after every boosting round
        self.curve: dict[str, float] = {}
        self.rule = Rule(protocol.l2, protocol.l1, protocol.least_hessian)
        self.cipher: Cipher = Paillier(protocol.key_bits) if protocol.encryption == "paillier" else Plain()

    def run(self) -> Outcome:
        """Grow the trees, serve validation and test rows, release."""
        if isinstance(self.cipher, Paillier) and self.guests:
            number = self.cipher.public.n.to_bytes(self.protocol.key_bits // 8, "big")
            key = np.frombuffer(number, dtype=np.uint8)
            self.wire.next_round()
            for guest in self.guests:
                self.wire.send(HOST, guest, "public_key", {"values": key})
        margins = np.zeros((len(self.train), self.forest.outputs))
        spent = self.wire.costs
        for number in range(self.protocol.trees):
            margins = margins + self.boost(margins, number)
            after = self.wire.costs
            if self.protocol.budget is not None and after.total.bytes > self.protocol.budget:
                self.forest.roots.pop()  # a round that does not fit did not happen
                break
            spent = after
            self.spent.append(float(after.total.bytes))
        utility = dict(self.serve("test")) | {f"validation_{k}": v for k, v in self.serve("validation").items()}
        utility |= {
            "epochs": float(len(self.forest.roots)),
            "training_rounds": float(spent.rounds),
            "training_bytes": float(spent.total.bytes),
            **self.curve,
        }
        predictor = ForestPredictor(self.forest.arrays(), self.records(), self.objective.link)
        ledger = Ledger()
        for party in self.everybody:
            ledger.spend(party, NonPrivate("trees grown without noise"))
        return Outcome(self.states(), Model(predictor, predictor.parameters()), utility, ledger=ledger)

    # --- growing --------------------------------------------------------------------------------------------

    def boost(self, margins: Array, number: int) -> Array:
        """One boosting round: gradients out, trees down level by level. Returns how the margins change."""
        outputs = margins.shape[1]
        with self.wire.computing(HOST):
            gradients = fixed_point(self.objective.gradients(margins))
            travelling = self.cipher.encrypt(gradients) if self.guests else gradients
        self.wire.next_round()
        held = {
            guest: self.wire.send(HOST, guest, "gradients", {"values": travelling}, rows=self.train, epoch=number)
            for guest in self.guests
        }
        roots = [self.forest.grow() for _ in range(outputs)]
        self.forest.roots.append(roots)
        leaf = np.tile(roots, (len(self.train), 1))  # the node of every row in every tree
        live = list(roots)
        for level in range(self.protocol.depth + 1):
            positions = np.full(leaf.shape, -1, dtype=np.int16)
            for index, node in enumerate(live):
                positions[leaf == node] = index
            sums = self.collect(positions, gradients, held, number, last=level == self.protocol.depth)
            live = self.split(live, leaf, positions, sums, number, last=level == self.protocol.depth)
            if not live:
                break
        return np.array(self.forest.weight)[leaf]

    def collect(
        self, positions: Array, gradients: Array, held: Mapping[str, Mapping[str, Array]], number: int, *, last: bool
    ) -> Array:
        """Everybody's histograms at the host, side by side. On the last level the host's own sums are enough."""
        with self.wire.computing(HOST):
            own = histograms(self.bins[HOST].codes[self.train], positions, gradients, self.protocol.bins)
        parts = [own]
        if last:
            return own
        self.wire.next_round()
        heard = {
            guest: self.wire.send(HOST, guest, "nodes", {"values": positions}, rows=self.train, epoch=number)["values"]
            for guest in self.guests
        }
        self.wire.next_round()
        for guest in self.guests:
            with self.wire.computing(guest):
                codes = self.bins[guest].codes[self.train]
                sums = self.cipher.add_up(codes, heard[guest], held[guest]["values"], self.protocol.bins)
            got = self.wire.send(guest, HOST, "histograms", {"values": sums}, epoch=number)["values"]
            with self.wire.computing(HOST):
                parts.append(self.cipher.decrypt(got))
        return np.concatenate(parts, axis=1)

    def split(
        self, live: list[int], leaf: Array, positions: Array, sums: Array, number: int, *, last: bool
    ) -> list[int]:
        """Choose the best split of every live node, have its owner carry it out; returns the new live nodes."""
        with self.wire.computing(HOST):
            totals = sums[:, 0].sum(axis=1) / POINT
            weights = self.protocol.learning_rate * self.rule.weight(totals[:, 0], totals[:, 1])
            for node, weight in zip(live, weights, strict=True):
                self.forest.weight[node] = float(weight)
            if last:
                return []
            columns, cuts, worth = self.rule.best(sums)
        ends = np.cumsum(self.widths)
        owners = np.searchsorted(ends, columns, side="right")
        self.wire.next_round()
        asked: dict[str, Array] = {}
        for place, party in enumerate(self.everybody):
            chosen = np.flatnonzero(worth & (owners == place))
            if len(chosen):
                local = columns[chosen] - (ends[place] - self.widths[place])
                request = np.stack([chosen, local, cuts[chosen]], axis=1).astype(np.int32)
                if party != HOST:
                    request = self.wire.send(HOST, party, "splits", {"values": request}, epoch=number)["values"]
                asked[party] = request
        self.wire.next_round()
        decided: dict[int, tuple[int, int, Array]] = {}  # of each node: who, which record, which rows go left
        for party, request in asked.items():
            first = len(self.decisions[party])  # its records are numbered as they are asked for
            left = self.decide(party, request, positions, number)
            for record, index in enumerate(request[:, 0].tolist(), first):
                decided[index] = (self.everybody.index(party), record, left)
        after: list[int] = []
        for index in sorted(decided):
            owner, record, left = decided[index]
            low, high = self.forest.split(live[index], owner, record)
            inside = positions == index
            leaf[inside] = np.where(left[inside] == 1, low, high)
            after += [low, high]
        return after

    def decide(self, party: str, request: Array, positions: Array, number: int) -> Array:
        """The owner writes down the thresholds and says which rows go left: 1 left, 0 right, -1 not asked."""
        with self.wire.computing(party):
            left = np.full(positions.shape, -1, dtype=np.int8)
            codes = self.bins[party].codes[self.train]
            for index, column, cut in request:
                self.decisions[party].append((int(column), float(self.bins[party].edges[column][cut])))
                rows, trees = np.nonzero(positions == index)
                left[rows, trees] = codes[rows, column] <= cut
        if party == HOST:
            return left
        return self.wire.send(party, HOST, "partition", {"values": left}, rows=self.train, epoch=number)["values"]

    # --- serving --------------------------------------------------------------------------------------------

    def records(self) -> dict[str, Records]:
        """Everybody's decisions as arrays."""
        return {
            party: Records(np.array([c for c, _ in found], dtype=np.int32), np.array([t for _, t in found]))
            for party, found in self.decisions.items()
        }

    def serve(self, part: str) -> Mapping[str, float]:
        """The host walks down its trees and asks the owner of each decision; rows of one level go together."""
        rows = self.data.aligned(part)
        if not len(rows):
            return {}
        records = self.records()

        def ask(wanted: Mapping[int, Array]) -> dict[int, Array]:
            heard, answers = dict(wanted), {}
            self.wire.next_round()
            for place in wanted:
                if place:
                    sent = {"values": wanted[place]}
                    heard[place] = self.wire.send(HOST, self.everybody[place], "query", sent, rows=rows)["values"]
            self.wire.next_round()
            for place, asked in heard.items():
                party = self.everybody[place]
                with self.wire.computing(party):
                    answers[place] = records[party].left(self.data.blocks[party].values[rows], asked)
                if place:
                    sent = {"values": answers[place]}
                    answers[place] = self.wire.send(party, HOST, "direction", sent, rows=rows)["values"]
            return answers

        margins = np.cumsum(walk(self.forest.arrays(), len(rows), ask), axis=1)  # after every round
        last = margins[:, -1] if margins.shape[1] else np.zeros((len(rows), self.forest.outputs))
        if part == "test" and self.protocol.curve:
            for number, spent in enumerate(self.spent):
                self.curve |= {f"epoch_{number + 1}_{k}": v for k, v in self.useful(margins[:, number], rows).items()}
                self.curve[f"epoch_{number + 1}_bytes"] = spent
        return self.useful(last, rows)

    def useful(self, margins: Array, rows: Array) -> Mapping[str, float]:
        """Accuracy or error of these margins."""
        return utility_of(self.objective.link(margins), self.data.labels[rows], self.data.task)

    def states(self) -> dict[str, PartyState]:
        """Own columns and own thresholds; the host also has the labels and the forest."""
        states = {}
        for party, found in self.records().items():
            block = self.data.blocks[party]
            parameters = {"columns": found.columns, "thresholds": found.thresholds}
            if party == HOST:
                parameters |= self.forest.arrays()
            labels = np.array(self.data.labels) if party == HOST else None
            states[party] = PartyState(block.values, block.present, labels, parameters)
        return states


class ForestPredictor:
    """The released model: forest, everybody's thresholds, the way from margins to predictions. No data."""

    def __init__(self, forest: dict[str, Array], records: dict[str, Records], link: Link) -> None:
        self.forest, self.records, self.link = forest, records, link

    def __call__(self, features: Mapping[str, Array]) -> Array:
        parties = list(self.records)
        values = [np.asarray(features[party], dtype=np.float64) for party in parties]

        def ask(wanted: Mapping[int, Array]) -> dict[int, Array]:
            return {place: self.records[parties[place]].left(values[place], each) for place, each in wanted.items()}

        return self.link(walk(self.forest, len(values[0]), ask).sum(axis=1))

    def parameters(self) -> dict[str, Array]:
        """Everything in it, by name."""
        thresholds = {
            f"{party}.{name}": value
            for party, found in self.records.items()
            for name, value in (("columns", found.columns), ("thresholds", found.thresholds))
        }
        return {**self.forest, **thresholds}
