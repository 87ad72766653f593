"""Verdicts are functions of numbers: the same rule upholds, refutes or abstains as the numbers change."""

from __future__ import annotations

import json

import pytest

from vflaudit.claims.base import (
    Attacked,
    Claim,
    Compared,
    Computed,
    Measured,
    above,
    at_most,
    hidden,
    leaks,
    within,
)
from vflaudit.claims.check import FIRST_SEED, check_claims, claims_of, judge, listing
from vflaudit.errors import InputError
from vflaudit.lab.experiment import Experiment

EXPERIMENT = Experiment(protocol="splitnn", attack="random-guess", data="iris", parties=2, set={"max_epochs": 1})
HIGH, LOW, WIDE = (0.5, 0.51, 0.52, 0.5, 0.49), (0.0, 0.01, -0.01, 0.0, 0.01), (0.4, -0.3, 0.5, -0.2, 0.1)


def row(values: tuple[float, ...], within_paper: bool = True) -> Measured:
    return Measured("what", "the server", "advantage", values, within_paper)


@pytest.mark.parametrize(
    ("rule", "rows", "ruling"),
    [
        (hidden(0.1), [row(HIGH)], "refuted"),
        (hidden(0.1), [row(LOW)], "upheld"),
        (hidden(0.1), [row(WIDE)], "inconclusive"),
        (hidden(0.1), [row(HIGH, False)], "conditional"),
        (hidden(0.1), [row(LOW), row(HIGH, False)], "conditional"),
        (hidden(0.1), [row(HIGH), row(LOW, False)], "refuted"),
        (hidden(0.1), [row(LOW), row(WIDE)], "inconclusive"),
        (hidden(0.1), [row((0.9,))], "inconclusive"),
        (leaks(0.1), [row(HIGH)], "upheld"),
        (leaks(0.1), [row(LOW)], "refuted"),
        (leaks(0.1), [row(WIDE)], "inconclusive"),
        (leaks(0.1), [row(HIGH), row(LOW)], "refuted"),
        (above(0.0), [row(HIGH)], "upheld"),
        (at_most(1.0), [row(HIGH)], "upheld"),
        (within(0.02), [row(LOW)], "upheld"),
        (within(0.02), [row(HIGH)], "refuted"),
        (within(0.02), [row(tuple(-v for v in HIGH))], "refuted"),
        (within(0.02), [row(WIDE)], "inconclusive"),
        (within(0.02), [], "inconclusive"),
        (above(0.1), [row(HIGH), row(LOW, False)], "conditional"),
    ],
)
def test_rules(rule, rows, ruling):
    assert rule.ruling(rows) == ruling


def claim(*evidence, rule=None) -> Claim:
    return Claim("p", "c", "1", "s", "literal", "r", "iris", evidence, rule or hidden(0.1))


def test_check_writes_verdicts_with_evidence(tmp_path):
    other = EXPERIMENT.model_copy(update={"protocol": "centralized"})
    compared = Compared("bytes", EXPERIMENT, other, lambda r: r.costs["bytes"], "ratio of bytes", ratio=True)
    verdicts, outcome = check_claims(
        [
            claim(Attacked("floor", EXPERIMENT)),
            claim(compared, rule=above(1.0)),
            claim(Computed("count", lambda seed: 3 + seed - FIRST_SEED, "number"), rule=above(1.0)),
        ],
        tmp_path,
        seeds=3,
    )
    assert not outcome.failures
    assert [verdict["verdict"] for verdict in verdicts] == ["upheld"] * 3
    assert json.loads((tmp_path / "claims.json").read_text()) == json.loads(json.dumps(verdicts))
    first = verdicts[0]["evidence"][0]
    assert first["seeds"] == 3 and len(first["keys"]) == 3 and verdicts[0]["weakest_adversary"] is None
    assert first["mean"] == pytest.approx(sum(r.advantage for r in outcome.results if r.protocol == "splitnn") / 3)
    assert verdicts[2]["evidence"][0]["mean"] == 4


def test_missing_results_decide_nothing(tmp_path):
    broken = EXPERIMENT.model_copy(update={"attack": "representation-inversion"})
    verdicts, outcome = check_claims([claim(Attacked("no knowledge", broken))], tmp_path, seeds=2)
    assert outcome.failures and verdicts[0]["verdict"] == "inconclusive"
    assert judge(claim(Attacked("x", EXPERIMENT)), {}, [1, 2])["verdict"] == "inconclusive"


def test_a_computed_number_may_be_an_adversary_beyond_the_paper():
    computed = Computed("gain", lambda seed: 0.5 + seed / 100, "gain", "the server, knowing more", within_paper=False)
    verdict = judge(claim(computed), {}, [1, 2, 3])
    assert verdict["verdict"] == "conditional" and verdict["weakest_adversary"] == "the server, knowing more"
    assert not verdict["evidence"][0]["within_paper"]


def test_registered_claims_are_complete():
    assert len(listing()) == len(claims_of()) >= 4
    assert len({one.name for one in claims_of()}) == len(claims_of())
    for one in claims_of():
        assert one.evidence and one.refuted_if and one.section and one.measured_on
    with pytest.raises(InputError, match="splitnn"):
        claims_of("splitn")
