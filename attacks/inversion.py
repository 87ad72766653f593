"""Learning to invert a representation from people whose features and messages are both known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import KNOWN_PAIRS, FeatureAttack, Requirement
from vflaudit.core.baseline import no_message_fits
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.regression import Fit, fits
from vflaudit.core.view import View


class RepresentationInversion(FeatureAttack):
    """Regress features on messages from known pairs: ridge, kernel ridge or a small MLP, picked inside the pairs.

    The server of SplitNN 'can collect samples of (activation, features) and train a model' (RAP section 3, case 3b).
    The attack starts from the best guess without messages and corrects it by what the messages add; if held-out pairs
    do not show that they add anything, it stays with that guess.
    """

    name: ClassVar[str] = "representation-inversion"
    requires: ClassVar[tuple[Requirement, ...]] = (KNOWN_PAIRS,)
    learners: tuple[Literal["ridge", "kernel", "mlp"], ...] = Field(
        ("ridge", "kernel", "mlp"), description="regressors to choose from"
    )
    kind: str | None = Field(
        None, description="use only messages of this kind, such as one phase of training; none: those about most rows"
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        chosen: dict[str, str] = {}
        for party in self.victims(view):
            features[party], chosen[party] = self._invert(view, party, seed)
        return {"features": features, "notes": {"regressor": chosen}}

    def _invert(self, view: View, party: str, seed: int) -> tuple[RowGuess, str]:
        samples = view.knowledge.samples
        assert samples is not None and samples.handles is not None
        own = view.own_columns()
        sources = {"": view.sent_by(party, kind=self.kind)}
        if len(view.transcript.epochs()) > 1:
            sources[", averaged over epochs"] = view.sent_by(party, average=True, kind=self.kind)
        rows = sources[""].rows
        usable = np.isin(samples.handles, rows)
        handles, targets = samples.handles[usable], samples.features[party][usable]
        prior = _best_prior(no_message_fits(view, party, seed), own[handles], targets)
        base = np.array(prior.predict(own[rows]))
        options = [
            Option(f"{fit.name}{suffix}", fit.errors, fit.predict(np.hstack([sent.at(rows), own[rows]])) + start)
            for suffix, sent in sources.items()
            for fit, start in self._fits(view, prior, sent.at(handles), own[handles], targets, base, seed)
        ]
        best = _beats(prior.errors, options, targets)
        if best is None:
            return RowGuess(rows, base), f"no message ({prior.name})"
        return RowGuess(rows, _believable(best.values, targets)), best.name

    def _fits(
        self, view: View, prior: Fit, messages: Array, own: Array, targets: Array, base: Array, seed: int
    ) -> list[tuple[Fit, Array | float]]:
        """Regressors of the targets on messages and own columns, and what to add to their predictions."""
        inputs = np.hstack([messages, own])
        found: list[tuple[Fit, Array | float]] = [
            (fit, 0.0) for fit in fits(inputs, targets, seed, learners=self.learners)
        ]
        if own.shape[1]:
            # own columns may only add noise to a message that says it all
            alone = fits(messages, targets, seed, learners=("ridge", "kernel"))
            found += [(_widen(fit, messages.shape[1]), 0.0) for fit in alone]
        if view.knowledge.distribution is not None:
            # the prior was fitted on other people, so its residuals on the pairs are honest targets
            rest = targets - np.array(prior.predict(own))
            found += [(fit, base) for fit in fits(inputs, rest, seed, learners=("ridge", "kernel"))]
        return found


@dataclass(frozen=True)
class Option:
    """A way to guess: the errors it made on held-out pairs, and its guess for every row."""

    name: str
    errors: Array
    values: Array


def _widen(fit: Fit, width: int) -> Fit:
    """A fit on the first `width` columns, as a function of all of them."""
    return Fit(f"{fit.name} on messages", lambda new: fit.predict(new[:, :width]), fit.errors)


def _believable(values: Array, targets: Array) -> Array:
    """Guesses no further outside the known values than these are spread: extrapolation may go wild on a few rows."""
    low, high = targets.min(axis=0), targets.max(axis=0)
    return np.clip(values, low - (high - low), high + (high - low))


def _best_prior(found: list[Fit], own: Array, targets: Array) -> Fit:
    """The predictor without messages that does best on the pairs, if it clearly beats the mean.

    Predictors fitted on other people are judged on the pairs out of sample, those fitted on the pairs by leave-one-out.
    """
    judged: dict[str, Fit] = {}
    for fit in found:
        errors = fit.errors if fit.errors.shape == targets.shape else (targets - fit.predict(own)) ** 2
        judged.setdefault(fit.name, Fit(fit.name, fit.predict, errors))
    mean = judged.get("mean", next(iter(judged.values())))
    better = _beats(mean.errors, [Option(name, fit.errors, np.zeros(0)) for name, fit in judged.items()], targets)
    return mean if better is None else judged[better.name]


def _relative(errors: Array, targets: Array) -> Array:
    """Error per pair, each column in units of its variance."""
    variance = targets.var(axis=0)
    return (errors / np.where(variance > 1e-12, variance, 1.0)).mean(axis=1)


def _beats(prior: Array, options: list[Option], targets: Array) -> Option | None:
    """The best option, if it beats the prior on held-out pairs by more than one standard error."""
    if not options:
        return None
    best = min(options, key=lambda option: _relative(option.errors, targets).mean())
    gain = _relative(prior, targets) - _relative(best.errors, targets)
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return best if gain.mean() > error else None
