"""What every accountant must do, whoever wrote it: one suite for all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vflaudit.accounting.accountants import ACCOUNTANTS, Accountant, accountant, available
from vflaudit.accounting.events import Composed, Event, Gaussian, NonPrivate, Repeated, SampledGaussian
from vflaudit.accounting.gaussian import gaussian_delta, gaussian_epsilon
from vflaudit.errors import InputError

TOLERANCE = 0.011  # PRV adds its error bound of 0.01 to what it returns
DELTA = 1e-5


@pytest.fixture(params=sorted(ACCOUNTANTS))
def judge(request: pytest.FixtureRequest) -> Accountant:
    if request.param not in (*available(), "exact"):
        pytest.skip("dp-accounting is not installed")
    return accountant(request.param)


def sampled(judge: Accountant, rate: float, sigma: float, steps: int) -> Event:
    """A release that this accountant knows: the exact one needs rate 1."""
    return SampledGaussian(1.0 if judge.name == "exact" else rate, sigma, steps)


def test_nothing_costs_nothing(judge: Accountant) -> None:
    for event in (Composed(), SampledGaussian(0.1, 1.0, 0), Repeated(Gaussian(1.0), 0), Composed([Composed()])):
        assert judge.supports(event) and judge.epsilon(event, DELTA) == 0


def test_what_is_not_private_costs_everything(judge: Accountant) -> None:
    for event in (NonPrivate(), Composed([Gaussian(9.0), Repeated(NonPrivate("labels"), 2)])):
        assert judge.supports(event) and judge.epsilon(event, DELTA) == math.inf
    assert judge.epsilon(Repeated(NonPrivate(), 0), DELTA) == 0


def test_unknown_events_are_refused(judge: Accountant) -> None:
    class Laplace:
        sigma = 1.0

    for event in (Laplace(), Composed([Gaussian(1.0), Laplace()]), Repeated(Laplace(), 2), None, 3.0):  # type: ignore[list-item,arg-type]
        assert not judge.supports(event)
        with pytest.raises(InputError, match=judge.name):
            judge.epsilon(event, DELTA)


def test_two_relations_do_not_add_up(judge: Accountant) -> None:
    mixed = Composed([Gaussian(1.0), Gaussian(1.0, "replace-one")])
    assert not judge.supports(mixed)
    with pytest.raises(InputError, match="replace-one"):
        judge.epsilon(mixed, DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_impossible_deltas_are_refused(judge: Accountant, delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        judge.epsilon(Gaussian(1.0), delta)


def assert_monotone(judge: Accountant, rate: float, sigma: float, steps: int, factor: float) -> None:
    cost = judge.epsilon(sampled(judge, rate, sigma, steps), DELTA)
    more = (
        judge.epsilon(sampled(judge, rate, sigma, math.ceil(steps * factor)), DELTA),
        judge.epsilon(sampled(judge, rate, sigma / factor, steps), DELTA),
        judge.epsilon(sampled(judge, min(1.0, rate * factor), sigma, steps), DELTA),
        judge.epsilon(sampled(judge, rate, sigma, steps), DELTA / factor),
    )
    assert cost >= 0 and all(value >= cost - 1e-9 for value in more)


def test_more_steps_less_noise_or_less_delta_cost_more(judge: Accountant) -> None:
    assert_monotone(judge, 0.02, 1.5, 60, 2.0)


@settings(deadline=None)
@given(
    st.sampled_from(["rdp-classic", "rdp", "exact"]),
    st.floats(0.01, 0.5),
    st.floats(0.5, 50.0),
    st.integers(1, 1000),
    st.floats(1.0, 3.0),
)
def test_the_fast_accountants_are_monotone_everywhere(
    name: str, rate: float, sigma: float, steps: int, factor: float
) -> None:
    assert_monotone(accountant(name), rate, sigma, steps, factor)


def test_composition_does_not_depend_on_how_it_is_written(judge: Accountant) -> None:
    ten = sampled(judge, 0.1, 2.0, 10)
    ways = (
        ten,
        Repeated(sampled(judge, 0.1, 2.0, 1), 10),
        Composed([sampled(judge, 0.1, 2.0, 4), Composed([Repeated(sampled(judge, 0.1, 2.0, 3), 2)])]),
    )
    costs = [judge.epsilon(way, DELTA) for way in ways]
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-9)


def test_two_different_releases_cost_no_more_than_their_sum(judge: Accountant) -> None:
    one, other = sampled(judge, 0.1, 1.5, 20), sampled(judge, 0.3, 3.0, 10)
    both = judge.epsilon(Composed([one, other]), DELTA)
    assert max(judge.epsilon(one, DELTA), judge.epsilon(other, DELTA)) <= both
    assert both <= judge.epsilon(one, DELTA / 2) + judge.epsilon(other, DELTA / 2) + TOLERANCE


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
def test_the_gaussian_mechanism_has_a_closed_form(judge: Accountant, sigma: float) -> None:
    """Balle and Wang (2018), theorem 8. Every answer is an upper bound; RDP loses something, the others do not."""
    truth = gaussian_epsilon(sigma, 1.0, DELTA)
    assert gaussian_delta(sigma, 1.0, truth) == pytest.approx(DELTA, rel=1e-6)
    renyi = 1 / (2 * sigma**2) + math.sqrt(2 * math.log(1 / DELTA)) / sigma  # the best order, were all orders tried
    most = renyi * 1.02 if judge.name.startswith("rdp") else truth + TOLERANCE
    assert truth - 1e-9 <= judge.epsilon(Gaussian(sigma), DELTA) <= most
    many = judge.epsilon(Repeated(Gaussian(sigma * 3), 9), DELTA)
    assert many == pytest.approx(judge.epsilon(Gaussian(sigma), DELTA), rel=1e-6)
    assert judge.epsilon(SampledGaussian(1.0, sigma, 1), DELTA) == judge.epsilon(Gaussian(sigma), DELTA)


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_replacing_moves_a_sum_twice_as_far(judge: Accountant, sigma: float) -> None:
    replaced = judge.epsilon(Gaussian(sigma, "replace-one"), DELTA)
    assert replaced == pytest.approx(judge.epsilon(Gaussian(sigma / 2), DELTA), rel=1e-6)


@pytest.mark.parametrize("event", [SampledGaussian(0.01, 1.0, 500), SampledGaussian(0.2, 2.0, 50)])
def test_accountants_agree(event: SampledGaussian) -> None:
    """All are upper bounds on the same number: the classic is the loosest, PRV and PLD are within their errors."""
    cost = {name: accountant(name).epsilon(event, DELTA) for name in available()}
    assert cost["rdp-classic"] >= cost["rdp"] >= cost["prv"] - TOLERANCE
    assert cost["prv"] >= 0.8 * cost["rdp"]
    if "pld" in cost:
        assert cost["prv"] - TOLERANCE - 1e-3 <= cost["pld"] <= cost["prv"]


@pytest.mark.parametrize("name", ["rdp", "prv", "pld"])
def test_replace_one_with_sampling(name: str) -> None:
    """Between the cost for add-remove and what group privacy allows; no more than full batches would cost."""
    if name not in available():
        pytest.skip("dp-accounting is not installed")
    judge, rate, sigma, steps = accountant(name), 0.1, 2.0, 50
    plain = judge.epsilon(SampledGaussian(rate, sigma, steps), DELTA)
    swapped = judge.epsilon(SampledGaussian(rate, sigma, steps, neighbours="replace-one"), DELTA)
    assert plain < swapped <= judge.epsilon(SampledGaussian(1.0, sigma, steps, neighbours="replace-one"), DELTA)
    exact = accountant("pld") if "pld" in available() else judge
    assert swapped >= exact.epsilon(SampledGaussian(rate, sigma, steps, neighbours="replace-one"), DELTA) - 1e-9


def test_beyond_its_range_a_numerical_accountant_says_so() -> None:
    for name in set(available()) & {"prv", "pld"}:
        with pytest.raises(InputError, match="beyond its range"):
            accountant(name).epsilon(Gaussian(0.001), DELTA)
    assert math.isfinite(accountant("rdp").epsilon(Gaussian(0.001), DELTA))


def test_accountants_have_names() -> None:
    with pytest.raises(InputError, match="'prv'"):
        accountant("prvs")
    assert set(available()) <= set(ACCOUNTANTS) and all(kind.summary for kind in ACCOUNTANTS.values())
