"""Accounting of k parties against known values and its own inequalities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vflaudit.accounting.parties import Training, account, calibrate, parse_parties
from vflaudit.errors import InputError

PAPER = Training(people=60000, batch=128, epochs=50, sigma=1.0, delta=1e-5)


def test_fedonce_table_at_100_parties():
    """FedOnce 5.7 reports 88.9% less epsilon at k = 100; the classic conversion gives it."""
    row = account(PAPER, [100], ["rdp-classic"])[0]
    assert row.simple == pytest.approx(268.88, abs=0.05)
    assert row.reduction == pytest.approx(0.889, abs=0.001)


def test_one_full_batch_step_is_the_gaussian_mechanism():
    """q = 1, T = 1: the Rényi divergence is alpha / (2 sigma^2), so epsilon has a closed form."""
    training = Training(people=10, batch=10, epochs=1, sigma=4.0, delta=1e-5)
    best = min(a / 32 + math.log(1e5) / (a - 1) for a in (1 + x / 1000 for x in range(1, 60_000)))
    found = account(training, [1], ["rdp-classic"])[0].moments
    assert best <= found <= best * 1.002


@given(st.integers(1, 200))
def test_joint_accounting_never_costs_more(parties):
    for row in account(Training(1000, 20, 5, 1.5, 1e-5), [parties]):
        assert 0 <= row.moments <= row.simple + 1e-9
        assert row.parties > 1 or row.reduction == pytest.approx(0)


def test_improved_conversion_is_tighter():
    classic, improved = (account(PAPER, [4], [name])[0] for name in ("rdp-classic", "rdp"))
    assert improved.moments < classic.moments and improved.simple < classic.simple


@pytest.mark.parametrize(("parties", "epsilon"), [(1, 2.0), (4, 1.0), (50, 8.0)])
def test_calibration_meets_its_target_and_no_more(parties, epsilon):
    sigma = calibrate(PAPER, parties, epsilon)
    spent = [account(Training(60000, 128, 50, s, 1e-5), [parties], ["rdp"])[0].moments for s in (sigma, sigma * 0.995)]
    assert spent[0] <= epsilon < spent[1]


def test_parties():
    assert parse_parties("1:3") == [1, 2, 3] and parse_parties("8") == [8] and parse_parties("1,4") == [1, 4]
    for text in ("", "0", "3:1", "a", "1:2:3", "1:999999999"):
        with pytest.raises(InputError, match="parties"):
            parse_parties(text)


@pytest.mark.parametrize(
    "change", [{"batch": 0}, {"batch": 70000}, {"sigma": 0}, {"delta": 0}, {"delta": 1}, {"epochs": -1}]
)
def test_impossible_training_is_refused(change):
    values = {"people": 60000, "batch": 128, "epochs": 50, "sigma": 1.0, "delta": 1e-5, **change}
    with pytest.raises(InputError):
        Training(**values)
