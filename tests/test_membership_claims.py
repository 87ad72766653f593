"""Claims about membership: the bound is the exact one, the server is judged by its messages, the figure by results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vflaudit.accounting.tradeoff import most_found, one_sided
from vflaudit.claims.base import Attacked, Measured
from vflaudit.claims.membership import BUDGETS, CLAIMS
from vflaudit.claims.membership.evidence import FPR, RATE, Allowed, leaks_somewhere
from vflaudit.errors import InputError
from vflaudit.lab.experiment import Experiment, prepare
from vflaudit.lab.perform import perform
from vflaudit.lab.result import Result
from vflaudit.lab.store import Store
from vflaudit.report.audit import load_audit
from vflaudit.report.membership_bound import bounds, promise

TINY = "synthetic:rows=160,features=9,signal=0.5"
SHARE = st.floats(0, 1)
BUDGET = st.floats(0, 12)


# --- the bound ----------------------------------------------------------------------------------------------


def power(epsilon: float, delta: float, fpr: float) -> float:
    """The best test between the two most different outputs that (epsilon, delta) allows (Kairouz et al., theorem 3)."""
    coin = (1 - delta) / (1 + math.exp(epsilon))
    inside = [delta, coin * math.exp(epsilon), coin, 0.0]
    found, left = 0.0, fpr
    for with_, without in zip(inside, reversed(inside), strict=True):  # by likelihood ratio, the greatest first
        share = 1.0 if without <= left else left / without
        found, left = found + share * with_, left - share * without
    return found


@given(epsilon=BUDGET, delta=SHARE, fpr=SHARE)
def test_the_bound_is_what_the_best_attack_reaches(epsilon: float, delta: float, fpr: float) -> None:
    assert most_found(epsilon, delta, fpr) == pytest.approx(min(power(epsilon, delta, fpr), 1.0), abs=1e-9)


@given(epsilon=BUDGET, delta=SHARE, fpr=SHARE)
def test_the_bound_is_never_above_the_line(epsilon: float, delta: float, fpr: float) -> None:
    assert fpr - 1e-12 <= most_found(epsilon, delta, fpr) <= min(one_sided(epsilon, delta, fpr), 1.0) + 1e-12


def test_ends_of_the_bound() -> None:
    assert most_found(0.0, 0.0, 0.03) == pytest.approx(0.03)
    assert most_found(math.inf, 0.0, 0.0) == 1.0
    assert most_found(1000.0, 0.0, 0.0) == 0.0  # pure: who never gives a false alarm finds nobody
    for wrong in ((-1.0, 0.0, 0.1), (1.0, 2.0, 0.1), (1.0, 0.0, -0.1), (math.nan, 0.0, 0.1)):
        with pytest.raises(InputError):
            most_found(*wrong)


# --- evidence and rules -------------------------------------------------------------------------------------


def row(*values: float) -> Measured:
    return Measured("what", "an outsider", "advantage", values)


def test_a_threat_is_real_if_it_is_seen_once() -> None:
    rule = leaks_somewhere(0.05)
    leak, none, unclear = row(0.20, 0.21, 0.22), row(0.0, 0.001, 0.002), row(-0.2, 0.05, 0.3)
    assert rule.ruling([none, leak, unclear]) == "upheld"
    assert rule.ruling([none, unclear]) == "inconclusive"
    assert rule.ruling([none, none]) == "refuted"
    assert rule.ruling([]) == "inconclusive"


def matched(protocol: str = "vfedsec", seed: int = 0, **settings: Any) -> float:
    """What the server gains by looking candidates up among the rows of its messages."""
    settings = {"epochs": 1, "batch_size": 32, **settings}
    experiment = Experiment(
        protocol=protocol, attack="row-matching", data=TINY, parties=3, aux=0.5, seed=seed, set=settings
    )
    ((_, result, _),) = perform([experiment])
    assert isinstance(result, Result), result
    return result.advantage


def test_the_server_finds_candidates_in_its_messages() -> None:
    assert matched() > 0.49


def test_the_server_finds_nobody_in_messages_about_others() -> None:
    assert abs(np.mean([matched("ideal", seed, like="vfedsec") for seed in range(4)])) < 0.1


@pytest.fixture(scope="module")
def private() -> Result:
    """One attack on a tiny FedOnce-L1."""
    settings = {"variant": "l1", "epsilon": 4, "guest_epochs": 1, "host_epochs": 1}
    experiment = Experiment(
        protocol="fedonce", attack="loss-threshold", data=TINY, parties=3, aux=0.5, corrupts=(),
        knows=("model=black-box",), set=settings,
    )  # fmt: skip
    ((_, result, _),) = perform([experiment])
    assert isinstance(result, Result)
    return result


def with_rate(result: Result, tpr: float, seed: int = 0, **settings: Any) -> Result:
    """The same result with a rate that its few rows could not resolve, as if of another seed or other settings."""
    asked = result.experiment | {"seed": seed, "set": result.experiment["set"] | settings}
    made = result.parameters | {"protocol": result.parameters["protocol"] | settings}
    metrics = result.metrics | {RATE: tpr, f"{RATE}_interval": [tpr / 2, tpr * 2]}
    key = f"{seed}{settings}{tpr}".encode().hex()[:32].ljust(32, "0")
    changes = {"seed": seed, "experiment": asked, "parameters": made, "metrics": metrics, "key": key}
    return result.model_copy(update=changes)


def test_a_rate_is_compared_with_what_its_budget_allows(private: Result) -> None:
    experiment = Experiment.model_validate(private.experiment)
    evidence = Allowed("tiny", experiment, 2.0, 1e-5)
    found = evidence.measured(lambda _, seed: with_rate(private, (0.02, 0.5)[seed], seed), range(2))
    most = math.exp(2) * FPR + 1e-5
    assert found.values == pytest.approx((0.02 - most, 0.5 - most))
    assert evidence.experiments == (experiment,)


# --- the claims ---------------------------------------------------------------------------------------------


def test_every_experiment_is_one_that_can_be_run() -> None:
    for claim in CLAIMS:
        for evidence in claim.evidence:
            for experiment in evidence.experiments:
                prepare(experiment)
        assert claim.measured_on and claim.least_seeds >= 5
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


def test_papers_that_promise_nothing_are_not_refuted() -> None:
    silent = [claim for claim in CLAIMS if "does not speak" in claim.section]
    assert {claim.section.split(",")[0] for claim in silent} == {"RAP", "APC-VFL", "TabVFL"}
    for claim in silent:
        assert claim.reading == "implied"
        assert all(isinstance(part, Attacked) and not part.within_paper for part in claim.evidence)


def test_every_budget_is_measured() -> None:
    claims = {claim.id: claim for claim in CLAIMS}
    for name in ("fedonce-l1-protected", "fedonce-l1-bound"):
        settings = [e.set for part in claims[name].evidence for e in part.experiments]
        assert {one["epsilon"] for one in settings} == set(BUDGETS)
        assert all(one["variant"] == "l1" for one in settings)


# --- the figure ---------------------------------------------------------------------------------------------


def audit_of(folder: Path, results: list[Result]) -> Any:
    store = Store(folder)
    store.begin("A title", [result.key for result in results], {})
    for result in results:
        store.write(result, {})
    return load_audit(folder)


def test_no_figure_where_no_rate_is_resolved(private: Result, tmp_path: Path) -> None:
    assert private.metrics[RATE] is None
    assert bounds(audit_of(tmp_path, [private])) == []


def test_the_figure_has_the_rates_of_the_results(private: Result, tmp_path: Path) -> None:
    results = [with_rate(private, tpr, seed, epsilon=4.0) for seed, tpr in enumerate((0.02, 0.03))]
    results += [with_rate(private, 0.3, epsilon=2.0), with_rate(private, 0.5, variant="l0")]
    (plot,) = bounds(audit_of(tmp_path, results))
    for told in ("epsilon 2: 0.300", "epsilon 4: 0.025", "epsilon inf: 0.500"):
        assert told in plot.alt
    assert "1 of 3 marks lie above" in plot.caption  # 0.15 to 0.6, where epsilon 2 allows 0.074
    assert plot.light.startswith("data:image/svg+xml") and plot.narrow_dark


def test_no_figure_without_a_budget(private: Result, tmp_path: Path) -> None:
    assert bounds(audit_of(tmp_path, [with_rate(private, 0.5, variant="l0")])) == []


def test_only_fedonce_promises_about_its_released_model() -> None:
    assert promise("fedonce", {"variant": "l1", "epsilon": 2, "delta": None}, "gisette") == (2.0, 1e-4)
    assert promise("fedonce", {"variant": "l1", "epsilon": 2, "delta": 1e-6}, "gisette") == (2.0, 1e-6)
    assert promise("fedonce", {"variant": "l0", "epsilon": 2, "delta": None}, "digits") == (math.inf, 1e-5)
    assert promise("fedonce", {"variant": "solo", "epsilon": 2, "delta": None}, "digits") is None
    assert promise("ldp", {"epsilon": 2}, "digits") is None
