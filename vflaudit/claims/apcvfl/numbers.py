"""Numbers behind APC-VFL's claims that are no attack's score: rounds, distances, ids, encoders, what servers learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from vflaudit import Adversary, load_protocol
from vflaudit.claims.base import Find, Measured
from vflaudit.core.dataset import Array
from vflaudit.core.loading import load_dataset
from vflaudit.core.published import APC_VFL_PARTIAL, apc_vfl_classical
from vflaudit.core.run import Run
from vflaudit.core.statistics import r2_per_feature
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import Result
from vflaudit.protocols.apcvfl.autoencoders import Training
from vflaudit.protocols.apcvfl.evaluation import evaluate_encoder
from vflaudit.protocols.vfedtrans.fedsvd import KEY_SERVER, SERVER, fedsvd, orthogonal
from vflaudit.protocols.vfedtrans.vfedpca import vfedpca

CANCER = "breast-cancer"
QUICK = {"epochs": 1, "folds": None}  # where only messages are counted


@dataclass(frozen=True)
class Contrast:
    """A number of some targets, added up, less that of others, seed by seed on the same data."""

    what: str
    plus: tuple[Experiment, ...]
    minus: tuple[Experiment, ...]
    of: Callable[[Result], float]
    measure: str

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (*self.plus, *self.minus)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        values, keys = [], []
        for seed in seeds:
            first, second = ([find(e, seed) for e in side] for side in (self.plus, self.minus))
            values.append(sum(map(self.of, first)) - sum(map(self.of, second)))
            keys += [result.key for result in (*first, *second)]
        return Measured(self.what, "nobody", self.measure, tuple(values), keys=tuple(keys))


@dataclass(frozen=True)
class Told:
    """How much more often an attack names the right category of a column than one does without the protocol."""

    what: str
    experiment: Experiment
    column: str

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (self.experiment,)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [find(self.experiment, seed) for seed in seeds]
        right, without = (
            [result.metrics[f"category_accuracy{part}_by_column"][self.column] for result in found]
            for part in ("", "_baseline")
        )
        values = tuple(a - b for a, b in zip(right, without, strict=True))
        keys = tuple(result.key for result in found)
        return Measured(self.what, found[0].adversary, "advantage (share of right categories)", values, keys=keys)


# --- rounds -------------------------------------------------------------------------------------------------


@cache
def federated(seed: int, protocol: str = "apc-vfl", *, partial: bool = True, **settings: Any) -> Run:
    """One run: with 100 of 500 rows shared as in V-A c, or with all rows shared and a pool of others."""
    rows = APC_VFL_PARTIAL[CANCER] if partial else {}
    data = load_dataset(CANCER, partition="apc-vfl", seed=seed, **rows)
    return load_protocol(protocol, **settings).run(data, seed=seed)


def rounds(run: Run, *, alignment: bool) -> float:
    """Rounds on the wire, of private set intersection (alignment) or of everything after it."""
    return float(len({m.step for m in run.transcript if m.kind.startswith("psi_") == alignment}))


def rounds_after_alignment(seed: int) -> float:
    """The paper's one round, counted."""
    return rounds(federated(seed, **QUICK), alignment=False)


def rounds_of_alignment(seed: int) -> float:
    """Those of private set intersection, which the paper assumes (section III) and does not count."""
    return rounds(federated(seed, **QUICK), alignment=True)


def all_rounds(seed: int) -> float:
    """Both."""
    return rounds_after_alignment(seed) + rounds_of_alignment(seed)


def eq_10(epochs: float, rows: int, batch: int = 32) -> float:
    """SplitNN's rounds with two participants: 2 E ceil(M / N) (K - 1); 32 rows are SplitNN's default batch here."""
    return 2 * epochs * ceil(rows / batch)


@cache
def splitnn_rounds(seed: int, aligned: int) -> float:
    """Eq. 10 with the epochs that SplitNN took."""
    data = load_dataset(CANCER, partition="apc-vfl", seed=seed, **apc_vfl_classical(aligned))
    run = load_protocol("splitnn").run(data, seed=seed)
    return eq_10(run.utility["epochs"], len(data.split["train"]))


def fewer_rounds(seed: int) -> float:
    """SplitNN's rounds for one of APC-VFL, 100 aligned rows: the least of Table III."""
    return splitnn_rounds(seed, 100) / rounds_after_alignment(seed)


def fewer_rounds_with_alignment(seed: int) -> float:
    """The same if private set intersection counts for both."""
    extra = rounds_of_alignment(seed)
    return (splitnn_rounds(seed, 100) + extra) / (rounds_after_alignment(seed) + extra)


def messages_to_classify(seed: int) -> float:
    """Messages after the representation, plus columns of others that the model asks for: both must be none."""
    run = federated(seed, **QUICK)
    last = max(m.step for m in run.transcript if m.kind == "representation")
    later = sum(m.step > last for m in run.transcript)
    run.model.predict({"active": run.data.block("active").values})  # without anybody else's columns
    return float(later)


# --- what representations and ids tell without any knowledge ------------------------------------------------


def distance_advantage(seed: int) -> float:
    """How well distances between people in Z follow those in the columns, above what own columns tell."""
    from scipy.spatial.distance import pdist
    from scipy.stats import spearmanr

    run = federated(seed, partial=False, folds=None)
    view = run.view(Adversary({"active"}))
    sent = view.sent_by("passive1")
    truth = pdist(run.data.block("passive1").values[sent.rows])
    found, without = (spearmanr(pdist(x), truth)[0] for x in (sent.values, view.own_columns()[sent.rows]))
    return float(found - max(without, 0.0))


def told_members(seed: int) -> float:
    """Share of the active party's rows of which it learns whether the passive party holds them."""
    run = federated(seed, **QUICK)
    state, held = run.states["active"], run.data.block("passive1").present
    assert state.present is not None
    own = np.intersect1d(np.flatnonzero(state.present), run.data.split["train"])
    guess = np.isin(own, state.secrets["aligned rows"])
    return float((guess == held[own]).mean())


def told_strangers(seed: int) -> float:
    """Share of the passive party's ids, of rows that the active party does not hold, that its messages contain.

    A dictionary attack with the right dictionary: the points of these ids, plain and under the active party's own key.
    """
    from vflaudit.protocols.psi.curve import Blinding, hash_points

    data = load_dataset(CANCER, partition="apc-vfl", overlap=0.7, seed=seed)
    run = load_protocol("apc-vfl", **QUICK).run(data, seed=seed)
    held, own = run.data.block("passive1").present, run.data.block("active").present
    alone = np.intersect1d(np.flatnonzero(held & ~own), run.data.split["train"])
    seen = b"".join(value.tobytes() for m in run.view(Adversary({"active"})).transcript for value in m.arrays.values())
    plain = hash_points([str(name) for name in run.data.ids[alone]])
    blinded = Blinding(run.states["active"].secrets["psi key"].tobytes())(plain)
    return float(np.mean([point in seen or own_point in seen for point, own_point in zip(plain, blinded, strict=True)]))


# --- encoders -----------------------------------------------------------------------------------------------


def overcomplete_gain(seed: int, party: str, wide: tuple[int, ...], narrow: tuple[int, ...]) -> float:
    """Probing accuracy (Alg. 1) after training, of a wide representation less that of a narrow one (Fig. 4)."""
    data = load_dataset(CANCER, partition="apc-vfl", aux=0.0, seed=seed)
    data = load_protocol("apc-vfl").prepare(data)
    values, labels = data.block(party).values, data.labels
    training = Training(epochs=30)
    found = [
        evaluate_encoder(values, labels, layers, training=training, folds=10, every=30, seed=seed).quality[-1]
        for layers in (wide, narrow)
    ]
    return float(found[0] - found[1])


def overcomplete_active(seed: int) -> float:
    """Five columns: Table I's 128 against 3."""
    return overcomplete_gain(seed, "active", (64, 128), (64, 3))


def overcomplete_passive(seed: int) -> float:
    """25 columns: Table I's 256 against 12."""
    return overcomplete_gain(seed, "passive1", (128, 256), (128, 12))


# --- FedSVD and VFedPCA -------------------------------------------------------------------------------------


@cache
def shared_tables(seed: int) -> dict[str, Array]:
    """The columns of 100 shared rows."""
    data = load_protocol("apc-vfl").prepare(load_dataset(CANCER, partition="apc-vfl", seed=seed))
    return {party: data.block(party).values[data.split["train"][:100]] for party in data.parties}


def vfedpca_server(seed: int) -> float:
    """Share of the products between a passive party's rows that the server knows from its vectors and values."""
    tables = shared_tables(seed)
    wire = Wire([*tables, SERVER], Transcript())
    vfedpca(wire, tables, np.arange(100), None, periods=10, iterations=100, seed=seed)
    sent = [m.arrays for m in wire.transcript.select(sender="passive1", kind="component")][9::10]
    found = sum(float(s["value"]) * np.outer(s["vector"], s["vector"]) for s in sent)
    truth = tables["passive1"] @ tables["passive1"].T
    return float(1 - ((found - truth) ** 2).sum() / (truth**2).sum())


def fedsvd_servers(seed: int, *, together: bool) -> float:
    """R2 of all columns: the key server's masks taken off the other server's sum, or the sum as it is."""
    tables = shared_tables(seed)
    joint = np.hstack(list(tables.values()))
    wire = Wire([*tables, SERVER, KEY_SERVER], Transcript())
    fedsvd(wire, tables, None, block=1000, send_values=True, seed=seed)
    total = sum(m.arrays["values"] for m in wire.transcript.select(kind="masked")).view(np.int64) / 2.0**40  # type: ignore[union-attr]
    if together:
        masks = [m.arrays for m in wire.transcript.select(kind="masks")]
        key = int.from_bytes(masks[0]["row_seed"].tobytes(), "little")
        left, right = orthogonal(100, 1000, np.random.default_rng(key)), np.vstack([m["columns"] for m in masks])
        total = left.T @ total @ right.T
    return max(0.0, float(r2_per_feature(joint, total).mean()))


def fedsvd_together(seed: int) -> float:
    """Both servers."""
    return fedsvd_servers(seed, together=True)


def fedsvd_apart(seed: int) -> float:
    """The decomposing server alone."""
    return fedsvd_servers(seed, together=False)
