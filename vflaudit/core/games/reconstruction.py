"""Reconstruction: guess an honest party's columns, row by row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from vflaudit.core import statistics as stats
from vflaudit.core.adversary import Adversary
from vflaudit.core.baseline import no_message_fits
from vflaudit.core.dataset import Array
from vflaudit.core.games.base import Game, Guess, Score
from vflaudit.core.randomness import child_seed, stream
from vflaudit.core.run import Run
from vflaudit.errors import InputError


class Reconstruction(Game):
    """Guess the columns of an honest party; scored by R2 per column against its training rows."""

    name: ClassVar[str] = "reconstruction"
    metric: ClassVar[str] = "r2"
    needs_party: ClassVar[bool] = True
    party: str

    def score(self, run: Run, guess: Guess) -> Score:
        """Mean R2 over columns on training rows that the adversary did not know; rows left out count as the mean."""
        block = run.data.block(self.party)
        if self.party in guess.adversary.corrupts:
            raise InputError(f"party {self.party!r} is corrupted: its columns are no secret from this adversary")
        rows = run.score_rows(guess.adversary)
        rows = rows[block.present[rows]]
        truth = block.values[rows]
        varying = truth.std(axis=0) > 1e-12
        if len(rows) < 3 or not varying.any():
            raise InputError(f"nothing to score: {len(rows)} unknown rows and {int(varying.sum())} varying columns")
        attack = _filled(run, guess, self.party, rows, truth)
        baseline, source = best_baseline(run, guess.adversary, self.party, rows, truth)
        rng = stream(run.seed, "score", guess.attack, self.party)
        _, interval = stats.bootstrap_r2_difference(
            truth[:, varying], attack[:, varying], None if baseline is None else baseline[:, varying], rng
        )
        return self._score(
            guess,
            party=self.party,
            score=stats.mean_r2(truth[:, varying], attack[:, varying]),
            baseline=0.0 if baseline is None else stats.mean_r2(truth[:, varying], baseline[:, varying]),
            interval=interval,
            rows=len(rows),
            metrics=self._metrics(run, truth, attack, baseline, varying) | {"baseline_source": source},
        )

    def _metrics(self, run: Run, truth: Array, attack: Array, baseline: Array | None, varying: Array) -> dict[str, Any]:
        block = run.data.block(self.party)
        names = [column.name for column in block.columns]
        r2 = stats.r2_per_feature(truth, attack)
        metrics: dict[str, Any] = {
            "r2": stats.mean_r2(truth[:, varying], attack[:, varying]),
            "relative_error": stats.relative_error(truth, attack),
            "cells_recovered": float(stats.cells_within(truth[:, varying], attack[:, varying]).mean()),
            "abs_correlation": float(np.mean([_abs_corr(truth[:, j], attack[:, j]) for j in np.flatnonzero(varying)])),
            "r2_by_column": {name: float(value) for name, value, ok in zip(names, r2, varying, strict=True) if ok},
        }
        groups = {
            group: (told, at)
            for group, at in block.groups().items()
            if len(told := np.flatnonzero(truth[:, at].any(axis=1)))  # a row may have none of the categories
        }
        hits = {
            group: float(stats.category_accuracy(truth[told][:, at], attack[told][:, at]).mean())
            for group, (told, at) in groups.items()
        }
        if hits:
            metrics["category_accuracy"] = float(np.mean(list(hits.values())))
            metrics["category_accuracy_by_column"] = hits
            base = truth.mean(axis=0) * np.ones_like(truth) if baseline is None else baseline
            without = {
                group: float(stats.category_accuracy(truth[told][:, at], base[told][:, at]).mean())
                for group, (told, at) in groups.items()
            }
            metrics["category_accuracy_baseline"] = float(np.mean(list(without.values())))
            metrics["category_accuracy_baseline_by_column"] = {  # or always the most frequent one, if that is better
                group: max(without[group], float(truth[told][:, at].mean(axis=0).max()))
                for group, (told, at) in groups.items()
            }
        return metrics


def _abs_corr(a: Array, b: Array) -> float:
    if a.std() < 1e-12 or b.std() < 1e-12:
        return 0.0
    return float(abs(np.corrcoef(a, b)[0, 1]))


def _filled(run: Run, guess: Guess, party: str, rows: Array, truth: Array) -> Array:
    """The guess in the order of `rows`; rows without a guess get the mean, which is worth an R2 of zero."""
    if party not in guess.features:
        raise InputError(f"attack {guess.attack!r} made no guess about {party!r}")
    made = guess.features[party]
    if made.values.ndim != 2 or made.values.shape[1] != truth.shape[1]:
        raise InputError(f"attack {guess.attack!r} guessed {made.values.shape} values for {truth.shape[1]} columns")
    if not np.isfinite(made.values).all():
        raise InputError(f"attack {guess.attack!r} guessed a value that is not a finite number")
    out = np.tile(truth.mean(axis=0), (len(rows), 1))
    at = made.places(run, rows)
    out[at[at >= 0]] = made.values[at >= 0]
    return out


def best_baseline(run: Run, adversary: Adversary, party: str, rows: Array, truth: Array) -> tuple[Array | None, str]:
    """The better of mean imputation (R2 = 0, returned as None) and regression from knowledge and own columns.

    Choosing by the true score favours the baseline, so an advantage is never inflated by a poorly tuned one.
    """
    view = run.view(adversary, messages=False)
    own = view.own_columns()[rows]
    best, best_score, source = None, 0.0, "mean"
    varying = truth.std(axis=0) > 1e-12
    for fit in no_message_fits(view, party, child_seed(run.seed, "baseline")):
        guess = np.array(fit.predict(own))
        value = stats.mean_r2(truth[:, varying], guess[:, varying])
        if value > best_score + 1e-9:  # more than rounding
            best, best_score, source = guess, value, fit.name
    return best, source
