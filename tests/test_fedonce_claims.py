"""FedOnce's claims: rules, comparisons, figures, suites. Verdicts are measured elsewhere, on seeds of their own."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vflaudit.claims.base import Measured
from vflaudit.claims.check import FIRST_SEED, judge
from vflaudit.claims.fedonce import CLAIMS, audits, costs
from vflaudit.claims.fedonce.evidence import not_refuted, saving
from vflaudit.claims.fedonce.remedies import PUBLISHED, covered, remedies
from vflaudit.lab.suite import load_suite

BY_ID = {claim.id: claim for claim in CLAIMS}
SUITES = Path(__file__).resolve().parent.parent / "vflaudit/lab/suites"


def test_every_claim_says_what_refutes_it() -> None:
    assert len(BY_ID) == len(CLAIMS) >= 15
    for claim in CLAIMS:
        assert claim.evidence and claim.refuted_if and claim.section and claim.measured_on
        assert {e.seed for part in claim.evidence for e in part.experiments} <= {0}, "seeds are the judge's"


def row(*values: float, within_paper: bool = True) -> Measured:
    return Measured("x", "somebody", "epsilon", values, within_paper)


def test_an_audit_never_upholds() -> None:
    rule = not_refuted()
    assert rule.ruling([row(0.0, 0.1, 0.0)]) == "inconclusive"
    assert rule.ruling([row(0.0, 0.1, 0.0), row(1.4, 1.5, 1.6)]) == "refuted"
    assert rule.ruling([row(0.0, 0.1, 0.0), row(1.4, 1.5, 1.6, within_paper=False)]) == "conditional"


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.9, 1 - 100 / 4000), (0.6, 1 - 100 / 400), (0.99, 1 - 100 / 4000)]
)
def test_saving_counts_bytes_until_equal_accuracy(accuracy: float, expected: float) -> None:
    one: Any = SimpleNamespace(utility={"accuracy": accuracy, "training_bytes": 100.0})
    curve = {0: (0.5, 0.0), 1: (0.7, 400.0), 10: (0.9, 4000.0)}
    parts = {f"epoch_{e}_accuracy": a for e, (a, _) in curve.items()} | {
        f"epoch_{e}_bytes": b for e, (_, b) in curve.items()
    }
    rounds: Any = SimpleNamespace(utility={"accuracy": 0.9, **parts})
    assert saving(one, rounds) == pytest.approx(expected)


def test_saving_may_be_negative() -> None:
    one: Any = SimpleNamespace(utility={"accuracy": 0.4, "training_bytes": 100.0})
    rounds: Any = SimpleNamespace(utility={"epoch_0_accuracy": 0.5, "epoch_0_bytes": 0.0})
    assert saving(one, rounds) < 0


def test_moments_division_is_judged_from_the_accountant() -> None:
    assert judge(BY_ID["moments-division"], {}, range(2))["verdict"] == "conditional"
    own = replace(BY_ID["moments-division"], evidence=BY_ID["moments-division"].evidence[:1])
    assert judge(own, {}, range(2))["verdict"] == "upheld"


def test_sensitivity_is_judged_from_steps() -> None:
    claim = BY_ID["clip-bounds-sensitivity"]
    assert judge(replace(claim, evidence=claim.evidence[:1]), {}, range(2))["verdict"] == "refuted"
    assert audits.worst_change(0, 32, "sample", "fixed") <= 1.001


def test_one_round_on_the_wire() -> None:
    assert costs.rounds(0, "l0") == costs.messages(0, "l0") == 1
    assert costs.rounds(0, "splitnn") > 1 < costs.messages(0, "splitnn")


def test_remedies_that_keep_people_apart_are_covered() -> None:
    found = remedies("breast-cancer", [0])
    assert found[PUBLISHED][1] > 100
    for name in ("fixed targets", "nearest public target", "whole-batch clipping, twice the noise"):
        assert found[name][1] <= 2.001
    assert np.mean(found["nearest public target"][0]) > 0.5
    assert covered(costs.trained(0, "l0")) == float("inf")


def test_figures_without_audits(tmp_path: Path) -> None:
    drawings = importlib.import_module("vflaudit.claims.fedonce.figures").DRAWINGS
    assert set(drawings) == {"privacy-sandwich", "sensitivity", "division", "inversion", "remedies"}
    drawn = drawings["division"](tmp_path)
    assert "88.9%" in drawn.caption and "268.88 and 29.84" in drawn.caption


@pytest.mark.parametrize("name", ["fedonce_tables", "fedonce_small"])
def test_suites_load(name: str) -> None:
    suite = load_suite(str(SUITES / f"{name}.toml"))
    assert suite.seeds == 5 and {e.protocol for e in suite.experiments} <= {"fedonce", "ideal"}


def test_judged_seeds_are_fresh() -> None:
    assert FIRST_SEED >= 100
