"""FedOnce-L1 with its sensitivity put right, and the accuracy that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from vflaudit import load_protocol
from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.events import Composed, SampledGaussian, leaves
from vflaudit.accounting.parties import calibrate
from vflaudit.accounting.validity import as_covered
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run

EPSILON, DELTA = 2.0, 1e-5
PUBLISHED, NOISE = "as published", "as published, enough noise"
REMEDIES: dict[str, dict[str, Any]] = {
    "no privacy": {"epsilon": float("inf")},
    PUBLISHED: {},
    "fixed targets": {"assignment": "fixed"},
    "nearest public target": {"assignment": "nearest"},
    "whole-batch clipping, twice the noise": {"assignment": "nearest", "clipping": "batch"},
    NOISE: {},
}


def remedies(data: str, seeds: Sequence[int]) -> dict[str, tuple[list[float], float]]:
    """By remedy: accuracies, and epsilon as the ledger really covers it (preprocessing left out)."""
    found: dict[str, tuple[list[float], float]] = {}
    for name in REMEDIES:
        runs = [_run(data, name, seed) for seed in seeds]
        found[name] = [run.utility["accuracy"] for run in runs], covered(runs[0])
    return found


@cache
def _run(data: str, remedy: str, seed: int) -> Run:
    made = load_dataset(data, parties=4, aux=0.0, seed=seed)
    settings: dict[str, Any] = {"variant": "l1", "epsilon": EPSILON, "sampling": "poisson", **REMEDIES[remedy]}
    if remedy == NOISE or settings.get("clipping") == "batch":
        settings["sigma"] = _enough(_run(data, PUBLISHED, seed), batch=remedy != NOISE)
    return load_protocol("fedonce", **settings).run(made, seed=seed)


def _noises(run: Run) -> list[SampledGaussian]:
    return [leaf for leaf, _ in leaves(run.ledger.total()) if isinstance(leaf, SampledGaussian)]


def _enough(published: Run, *, batch: bool) -> float:
    """The noise, the same at every party, that covers what the published training really does, or whole batches."""
    events = _noises(published)
    if batch:
        events = [replace(event, sensitivity=2.0, hidden_state=None) for event in events]
    return calibrate(events, EPSILON, DELTA, accountant="rdp-classic")[0]


def covered(run: Run) -> float:
    """Epsilon of all parties together, with every gap of the theorem paid for except standardised columns."""
    events = _noises(run)
    if not events:
        return float("inf")
    return accountant("rdp-classic").epsilon(Composed(as_covered(event) for event in events), DELTA)
