"""Verdicts are functions of scores: the same rule upholds, refutes or abstains as the numbers change."""

from __future__ import annotations

import json

import pytest

from vflaudit.claims.base import Claim, Trial, as_useful, hidden, leaks, more_useful
from vflaudit.claims.check import check_claims, claims_of, listing
from vflaudit.errors import InputError
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.result import DatasetInfo, Result

EXPERIMENT = Experiment(protocol="splitnn", attack="random-guess", data="iris", parties=2, set={"max_epochs": 1})


def result(advantage: float = 0.0, accuracy: float = 0.9) -> Result:
    return Result(
        protocol="splitnn",
        dataset=DatasetInfo(name="iris", rows=10, fingerprint="f"),
        adversary="the server",
        attack="random-guess",
        game="reconstruction",
        party="client1",
        seed=0,
        metric="r2",
        score=advantage,
        baseline=0.0,
        advantage=advantage,
        interval=(advantage - 0.1, advantage + 0.1),
        metrics={},
        rows=10,
        experiment={},
        parameters={},
        utility={"accuracy": accuracy},
        costs={},
        versions={},
        key="k",
    )


def trials(*within: bool) -> list[Trial]:
    return [Trial(f"trial {i}", EXPERIMENT, flag) for i, flag in enumerate(within)]


def scores(*rows: list[float]) -> list[list[Result]]:
    return [[result(value) for value in row] for row in rows]


HIGH, LOW, WIDE = [0.5, 0.51, 0.52, 0.5, 0.49], [0.0, 0.01, -0.01, 0.0, 0.01], [0.4, -0.3, 0.5, -0.2, 0.1]


@pytest.mark.parametrize(
    ("within", "rows", "ruling"),
    [
        ([True], [HIGH], "refuted"),
        ([True], [LOW], "upheld"),
        ([True], [WIDE], "inconclusive"),
        ([False], [HIGH], "conditional"),
        ([True, False], [LOW, HIGH], "conditional"),
        ([True, False], [HIGH, LOW], "refuted"),
        ([True, True], [LOW, WIDE], "inconclusive"),
    ],
)
def test_hidden(within, rows, ruling):
    assert hidden(0.1)(trials(*within), scores(*rows))[0] == ruling


@pytest.mark.parametrize(
    ("rows", "ruling"), [([HIGH], "upheld"), ([LOW], "refuted"), ([WIDE], "inconclusive"), ([HIGH, LOW], "refuted")]
)
def test_leaks(rows, ruling):
    assert leaks(0.1)(trials(*[True] * len(rows)), scores(*rows))[0] == ruling


def useful(first: list[float], second: list[float]) -> list[list[Result]]:
    return [[result(accuracy=value) for value in row] for row in (first, second)]


def test_equally_useful():
    judge, pair = as_useful("accuracy", 0.02), trials(True, True)
    assert judge(pair, useful([0.9, 0.91, 0.9], [0.9, 0.909, 0.901]))[0] == "upheld"
    assert judge(pair, useful([0.9, 0.91, 0.9], [0.8, 0.809, 0.801]))[0] == "refuted"
    assert judge(pair, useful([0.9, 0.7, 0.9], [0.8, 0.9, 0.801]))[0] == "inconclusive"


def test_more_useful():
    judge, pair = more_useful("accuracy"), trials(True, True)
    assert judge(pair, useful([0.9, 0.91, 0.9], [0.8, 0.809, 0.801]))[0] == "upheld"
    assert judge(pair, useful([0.8, 0.809, 0.801], [0.9, 0.91, 0.9]))[0] == "refuted"


def test_one_seed_decides_nothing():
    assert hidden(0.1)(trials(True), scores([0.9]))[0] == "inconclusive"


def test_check_writes_verdicts_with_evidence(tmp_path):
    claim = Claim(
        paper="p",
        id="c",
        section="1",
        statement="s",
        reading="literal",
        refuted_if="r",
        measured_on="iris",
        trials=(Trial("floor", EXPERIMENT),),
        judge=hidden(0.1),
    )
    verdicts, outcome = check_claims([claim], tmp_path, seeds=3)
    assert not outcome.failures
    assert verdicts[0]["verdict"] == "upheld", "a random guess gains nothing"
    assert json.loads((tmp_path / "claims.json").read_text()) == json.loads(json.dumps(verdicts))
    assert verdicts[0]["evidence"][0]["seeds"] == 3 and verdicts[0]["weakest_adversary"] is None


def test_missing_results_decide_nothing(tmp_path):
    broken = EXPERIMENT.model_copy(update={"attack": "representation-inversion"})
    claim = Claim("p", "c", "1", "s", "literal", "r", "iris", (Trial("no knowledge", broken),), hidden(0.1))
    verdicts, outcome = check_claims([claim], tmp_path, seeds=2)
    assert outcome.failures and verdicts[0]["verdict"] == "inconclusive"


def test_registered_claims_are_complete():
    assert len(listing()) == len(claims_of()) >= 4
    for claim in claims_of():
        assert claim.trials and claim.refuted_if and claim.section and claim.measured_on
    with pytest.raises(InputError, match="splitnn"):
        claims_of("splitn")
