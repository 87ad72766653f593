"""FedOnce-L1: noise calibrated to a budget, a ledger that says what was really done, training without the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vflaudit as va
from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.events import Fitted, NonPrivate, SampledGaussian
from vflaudit.accounting.parties import divide
from vflaudit.accounting.validity import as_claimed
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.protocols.fedonce.oneshot import guest_task
from vflaudit.protocols.fedonce.protocol import FedOnce

GUESTS = ("guest1", "guest2", "guest3")
SHORT: dict[str, Any] = {"guest_epochs": 2, "host_epochs": 3, "guest_hidden": "8", "host_hidden": "6"}


def fedonce(data: VerticalDataset, **parameters: Any) -> Run:
    return FedOnce(**{**SHORT, **parameters}).run(data, seed=0)


def sent(run: Run, party: str) -> Array:
    """A guest's only message of training."""
    return next(iter(run.transcript.select(sender=party))).arrays["values"]


@pytest.fixture(scope="module")
def iris() -> VerticalDataset:
    return va.load_dataset("iris", parties=3)


def test_sigma_is_calibrated_to_the_budget_as_the_paper_claims_it(cancer: VerticalDataset) -> None:
    run = fedonce(cancer, variant="l1", epsilon=4.0)
    claimed = [as_claimed(run.ledger.of(party)) for party in run.ledger.parties]
    assert 0.98 * 4 < divide(claimed, 1e-5, "rdp-classic", "moments") <= 4
    baseline = fedonce(cancer, variant="priv-baseline", epsilon=4.0)
    claimed = [as_claimed(baseline.ledger.of(party)) for party in baseline.ledger.parties]
    assert 0.98 * 4 < divide(claimed, 1e-5, "rdp-classic", "simple") <= 4

    def sigma(found: Run, party: str) -> float:
        return next(e.sigma for e in found.ledger.of(party).events if isinstance(e, SampledGaussian))

    assert all(sigma(baseline, party) > sigma(run, party) for party in ("host", *GUESTS))
    assert len({sigma(run, party) for party in ("host", *GUESTS)}) == 1  # theorem 4: one sigma for all


@pytest.mark.parametrize(
    ("assignment", "clipping", "sensitivity", "hidden"),
    [
        ("hungarian", "sample", 2 * 32, True),
        ("hungarian", "batch", 2, True),
        ("fixed", "sample", 1, False),
        ("fixed", "batch", 2, False),
        ("nearest", "sample", 1, False),
    ],
)
def test_the_ledger_says_what_was_done(
    cancer: VerticalDataset, assignment: str, clipping: str, sensitivity: float, hidden: bool
) -> None:
    run = fedonce(cancer, variant="l1", sigma=1.5, assignment=assignment, clipping=clipping)
    fitted, noise = run.ledger.of("guest2").events
    assert isinstance(fitted, Fitted) and isinstance(noise, SampledGaussian)
    people = len(run.data.aligned("train"))
    assert (noise.rate, noise.sigma, noise.steps) == (32 / people, 1.5, 2 * (people // 32))
    assert noise.scheme == "shuffled" and noise.neighbours == "add-remove"
    assert noise.sensitivity == sensitivity and bool(noise.hidden_state) == hidden
    _, at_host = run.ledger.of("host").events
    assert isinstance(at_host, SampledGaussian) and at_host.hidden_state is None
    assert at_host.sensitivity == (2 if clipping == "batch" else 1)
    assert not accountant("rdp").supports(run.ledger.total())  # nothing that the theorem does not cover passes


def test_a_proper_training_is_covered(cancer: VerticalDataset) -> None:
    run = fedonce(cancer, variant="l1", sigma=2.0, assignment="fixed", sampling="poisson", standardise=False, clip=0.5)
    assert accountant("rdp").supports(run.ledger.total())
    assert 0 < accountant("rdp").epsilon(run.ledger.total(), 1e-5) < 20


def test_without_noise_nothing_is_called_private(iris: VerticalDataset) -> None:
    for parameters in ({"variant": "l0"}, {"variant": "l1", "epsilon": float("inf")}, {"variant": "l1", "sigma": 0.0}):
        run = fedonce(iris, **parameters)
        assert all(isinstance(run.ledger.of(p).events[-1], NonPrivate) for p in ("host", "guest1", "guest2"))


def test_priv_baseline_differs_from_l1_by_its_noise_alone(iris: VerticalDataset) -> None:
    runs = [fedonce(iris, variant=variant, sigma=1.0) for variant in ("l1", "priv-baseline")]
    assert runs[0].transcript.digest() == runs[1].transcript.digest()


def test_more_noise_more_distance_from_the_noiseless_run(cancer: VerticalDataset) -> None:
    still = sent(fedonce(cancer, variant="l1", sigma=0.0), "guest1")
    gaps = [np.abs(sent(fedonce(cancer, variant="l1", sigma=s), "guest1") - still).mean() for s in (0.1, 1.0, 10.0)]
    assert gaps == sorted(gaps) and gaps[0] > 0


def test_a_guests_training_can_be_had_without_the_protocol(cancer: VerticalDataset) -> None:
    """What an audit trains again and again is what the protocol trained."""
    protocol = FedOnce(variant="l1", **SHORT)
    run = protocol.run(cancer, seed=3)
    task = guest_task(protocol, run.data, "guest2", 3)
    trained = task.train(keep=True)
    np.testing.assert_array_equal(trained.targets, run.states["guest2"].parameters["targets"])
    outputs = task.network.forward(trained.parameters, task.features)[0]
    np.testing.assert_array_equal(outputs.astype(np.float32), sent(run, "guest2"))
    other = replace(task, seed=task.seed + 1).train()
    assert (other.parameters != trained.parameters).all()
