"""Numbers behind TabVFL's claims that are no attack's score: columns sent as they are, decoder outputs, costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attacks.decoder_gradients import DecoderGradients
from attacks.mask_regression import MaskRegression
from attacks.unmixing import BlindUnmixing
from vflaudit import Adversary, DistributionSample, KnownSamples, load_protocol
from vflaudit.claims.base import Attacked, Find, Measured
from vflaudit.claims.tabvfl.targets import CANCER, GUESTS, OBSERVED, SHARES
from vflaudit.core.dataset import Array
from vflaudit.core.games import Guess, Reconstruction, RowGuess
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.core.transcript import Recording
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import Result

PARTY = "guest1"
UNMASKED = "the host without masks, knowing 100 other rows of the same population"
SAME = 0.99  # a column whose squared correlation with a number exceeds this was sent as it is
COLUMNS = 106  # of the paper's rice data (Table II), the one that Table V is about
WIDE = f"synthetic:features={COLUMNS},rows=2048,classes=5"


@dataclass(frozen=True)
class UpToSign(Attacked):
    """What an adversary without any knowledge finds: columns up to a factor, whose sign and size it cannot know.

    The square of the mean |correlation| is at most the mean R2 that is left when each column's factor is given.
    """

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [find(self.experiment, seed) for seed in seeds]
        values = tuple(result.metrics["abs_correlation"] ** 2 for result in found)
        keys = tuple(result.key for result in found)
        return Measured(self.what, found[0].adversary, "R2 up to a factor", values, self.within_paper, keys)


@dataclass(frozen=True)
class Categories(Attacked):
    """How much more often the right category is named than without messages: the mean over a guest's columns."""

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [find(self.experiment, seed) for seed in seeds]
        values = []
        for result in found:
            right = result.metrics["category_accuracy_by_column"]
            without = result.metrics["category_accuracy_baseline_by_column"]
            values.append(float(np.mean([right[column] - without[column] for column in right])))
        what, keys = "advantage (share of right categories)", tuple(result.key for result in found)
        return Measured(self.what, found[0].adversary, what, tuple(values), self.within_paper, keys)


@dataclass(frozen=True)
class BestGain:
    """The largest relative improvement of one design over another among datasets, as 'up to' has it."""

    what: str
    pairs: tuple[tuple[Experiment, Experiment], ...]
    of: Callable[[Result], float]
    within_paper: bool = True

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return tuple(experiment for pair in self.pairs for experiment in pair)

    def measured(self, find: Find, seeds: Sequence[int]) -> Measured:
        found = [[(find(first, seed), find(second, seed)) for first, second in self.pairs] for seed in seeds]
        values = tuple(max(self.of(a) / self.of(b) - 1 for a, b in pairs) for pairs in found)
        keys = tuple(result.key for pairs in found for pair in pairs for result in pair)
        return Measured(self.what, "nobody", "relative improvement", values, self.within_paper, keys)


@cache
def watched_run(seed: int, *, fc: bool = True) -> Run:
    """Pretraining as the host sees it, with the FC layer or without; long enough for the decoder to learn something."""
    data = load_dataset(CANCER, parties=GUESTS, partition="equal-blocks", shares=SHARES, seed=seed)
    return load_protocol("tabvfl", fc=fc, **{**OBSERVED, "pretrain_epochs": 100}).run(data, seed=seed)


def correlations(found: Array, truth: Array) -> Array:
    """|correlation| of every column of the one with every column of the other."""
    width = found.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.abs(np.corrcoef(found, truth, rowvar=False)[:width, width:]))


# --- what the layer does ------------------------------------------------------------------------------------


def copied(seed: int, *, fc: bool) -> float:
    """Share of a guest's columns that some number it serves equals, up to a factor and a constant."""
    run = watched_run(seed, fc=fc)
    sent = run.view(Adversary({"host"})).sent_by(PARTY)
    truth = run.data.block(PARTY).values[sent.rows]
    return float((correlations(sent.values, truth).max(axis=0) ** 2 > SAME).mean())


def new_rows(seed: int, *, fc: bool = True) -> float:
    """R2 up to a factor on test rows: never masked, never trained on, sent once to be classified."""
    run = watched_run(seed, fc=fc)
    guess = MaskRegression(party=PARTY, signs="arbitrary").run(run.view(Adversary({"host"})), seed=seed)
    said = guess.features[PARTY]
    tested = np.isin(said.rows, run.data.aligned("test"))
    truth = run.data.block(PARTY).values[said.rows[tested]]
    return float(np.diag(correlations(said.values[tested], truth)).mean() ** 2)


def advantage(seed: int, attack: Any) -> float:
    """The advantage in R2 of a host that knows 100 other people of the population."""
    run = watched_run(seed)
    guess = attack.run(run.view(Adversary({"host"}, [DistributionSample(100)])), seed=seed)
    return Reconstruction(party=PARTY).score(run, guess).advantage


def unmixed(seed: int, method: Any) -> float:
    """Of a host that makes no use of masks."""
    return advantage(seed, BlindUnmixing(party=PARTY, method=method))


def from_decoder_gradients(seed: int) -> float:
    """Of a host that uses masks and the gradients that guests send back for the decoder, and nothing else."""
    return advantage(seed, DecoderGradients(party=PARTY))


# --- the decoder --------------------------------------------------------------------------------------------


def decoder_outputs(run: Run, epochs: int = 50) -> tuple[Array, Array]:
    """Training rows, and what the decoder gave for them on average over epochs: masks change, rows stay."""
    latent, rows = run.states["host"].secrets["latent"].shape[1], run.data.aligned("train")
    total = np.zeros((len(run.data), latent))
    seen = np.zeros((len(run.data), 1))
    last = max(message.epoch or 0 for message in run.transcript.select(kind="decoded"))
    at = 0
    for number, guest in enumerate(run.data.parties):
        width = 0
        for message in run.transcript.select(receiver=guest, kind="decoded"):
            values, about = message.arrays["values"], message.rows
            assert about is not None and message.epoch is not None
            width = values.shape[1]
            if message.epoch > last - epochs and np.isin(about, rows).all():
                total[about, at : at + width] += values
                seen[about] += number == 0
        at += width
    mean = total[rows] / seen[rows]
    return rows, (mean - mean.mean(axis=0)) / mean.std(axis=0)


def decoder_advantage(seed: int, people: int) -> float:
    """R2 gained from the decoder's outputs, which the host computes itself, by a host that knows some people."""
    from sklearn.linear_model import RidgeCV

    run = watched_run(seed)
    adversary = Adversary({"host"}, [KnownSamples(people, with_ids=True)])
    samples = run.view(adversary).knowledge.samples
    assert samples is not None and samples.handles is not None
    rows, outputs = decoder_outputs(run)
    known = np.searchsorted(rows, samples.handles)
    fitted = RidgeCV(np.logspace(-3, 3, 13)).fit(outputs[known], samples.features[PARTY])
    guess = Guess("decoder-outputs", adversary, {PARTY: RowGuess(rows, fitted.predict(outputs))})
    return Reconstruction(party=PARTY).score(run, guess).advantage


# --- costs (Table V) ----------------------------------------------------------------------------------------


@cache
def cost_run(seed: int, variant: str, *, phase: str, epochs: int) -> Run:
    """Pretraining or fine-tuning alone on as many columns as the paper's rice data, batches of 512 (V-C)."""
    trained = {"pretrain_epochs": epochs * (phase == "pretraining"), "finetune_epochs": epochs * (phase == "tuning")}
    data = load_dataset(WIDE, parties=GUESTS, partition="equal-blocks", aux=0.0, shares=SHARES, seed=seed)
    protocol = load_protocol("tabvfl", variant=variant, batch_size=512, patience=None, **trained)
    return protocol.run(data, seed=seed, recording=Recording.none())


def seconds(seed: int, variant: str, *, together: bool) -> float:
    """CPU seconds of both phases: all parties on one machine, or the host and then the slowest of its guests."""
    total = 0.0
    for phase in ("pretraining", "tuning"):
        cpu = cost_run(seed, variant, phase=phase, epochs=10).costs.cpu
        guests = [spent for party, spent in cpu.items() if party != "host"]
        total += cpu["host"] + (sum(guests) if together else max(guests))
    return total


def time_ratio(seed: int, other: str, *, together: bool) -> float:
    """TabVFL's time over that of another design."""
    return seconds(seed, "tabvfl", together=together) / seconds(seed, other, together=together)


def bytes_of(seed: int, variant: str, phase: str) -> float:
    """Bytes of one phase; serving, which comes after either, is taken off."""
    served = cost_run(seed, variant, phase="none", epochs=0).costs.total.bytes
    return float(cost_run(seed, variant, phase=phase, epochs=1).costs.total.bytes - served)


def byte_ratio(seed: int, first: str, second: str, phase: str) -> float:
    """Bytes of one design over those of another."""
    return bytes_of(seed, first, phase) / bytes_of(seed, second, phase)
