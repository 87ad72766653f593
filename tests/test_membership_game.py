"""Membership scores: honest where nothing is to be found, and told in full where something is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membership_worlds import untrained_run
from scipy.stats import binomtest, norm

import vflaudit as va
from attacks.base import Attack
from attacks.lira import Lira
from attacks.loss_threshold import LossThreshold
from attacks.rmia import Rmia
from vflaudit.core.games import Guess, Membership
from vflaudit.core.games.membership import EXPOSURE, POINTS, exposed, roc_points
from vflaudit.core.statistics import roc, tpr_at_fpr
from vflaudit.lab import suite

OUTSIDER = va.Adversary((), [va.ReleasedModel()])
NULLS = 200


def wrong(misses: int, worlds: int = NULLS) -> float:
    """How surprising so many misses are if one in twenty is promised."""
    return binomtest(misses, worlds, 0.05, alternative="greater").pvalue


def test_intervals_keep_their_promise_where_nothing_is_to_be_found() -> None:
    """200 worlds whose models have seen nobody, three attacks, the whole game: see who cries wolf.

    The intervals of AUC and of TPR at 1% FPR exclude chance no more often than one time in twenty.
    """
    attacks: tuple[Attack, ...] = (LossThreshold(), Lira(shadows=4), Rmia(shadows=4))
    game, misses = Membership(), {attack.name: np.zeros(2, dtype=int) for attack in attacks}
    for seed in range(NULLS):
        run = untrained_run(seed, rows=2500, aux=0.42)
        view = run.view(OUTSIDER, challenge=game.challenge(run))
        for attack in attacks:
            score = game.score(run, attack.run(view, seed=seed))
            low, high = score.metrics["tpr_at_1%_fpr_interval"]
            misses[attack.name] += [not score.interval[0] <= 0 <= score.interval[1], not low <= 0.01 <= high]
    for name, (auc, rate) in misses.items():
        assert wrong(int(auc)) > 0.01 and wrong(int(rate)) > 0.01, (name, auc, rate)


def test_that_check_can_fail() -> None:
    """Scores that know a little are called out: the test above is not blind."""
    game, misses = Membership(), 0
    for seed in range(20):
        run = untrained_run(seed, rows=2500, aux=0.42)
        secret = game.secret(run)
        scores = np.random.default_rng(seed).normal(size=len(secret)) + 0.4 * secret
        score = game.score(run, Guess("little", OUTSIDER, membership=scores))
        misses += not score.interval[0] <= 0 <= score.interval[1]
    assert wrong(misses, 20) < 1e-6


@pytest.mark.parametrize(("fpr", "others"), [(0.01, 1000), (0.05, 1000)])
def test_rates_at_the_target_are_covered(fpr: float, others: int) -> None:
    """The true rate at exactly this false positive rate, although the threshold of that rate is unknown."""
    member, missed = np.arange(500 + others) < 500, 0
    truth = norm.cdf(1.5 - norm.isf(fpr))
    for seed in range(NULLS):
        rng = np.random.default_rng(seed)
        found = tpr_at_fpr(member, rng.normal(size=member.size) + 1.5 * member, fpr, rng)
        assert found is not None and found.target_interval[0] <= found.tpr <= found.target_interval[1]
        missed += not found.target_interval[0] <= truth <= found.target_interval[1]
    assert wrong(missed) > 0.01


def test_what_cannot_be_resolved_is_told() -> None:
    game = Membership()
    for rows, resolved in ((2340, False), (2480, True)):  # 950 and 1,007 non-members
        run = untrained_run(0, rows=rows, aux=0.42)
        metrics = game.score(run, Guess("test", OUTSIDER, membership=game.secret(run).astype(float))).metrics
        assert (metrics["non_members"] >= 1000) == resolved
        assert (metrics["tpr_at_1%_fpr"] is not None) == resolved
        assert metrics["tpr_at_0.1%_fpr"] is None and "10,000 are needed" in metrics["tpr_at_0.1%_fpr_reason"]
        assert ("tpr_at_1%_fpr_reason" in metrics) != resolved


def test_other_rows_are_rather_not_candidates() -> None:
    """A sample of the population costs the game as few candidates as it can."""
    run, game = untrained_run(0, rows=300, aux=0.5), Membership()  # 150 in the pool, 105 trained on
    for known, scored in ((45, 105), (60, 90)):
        adversary = va.Adversary((), [va.ReleasedModel(), va.DistributionSample(known)])
        score = game.score(run, Guess("test", adversary, membership=game.secret(run).astype(float)))
        assert score.metrics["non_members"] == scored and score.metrics["members"] == 105


@given(st.lists(st.integers(0, 8), min_size=4, max_size=60), st.integers(0, 99))
def test_points_lie_on_the_curve(values: list[int], seed: int) -> None:
    scores = np.array(values, dtype=float)
    truth = np.random.default_rng(seed).permutation(np.arange(len(values)) % 2 == 0)
    points, (fpr, tpr) = roc_points(truth, scores), roc(truth, scores)
    assert len(points["fpr"]) == len(points["tpr"]) <= POINTS and points["fpr"][-1] == points["tpr"][-1] == 1
    for x, y in zip(points["fpr"], points["tpr"], strict=True):
        low, high = np.interp([x - 1e-5, min(x + 1e-5, 1)], fpr, tpr)
        assert low - 1e-5 <= y <= high + 1e-3


def test_the_most_exposed_are_members_that_stand_out() -> None:
    truth = np.arange(200) < 100
    scores = np.concatenate([np.linspace(0, 3, 100), np.linspace(-1, 1, 100)])
    found = exposed(truth, scores, np.arange(1000, 1200))
    assert [one["candidate"] for one in found] == list(range(1099, 1089, -1))
    assert all(one["fpr"] == pytest.approx(1 / 101) for one in found)
    assert exposed(truth, np.zeros(200), np.arange(200)) == []
    assert all(one["fpr"] <= EXPOSURE for one in exposed(truth, -scores, np.arange(200)))


def test_the_suite_does_without_optional_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VFLAUDIT_DATA", raising=False)
    suite._present.cache_clear()
    path = Path(suite.__file__).with_name("suites") / "membership.toml"
    asked = suite.load_suite(str(path)).experiments
    suite._present.cache_clear()
    assert {one.data.partition(":")[0] for one in asked} == {"breast-cancer", "digits", "synthetic"}
    attacks = {one.attack for one in asked}
    for kind in ("positive", "negative"):
        assert {one.attack for one in asked if one.control == kind} == attacks
    other = tmp_path / "other.toml"
    entry = '[[experiment]]\nprotocol = "rap"\nattack = "random-guess"\noptional = {}\ndata = "{}"\n'
    for optional, data, message in (("true", "fishing", "fishing"), ("3", "iris", "true or false")):
        other.write_text('summary = "x"\n' + entry.format(optional, data))
        with pytest.raises(va.InputError, match=message):
            suite.load_suite(str(other))


def test_a_report_tells_of_membership(tmp_path: Path) -> None:
    from vflaudit.lab.experiment import Experiment
    from vflaudit.lab.runner import run_experiments
    from vflaudit.report import write_report
    from vflaudit.report.audit import load_audit
    from vflaudit.report.membership import stated_bound

    common = {"data": "iris", "parties": 2, "corrupts": (), "knows": ("model=black-box",), "set": {"max_epochs": 2}}
    asked = [
        Experiment(protocol="centralized", attack="loss-threshold", seed=seed, **common)  # type: ignore[arg-type]
        for seed in range(2)
    ]
    outcome = run_experiments(asked, tmp_path, title="small")
    assert not outcome.failures
    page, text = (path.read_text() for path in write_report(tmp_path, ("html", "md")))
    for shown in (page, text):
        assert "Membership" in shown and "1,000 for 1%" in shown
    assert "non-members cannot resolve a rate of 1.0%: 1,000 are needed" in page
    assert "Members found at few false alarms: iris" in page and "TPR at 0.1% FPR" in text

    row = load_audit(tmp_path).rows[0]
    assert stated_bound(row) is None
    budget = stated_bound(replace(row, experiment={"set": {"epsilon": 2}}, parameters={"protocol": {"delta": 0.01}}))
    assert budget is not None and budget(1.0) == 1 and budget(0.0) == pytest.approx(0.01)
    assert budget(0.1) == pytest.approx(0.01 + 0.1 * np.exp(2))
    assert budget(0.5) == pytest.approx(1 - (0.5 - 0.01) * np.exp(-2))
