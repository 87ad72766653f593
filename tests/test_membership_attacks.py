"""Every membership attack: wins where a model learns by heart, finds nothing where nothing is, and does its algebra."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from membership_worlds import Pretended, noise_table, untrained_run
from scipy.special import logsumexp, softmax
from scipy.stats import norm

import vflaudit as va
from attacks.base import Attack
from attacks.lira import Lira, shrunken_means
from attacks.loss_threshold import LossThreshold
from attacks.membership_base import confidence, losses, margins
from attacks.membership_shadows import halves, pool, train_shadows
from attacks.quantile import Quantile
from attacks.rmia import Rmia
from attacks.shadow import Shadow, describe
from vflaudit.core.games import Membership, Score
from vflaudit.core.run import Model, Run
from vflaudit.errors import InputError
from vflaudit.report.summary import CONTROL_WIN

OUTSIDER = va.Adversary((), [va.ReleasedModel(), va.DistributionSample(60)])
ATTACKS: dict[str, Attack] = {
    "loss-threshold": LossThreshold(),
    "per-class": LossThreshold(per_class=True),
    "shadow": Shadow(shadows=8),
    "lira": Lira(shadows=8),
    "lira-pooled": Lira(shadows=8, variance="pooled"),
    "lira-per-example": Lira(shadows=8, variance="per-example", queries=2),
    "rmia": Rmia(shadows=8),
    "lira-offline": Lira(shadows=8, offline=True),
    "rmia-offline": Rmia(shadows=8, offline=True),
    "quantile": Quantile(),
}
MEMORISE: dict[str, Any] = {"max_epochs": 60, "learning_rate": 0.02, "hidden": 64}


def play(run: Run, attack: Attack, adversary: va.Adversary = OUTSIDER) -> Score:
    game = Membership()
    return game.score(run, attack.run(run.view(adversary, challenge=game.challenge(run)), seed=run.seed))


def constant(run: Run) -> Run:
    """The same run with a model that says the same of everybody."""
    classes = len(run.data.classes)
    return replace(run, model=Model(lambda features: np.full((len(features["client1"]), classes), 1 / classes)))


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, list[Score]]]:
    """Every attack on three kinds of targets: learnt by heart, trained on strangers, constant."""
    by_heart = va.load_protocol("centralized", **MEMORISE)
    ideal = va.load_protocol("ideal", like="centralized", **MEMORISE)
    runs = [by_heart.run(noise_table(seed, aux=0.5), seed=seed) for seed in range(2)]
    others = [ideal.run(noise_table(seed, aux=0.5), seed=seed) for seed in range(4)]
    targets = {"by heart": runs, "strangers": others, "constant": [constant(run) for run in others]}
    found: dict[str, dict[str, list[Score]]] = {kind: {name: [] for name in ATTACKS} for kind in targets}
    for kind, group in targets.items():
        for run in group:  # all attacks on a run in turn, as they share shadows
            for name, attack in ATTACKS.items():
                found[kind][name].append(play(run, attack))
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_learnt_by_heart_is_found(name: str, scores: dict[str, dict[str, list[Score]]]) -> None:
    for score in scores["by heart"][name]:
        assert score.score > 0.7 and score.interval[0] > CONTROL_WIN
        assert score.notes.get("shadows", 0) == getattr(ATTACKS[name], "shadows", 0)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("kind", ["strangers", "constant"])
def test_nothing_is_found_where_nothing_is(name: str, kind: str, scores: dict[str, dict[str, list[Score]]]) -> None:
    found = scores[kind][name]
    errors = [(score.interval[1] - score.interval[0]) / (2 * 1.96) for score in found]
    mean, error = np.mean([score.advantage for score in found]), np.sqrt(np.mean(np.square(errors)) / len(found))
    assert error < 0.05 and abs(mean) < 3.3 * error  # one in a thousand by chance


def test_regression_is_no_exception() -> None:
    run = va.load_protocol("centralized", **MEMORISE).run(va.load_dataset("diabetes", parties=3, aux=0.5), seed=0)
    for name, attack in ATTACKS.items():
        score = play(run, attack)
        assert score.interval[0] > 0.05, name


def test_protocols_retrain_what_they_are() -> None:
    """SplitNN seen by its server, with the model: shadows are trained as the view's spec says."""
    run = va.load_protocol("splitnn", **MEMORISE).run(noise_table(0, aux=0.5), seed=0)
    for corrupts in ({"server"}, {"label_owner"}):
        adversary = va.Adversary(corrupts, [va.ReleasedModel("white-box")])
        score = play(run, Lira(shadows=8), adversary)
        assert score.score > 0.8 and score.baseline == 0.5


def test_a_party_with_columns_needs_no_attack() -> None:
    """A client finds its own rows: the baseline is perfect, and no attack adds to it."""
    run = untrained_run(0)
    score = play(run, LossThreshold(), va.Adversary({"client1"}, [va.ReleasedModel()]))
    assert score.baseline == 1 and score.advantage < 0


# --- what they need -----------------------------------------------------------------------------------------


def test_needs_are_told() -> None:
    run = untrained_run(0)
    alone = va.Adversary((), [va.ReleasedModel()])
    for name, attack in ATTACKS.items():
        with pytest.raises(InputError, match="the trained model"):
            play(run, attack, va.Adversary({"server"}))
        if "offline" in name or name == "quantile":
            with pytest.raises(InputError, match="distribution"):
                play(run, attack, alone)
    with pytest.raises(InputError, match="distribution=10"):
        play(run, Quantile(), va.Adversary((), [va.ReleasedModel(), va.DistributionSample(10)]))
    with pytest.raises(InputError, match="at least 40 rows"):
        play(run, Lira(offline=True), va.Adversary((), [va.ReleasedModel(), va.DistributionSample(30)]))
    with pytest.raises(ValueError):
        Lira(shadows=5)


def test_attacks_on_one_run_share_their_shadows() -> None:
    run, before = untrained_run(3), Pretended.calls
    first = [play(run, attack).score for attack in (Lira(shadows=4), Rmia(shadows=4), Shadow(shadows=4))]
    assert Pretended.calls == before + 1
    play(run, Lira(shadows=6))
    assert Pretended.calls == before + 2
    assert [play(run, attack).score for attack in (Lira(shadows=4), Rmia(shadows=4), Shadow(shadows=4))] == first


def test_the_pool_has_no_row_twice() -> None:
    run = untrained_run(1)
    game, everybody = Membership(), va.Adversary((), [va.ReleasedModel(), va.DistributionSample(78)])
    view = run.view(everybody, challenge=game.challenge(run))
    assert view.challenge is not None and view.challenge.labels is not None
    rows, own = pool(view), len(view.challenge)
    table = np.hstack(list(rows.features.values()))
    assert rows.labels is not None and len(np.unique(table, axis=0)) == len(table) == len(rows.labels)
    assert run.data.aux is not None and len(table) == own  # the whole auxiliary pool is among the candidates
    np.testing.assert_array_equal(rows.features["client1"][:own], view.challenge.features["client1"])
    assert len(pool(view, offline=True).features["client1"]) == 78
    shadows = train_shadows(view, 4, 0)
    assert shadows.inside(own, offline=False).sum(axis=0).tolist() == [2] * own
    assert not shadows.inside(own, offline=True).any()


@given(st.integers(1, 6), st.integers(2, 30), st.integers(0, 99))
def test_every_row_is_in_half_of_the_shadows(pairs: int, rows: int, seed: int) -> None:
    members = halves(2 * pairs, rows, np.random.default_rng(seed))
    assert members.shape == (2 * pairs, rows) and (members.sum(axis=0) == pairs).all()
    assert set(members.sum(axis=1)) <= {rows // 2, rows - rows // 2}


# --- algebra ------------------------------------------------------------------------------------------------

LOGITS = hnp.arrays(np.float64, (5, 4), elements=st.floats(-80, 80, allow_nan=False))


@given(LOGITS, hnp.arrays(np.int64, 5, elements=st.integers(0, 3)))
def test_margins_are_differences_of_logits(logits: np.ndarray, labels: np.ndarray) -> None:
    found = margins(softmax(logits, axis=1), labels, "classification")
    for row, (values, label) in enumerate(zip(logits, labels, strict=True)):
        assert found[row] == pytest.approx(values[label] - logsumexp(np.delete(values, label)), abs=1e-9)
    stacked = margins(np.stack([softmax(logits, axis=1)] * 2), labels, "classification")
    np.testing.assert_array_equal(stacked, [found, found])


def test_rounded_probabilities_have_finite_margins() -> None:
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = margins(sure, np.array([0, 0]), "classification")
    assert np.isfinite(found).all() and found[0] > 30 and found[1] == -found[0]
    assert np.isfinite(losses(sure, np.array([0, 0]), "classification")).all()
    assert np.isfinite(confidence(np.array([1.0, 2.0]), np.array([1.0, 1.0]), "regression")).all()
    assert describe(sure, np.array([0, 1]), "classification").shape == (2, 6)


def margins_of_shadows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inside = halves(12, 7, rng)
    return rng.normal(size=7), rng.normal(size=(12, 7)) + inside, inside


@given(st.integers(0, 999))
def test_lira_is_a_likelihood_ratio(seed: int) -> None:
    seen, theirs, inside = margins_of_shadows(seed)
    own = Lira(variance="per-example").score(seen, theirs, inside, "classification")
    pooled = Lira(variance="pooled").score(seen, theirs, inside, "classification")
    wide = {}
    for side in (True, False):
        means = [theirs[inside[:, k] == side, k].mean() for k in range(7)]
        wide[side] = np.sqrt(((theirs - means)[inside == side] ** 2).sum() / (7 * 5))
    for k in range(7):
        parts = {side: theirs[inside[:, k] == side, k] for side in (True, False)}
        logs = {side: norm(part.mean(), part.std(ddof=1)).logpdf(seen[k]) for side, part in parts.items()}
        assert own[k] == pytest.approx(logs[True] - logs[False])
        logs = {side: norm(part.mean(), wide[side]).logpdf(seen[k]) for side, part in parts.items()}
        assert pooled[k] == pytest.approx(logs[True] - logs[False])


@given(st.integers(0, 999))
def test_offline_lira_is_a_tail(seed: int) -> None:
    seen, theirs, _ = margins_of_shadows(seed)
    nobody = np.zeros_like(theirs, dtype=bool)
    attack = Lira(variance="per-example", offline=True)
    normal = norm(theirs.mean(axis=0), theirs.std(axis=0, ddof=1))
    np.testing.assert_allclose(norm.cdf(attack.score(seen, theirs, nobody, "classification")), normal.cdf(seen))
    between = normal.cdf(np.abs(seen)) - normal.cdf(-np.abs(seen))
    np.testing.assert_allclose(np.exp(-attack.score(seen, theirs, nobody, "regression")), between)


def test_offline_lira_keeps_its_order_in_the_tails() -> None:
    attack, nobody = Lira(variance="per-example", offline=True), np.zeros((4, 3), dtype=bool)
    theirs = np.array([[99.0], [101.0], [100.0], [100.0]]) * np.ones(3)
    for sign in (1, -1):
        score = attack.score(np.array([1.0, 2.0, 3.0]), sign * theirs, nobody, "regression")
        assert np.isfinite(score).all() and score[0] > score[1] > score[2]


def test_differences_are_shrunken_as_far_as_they_are_noise() -> None:
    rng = np.random.default_rng(0)
    middle, error = rng.normal(size=2000), np.full(2000, 0.25)
    same = 1 + 0.5 * rng.standard_normal(2000)  # one difference, and sampling error
    high, low = shrunken_means(middle + same / 2, middle - same / 2, error, np.ones(2000))
    assert np.std(high - low) < 0.15 and np.mean(high - low) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(high + low, 2 * middle)
    apart = 1 + 5 * rng.standard_normal(2000)  # differences of their own
    high, low = shrunken_means(middle + apart / 2, middle - apart / 2, error, np.ones(2000))
    assert np.abs(high - low - apart).mean() < 0.1


@given(st.integers(0, 999), st.floats(0.1, 10))
def test_the_order_of_rmia_depends_on_no_population(seed: int, gamma: float) -> None:
    """The paper's score, the share of others whose ratio is gamma times smaller, never orders two rows otherwise."""
    seen, theirs, inside = margins_of_shadows(seed)
    chance = 1 / (1 + np.exp(-theirs))
    mean = np.array([(chance[inside[:, k], k].mean() + chance[~inside[:, k], k].mean()) / 2 for k in range(7)])
    ratio = 1 / (1 + np.exp(-seen)) / mean
    log_chances = (np.log(1 / (1 + np.exp(-seen))), np.log(chance))
    np.testing.assert_allclose(Rmia().log_ratio(*log_chances, inside), np.log(ratio))
    share = (ratio[:, None] >= gamma * ratio[None, :]).mean(axis=1)
    assert (np.diff(share[np.argsort(ratio)]) >= 0).all()
    offline = Rmia(offline=True, a=0.3).log_ratio(*log_chances, np.zeros_like(inside))
    expected = 1 / (1 + np.exp(-seen)) / ((1.3 * chance.mean(axis=0) + 0.7) / 2)
    np.testing.assert_allclose(offline, np.log(expected))
