"""Accounting of k parties against known values and its own inequalities."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vflaudit.accounting.accountants import OutOfRange, accountant, available
from vflaudit.accounting.events import Composed, SampledGaussian
from vflaudit.accounting.parties import Training, account, calibrate, divide, few, parse_parties
from vflaudit.accounting.validity import as_claimed, as_covered
from vflaudit.cli import app
from vflaudit.errors import InputError

PAPER = Training(people=60000, batch=128, epochs=50, sigma=1.0)
SMALL = Training(1000, 20, 5, 1.5).event()


@pytest.mark.parametrize(
    ("name", "simple", "moments"),
    [("rdp-classic", 268.88, 29.84), ("rdp", 235.37, 28.40), ("prv", 218.4, 26.82), ("pld", 217.4, 26.74)],
)
def test_fedonce_table_at_100_parties(name: str, simple: float, moments: float) -> None:
    """FedOnce 5.7 reports 88.9% less epsilon at k = 100: the moments accountant with its conversion gives it.

    The paper prints the reduction only; the epsilons pin down this implementation, whose four accountants agree on what
    is tighter than what.
    """
    if name not in available():
        pytest.skip("dp-accounting is not installed")
    row = account(PAPER.event(), 1e-5, [100], [name])[0]
    assert row.simple == pytest.approx(simple, rel=2e-3) and row.moments == pytest.approx(moments, rel=5e-3)
    assert name != "rdp-classic" or round(row.reduction, 3) == 0.889


def test_one_full_batch_step_is_the_gaussian_mechanism() -> None:
    """q = 1, T = 1: the Rényi divergence is alpha / (2 sigma^2), so epsilon has a closed form."""
    event = Training(people=10, batch=10, epochs=1, sigma=4.0).event()
    whole = min(a / 32 + math.log(1e5) / (a - 1) for a in range(2, 64))
    assert account(event, 1e-5, [1], ["rdp-classic"])[0].moments == pytest.approx(whole)


@given(st.integers(1, 200))
def test_joint_accounting_never_costs_more(parties: int) -> None:
    for row in account(SMALL, 1e-5, [parties], ["rdp-classic", "rdp"]):
        assert 0 <= row.moments <= row.simple + 1e-9
        assert row.parties > 1 or row.reduction == pytest.approx(0)


def test_a_table_asks_numerical_accountants_for_few_counts() -> None:
    counts = list(range(1, 41))
    rows = account(SMALL, 1e-5, counts, ["rdp", "prv"])
    assert [row.parties for row in rows if row.accountant == "rdp"] == counts
    assert [row.parties for row in rows if row.accountant == "prv"] == few(counts)
    assert few(counts)[0] == 1 and few(counts)[-1] == 40 and len(few(counts)) <= 8 and few([3, 1]) == [3, 1]


def test_a_table_leaves_out_what_is_beyond_range_unless_it_was_asked_for() -> None:
    loud = Training(1000, 1000, 1, 0.05).event()
    assert {row.accountant for row in account(loud, 1e-5, [100])} == {"rdp-classic", "rdp"}
    with pytest.raises(OutOfRange, match="use 'rdp'"):
        account(loud, 1e-5, [100], ["prv"])


def test_parties_may_differ() -> None:
    """Simple division gives each of three parties a third of delta and adds up; moments converts the whole once."""
    events = [SampledGaussian(0.01, 1.0, 100), SampledGaussian(0.02, 1.5, 300), SampledGaussian(0.5, 4.0, 10)]
    judge = accountant("rdp")
    assert divide(events, 3e-6, "rdp", "simple") == sum(judge.epsilon(event, 1e-6) for event in events)
    assert divide(events, 3e-6, "rdp", "moments") == judge.epsilon(Composed(events), 3e-6)
    with pytest.raises(InputError, match="moments"):
        divide(events, 1e-5, "rdp", "moment")  # type: ignore[arg-type]


@pytest.mark.parametrize(("parties", "epsilon"), [(1, 2.0), (4, 1.0), (50, 8.0)])
@pytest.mark.parametrize("division", ["simple", "moments"])
def test_calibration_meets_its_target_and_no_more(parties: int, epsilon: float, division: str) -> None:
    def spent(factor: float) -> float:
        events = [SampledGaussian(e.rate, s * factor, e.steps) for e, s in zip(asked, sigmas, strict=True)]
        return divide(events, 1e-5, "rdp", division)  # type: ignore[arg-type]

    asked = [SampledGaussian(0.01 + 0.01 * (at % 2), 1.0, 200 + 100 * (at % 3)) for at in range(parties)]
    sigmas = calibrate(asked, epsilon, 1e-5, division=division)  # type: ignore[arg-type]
    assert spent(1) <= epsilon < spent(0.995)
    if division == "moments":
        assert len(set(sigmas)) == 1 and sigmas[0] <= max(calibrate(asked, epsilon, 1e-5, division="simple"))
    else:  # more steps or larger batches need more noise
        assert sigmas[0] <= sigmas[-1] or parties == 1


def test_calibration_pays_for_what_no_theorem_covers() -> None:
    """Twice the sensitivity needs twice the noise; shuffled batches lose the amplification; a claim overlooks both."""
    plain = SampledGaussian(0.01, 1.0, 500)
    doubled = SampledGaussian(0.01, 1.0, 500, sensitivity=2.0)
    shuffled = SampledGaussian(0.01, 1.0, 500, scheme="shuffled")
    sigma = {event: calibrate([event], 1.0, 1e-5)[0] for event in (plain, doubled, shuffled)}
    assert sigma[doubled] == pytest.approx(2 * sigma[plain], rel=2e-3)
    assert sigma[shuffled] > 4 * sigma[plain]
    assert calibrate([as_claimed(shuffled)], 1.0, 1e-5)[0] == sigma[plain]
    assert accountant("exact").epsilon(as_covered(SampledGaussian(0.01, 9.0, 500, "shuffled")), 1e-5) == pytest.approx(
        accountant("exact").epsilon(SampledGaussian(1.0, 9.0, 5), 1e-5)
    )


def test_shuffled_epochs_have_whole_batches() -> None:
    event = Training(100, 30, 10, 1.0).event(scheme="shuffled")
    assert (event.rate, event.steps, event.scheme) == (1 / 4, 40, "shuffled")
    assert PAPER.event().steps == 23438 and PAPER.event().rate == 128 / 60000


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["account", *arguments])
    return done.exit_code, done.output


def test_the_command_prints_a_table_and_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fast = ("--accountant", "rdp-classic", "--accountant", "rdp")
    code, text = run("--parties", "1:100", *fast)
    assert code == 0 and "268.88" in text and "29.84" in text and "88.9%" in text
    assert "poisson" in text and "add-remove" in text and "8 of 100 counts" in text
    assert (tmp_path / "account.svg").read_text().startswith("<?xml")
    code, text = run("--parties", "1:3", "--plot", "deep/epsilon.png", *fast)
    assert code == 0 and (tmp_path / "deep" / "epsilon.png").read_bytes()[1:4] == b"PNG" and "counts" not in text
    done = CliRunner().invoke(app, ["account", "--plot", "epsilon.doc", *fast])
    assert isinstance(done.exception, InputError) and ".svg" in str(done.exception)


def test_the_command_flags_what_is_not_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run("--parties", "1:2", "--scheme", "shuffled", "--sensitivity", "2", "--accountant", "rdp", "--json")
    found = json.loads(text)
    assert code == 0 and len(found["flags"]) == 2 and found["scheme"] == "shuffled" and found["rows"][0]["simple"] > 100
    assert not list(tmp_path.iterdir())  # JSON and nothing else
    code, text = run("--parties", "1", "--sensitivity", "2", "--accountant", "rdp-classic")
    halved = accountant("rdp-classic").epsilon(Training(60000, 128, 50, 0.5).event(), 1e-5)
    assert "not covered" in text and f" {halved:.2f} " in text


def test_the_command_calibrates() -> None:
    code, text = run("--parties", "1,4", "--epsilon", "2", "--json")
    found = json.loads(text)
    assert code == 0 and found["sigma"]["1"] < found["sigma"]["4"] < found["sigma_simple"]["4"]
    spent = account(Training(60000, 128, 50, found["sigma"]["4"]).event(), 1e-5, [4], ["rdp"])[0].moments
    assert 1.98 < spent <= 2.0


def test_parties() -> None:
    assert parse_parties("1:3") == [1, 2, 3] and parse_parties("8") == [8] and parse_parties("1,4") == [1, 4]
    for text in ("", "0", "3:1", "a", "1:2:3", "1:999999999"):
        with pytest.raises(InputError, match="parties"):
            parse_parties(text)


@pytest.mark.parametrize("change", [{"batch": 0}, {"batch": 70000}, {"sigma": 0}, {"epochs": -1}])
def test_impossible_training_is_refused(change: dict[str, float]) -> None:
    values = {"people": 60000, "batch": 128, "epochs": 50, "sigma": 1.0, **change}
    with pytest.raises(InputError):
        Training(**values)  # type: ignore[arg-type]


def test_impossible_calibration_is_refused() -> None:
    for events, epsilon in (([], 1.0), ([SMALL], 0.0), ([SMALL], math.inf), ([SMALL], 1e-9)):
        with pytest.raises(InputError):
            calibrate(events, epsilon, 1e-5)
