"""Events, the books they are written in, and what no theorem covers."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.events import Composed, Event, Fitted, Gaussian, NonPrivate, Repeated, SampledGaussian
from vflaudit.accounting.ledger import Ledger
from vflaudit.accounting.validity import GapKind, as_claimed, as_covered, gaps
from vflaudit.errors import InputError

HIDDEN = "targets dealt anew"
STEP = SampledGaussian(0.1, 2.0, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(float("nan")),
        lambda: Gaussian(1.0, "replace-two"),
        lambda: SampledGaussian(0.0, 1.0),
        lambda: SampledGaussian(1.1, 1.0),
        lambda: SampledGaussian(0.5, 1.0, -1),
        lambda: SampledGaussian(0.5, 1.0, 1.5),
        lambda: SampledGaussian(0.5, 1.0, 1, "random"),
        lambda: SampledGaussian(0.5, 1.0, 1, sensitivity=0),
        lambda: Repeated(STEP, -1),
    ],
)
def test_impossible_events_are_refused(make) -> None:
    with pytest.raises(InputError):
        make()


def test_events_are_values() -> None:
    assert SampledGaussian(0.1, 2.0, 10) == STEP and Composed([STEP]) == Composed((STEP,)) and len({STEP, STEP}) == 1
    with pytest.raises(FrozenInstanceError):
        STEP.sigma = 1.0  # type: ignore[misc]


def test_events_print_relation_and_scheme() -> None:
    text = str(SampledGaussian(0.1, 2.0, 10, "shuffled", "replace-one", 4.0, HIDDEN))
    for word in ("10 steps", "noise 2", "shuffled", "rate 0.1", "replace-one", "sensitivity 4", HIDDEN):
        assert word in text
    assert str(Composed()) == "nothing" and "add-remove" in str(Gaussian(1.0)) and "3 times" in str(Repeated(STEP, 3))


CASES: dict[str, tuple[Event, set[GapKind], Event, Event]] = {
    "none": (STEP, set(), STEP, STEP),
    "shuffled": (
        SampledGaussian(0.1, 2.0, 20, "shuffled"),
        {GapKind.SHUFFLED},
        SampledGaussian(0.1, 2.0, 20),
        Repeated(Gaussian(2.0), 2),
    ),
    "whole gradient clipped": (
        SampledGaussian(0.1, 2.0, 10, sensitivity=2.0),
        {GapKind.SENSITIVITY},
        STEP,
        SampledGaussian(0.1, 1.0, 10),
    ),
    "hidden state": (
        SampledGaussian(0.1, 2.0, 10, sensitivity=64.0, hidden_state=HIDDEN),
        {GapKind.SENSITIVITY, GapKind.HIDDEN_STATE},
        STEP,
        Repeated(Gaussian(2.0 / 64), 10),
    ),
    "fitted": (Fitted("means"), {GapKind.FITTED}, Composed(), NonPrivate("means fitted on private data")),
    "full batches, shuffled": (
        SampledGaussian(1.0, 2.0, 5, "shuffled"),
        set(),
        SampledGaussian(1.0, 2.0, 5),
        Repeated(Gaussian(2.0), 5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gaps_and_the_two_readings(case: str) -> None:
    event, kinds, claimed, covered = CASES[case]
    assert {gap.kind for gap in gaps(event)} == kinds
    assert as_claimed(event) == claimed and as_covered(event) == covered
    assert not gaps(as_claimed(event)) and not gaps(as_covered(event))
    nested = Composed([Repeated(event, 2), STEP])
    assert {gap.kind for gap in gaps(nested)} == kinds
    rdp = accountant("rdp")
    assert rdp.supports(nested) == (not kinds)
    assert rdp.epsilon(as_covered(nested), 1e-5) >= rdp.epsilon(as_claimed(nested), 1e-5)
    if kinds:
        with pytest.raises(InputError, match="no theorem covers"):
            rdp.epsilon(nested, 1e-5)


def test_replace_one_keeps_its_relation_when_covered() -> None:
    covered = as_covered(SampledGaussian(0.5, 1.0, 4, "shuffled", "replace-one"))
    assert covered == Repeated(Gaussian(1.0, "replace-one"), 2)


def test_ledger() -> None:
    ledger = Ledger()
    assert not ledger and str(ledger) == "nothing was spent" and ledger.total() == Composed()
    for _ in range(3):
        ledger.spend("guest1", SampledGaussian(0.1, 2.0))
    ledger.spend("guest1", SampledGaussian(0.1, 3.0))
    ledger.spend("host", NonPrivate("labels"))
    assert ledger.parties == ("guest1", "host") and bool(ledger)
    assert ledger.of("guest1").events == (SampledGaussian(0.1, 2.0, 3), SampledGaussian(0.1, 3.0, 1))
    assert ledger.of("nobody") == Composed() and ledger.total() == Composed([ledger.of("guest1"), ledger.of("host")])
    assert "guest1: 3 steps" in str(ledger) and "host: not private: labels" in str(ledger)
    assert accountant("rdp").epsilon(ledger.total(), 1e-5) == float("inf")
