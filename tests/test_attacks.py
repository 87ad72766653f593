"""Attacks win where everything leaks, find nothing where nothing does, and play by the rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

import attacks
import vflaudit as va
from attacks.base import Attack, FeatureAttack
from attacks.inversion import RepresentationInversion
from attacks.known_samples import KnownSampleReconstruction, solve
from attacks.random_guess import RandomGuess
from vflaudit import registry
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.games import Guess, Score
from vflaudit.core.run import Run

BOTH = (RepresentationInversion, KnownSampleReconstruction)


def knowing(count: int, *corrupts: str) -> Adversary:
    return Adversary(corrupts or {"server"}, [va.KnownSamples(count, with_ids=True)])


def attacked(run: Run, attack: Attack, adversary: Adversary, party: str = "client1", seed: int = 0) -> Score:
    return va.Reconstruction(party=party).score(run, attack.run(run.view(adversary), seed=seed))


# --- positive controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("party", ["client1", "client4"])
def test_everything_is_found_where_everything_is_sent(
    centralized_run: Run, kind: type[FeatureAttack], party: str
) -> None:
    score = attacked(centralized_run, kind(party=party), knowing(30), party)
    assert score.score > 0.99 and score.interval[0] > 0.99 and score.metrics["cells_recovered"] > 0.99


def test_linear_messages_are_inverted_and_verified(cancer: VerticalDataset) -> None:
    run = va.load_protocol("splitnn", activation_at="server").run(cancer)
    assert run.data.blocks["client1"].width == 8
    guess = KnownSampleReconstruction(party="client1").run(run.view(knowing(20)))
    score = va.Reconstruction(party="client1").score(run, guess)
    assert score.score > 0.999 and score.verified is True
    assert guess.notes["left_out_relative_error"]["client1"] < 1e-3
    assert set(guess.features) == {"client1"}


def test_too_few_rows_help_in_part_and_are_not_verified(cancer: VerticalDataset) -> None:
    """RAP case 3a: with fewer known rows than columns the solution of least norm is better than nothing."""
    run = va.load_protocol("splitnn", activation_at="server", max_epochs=5, batch_size=1000).run(cancer)
    scores = [attacked(run, KnownSampleReconstruction(party="client1"), knowing(n)) for n in (5, 7, 20)]
    assert [score.verified for score in scores] == [False, False, True]
    assert 0 < scores[0].score < 0.999 and scores[2].score > 0.999


def test_all_victims_are_attacked_by_default(centralized_run: Run) -> None:
    for kind in BOTH:
        guess = kind().run(centralized_run.view(knowing(20, "server", "client3")))
        assert set(guess.features) == {"client1", "client2", "client4"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "activation_at"), [(RepresentationInversion, "client"), (KnownSampleReconstruction, "server")]
)
def test_splitnn_leaks_columns_to_its_server(kind: type[FeatureAttack], activation_at: str, seed: int) -> None:
    data = va.load_dataset("breast-cancer", parties=4, seed=seed)
    run = va.load_protocol("splitnn", max_epochs=20, activation_at=activation_at).run(data, seed=seed)
    score = attacked(run, kind(party="client1"), knowing(50))
    assert score.interval[0] > 0.5 and score.rows == len(run.data.aligned("train")) - 50


def test_more_knowledge_helps(splitnn_run: Run) -> None:
    scores = [attacked(splitnn_run, RepresentationInversion(party="client1"), knowing(n)).score for n in (5, 25, 100)]
    assert scores[0] < scores[1] < scores[2]


def test_collusion_raises_the_baseline(splitnn_run: Run) -> None:
    attack = RepresentationInversion(party="client1")
    alone = attacked(splitnn_run, attack, knowing(50))
    together = attacked(splitnn_run, attack, knowing(50, "server", "client2"))
    assert alone.baseline < 0.05 and together.baseline > 0.4
    assert together.score > together.baseline and together.advantage < alone.advantage
    assert together.score > alone.score - 0.05  # columns of its own do not make the attack worse


def test_a_distribution_sample_is_used(short_run: Run) -> None:
    few = [va.KnownSamples(25, with_ids=True)]
    more = [*few, va.DistributionSample(150)]
    scores = [
        attacked(short_run, RepresentationInversion(party="client1"), Adversary({"server", "client2"}, knows))
        for knows in (few, more)
    ]
    assert scores[1].baseline > scores[0].baseline + 0.02
    assert scores[1].score > scores[0].score - 0.02 and scores[1].interval[0] > 0


# --- negative controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("corrupts", [("server",), ("server", "client2")], ids=" and ".join)
@pytest.mark.parametrize("kind", BOTH)
def test_nothing_is_found_where_nothing_is_said(kind: type[FeatureAttack], corrupts: tuple[str, ...]) -> None:
    """The interval lies above zero no more often than the 2.5% that it promises, and nothing is ever verified."""
    worlds, wins = 24, 0
    attack = (
        kind(party="client1", learners=("ridge", "kernel"))
        if kind is RepresentationInversion
        else kind(party="client1")
    )
    for seed in range(worlds):
        data = va.load_dataset("synthetic:rows=160,features=8", parties=2, seed=seed)
        run = va.load_protocol("ideal", max_epochs=1, hidden=12).run(data, seed=seed)
        score = attacked(run, attack, knowing(40, *corrupts), seed=seed)
        wins += score.interval[0] > 0
        assert not score.verified
    assert binomtest(wins, worlds, 0.025, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_is_found_on_real_data(ideal_run: Run, kind: type[FeatureAttack]) -> None:
    for party in ("client1", "client2", "client3", "client4"):
        score = attacked(ideal_run, kind(party=party), knowing(50), party)
        assert score.interval[0] <= 0 and score.score < 0.1 and not score.verified
        assert score.score > -0.5  # and it knows that it has found nothing


def test_an_attack_that_finds_nothing_stays_with_the_prior() -> None:
    """Messages are used only where left-out pairs show that they help: in few of ten worlds without a leak."""
    used = 0
    for seed in range(10):
        data = va.load_dataset("synthetic:rows=120,features=6", parties=2, seed=seed)
        run = va.load_protocol("ideal", max_epochs=1, hidden=12).run(data, seed=seed)
        attack = RepresentationInversion(party="client1", learners=("ridge", "kernel"))
        used += not attack.run(run.view(knowing(30)), seed=seed).notes["regressor"]["client1"].startswith("no message")
    assert used <= 3


# --- the rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("knows", [[], [va.KnownSamples(20)], [va.DistributionSample(50)]])
def test_unmet_needs_are_named(short_run: Run, kind: type[Attack], knows: list[va.KnownSamples]) -> None:
    adversary = Adversary({"server"}, knows)
    with pytest.raises(va.InputError) as caught:
        kind().run(short_run.view(adversary))
    text = str(caught.value)
    assert kind.name in text and str(adversary) in text and "--knows known-samples=50,ids" in text and "\n" not in text


@pytest.mark.parametrize("kind", BOTH)
def test_without_messages_about_the_victim(short_run: Run, kind: type[FeatureAttack]) -> None:
    with pytest.raises(va.InputError, match="no message from 'client1'"):
        kind(party="client1").run(short_run.view(knowing(20, "client2")))
    with pytest.raises(va.InputError, match="no honest party with columns named 'client2'"):
        kind(party="client2").run(short_run.view(knowing(20, "client2")))


def same_guess(one: Guess, other: Guess) -> None:
    assert set(one.features) == set(other.features) and one.verified == other.verified
    for party, guess in one.features.items():
        np.testing.assert_array_equal(guess.rows, other.features[party].rows)
        np.testing.assert_array_equal(guess.values, other.features[party].values)


@pytest.mark.parametrize("kind", [*BOTH, RandomGuess])
def test_attacks_are_deterministic_and_leave_the_view_alone(short_run: Run, kind: type[Attack]) -> None:
    view = short_run.view(knowing(25, "server", "client2"), challenge=va.Membership().challenge(short_run))
    before, state = view.digest(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again = kind().run(view, seed=3), kind().run(view, seed=3)
    assert view.digest() == before
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002 (no global randomness)
    same_guess(first, again)
    same_guess(first, kind().run(short_run.view(view.adversary, challenge=view.challenge), seed=3))
    assert first.adversary is view.adversary and first.attack == kind.name


@pytest.mark.parametrize("name", ["centralized", "splitnn"])
@pytest.mark.parametrize("kind", BOTH)
def test_the_order_of_rows_does_not_matter(name: str, kind: type[FeatureAttack]) -> None:
    """The same people in other places of the table: the same guess about each of them."""
    data = va.load_dataset("breast-cancer", parties=2)
    order = np.random.default_rng(0).permutation(len(data))
    place = np.argsort(order)
    blocks = {p: replace(b, values=b.values[order], present=b.present[order]) for p, b in data.blocks.items()}
    split = {part: place[rows] for part, rows in data.split.items()}
    moved = replace(data, blocks=blocks, labels=data.labels[order], ids=data.ids[order], split=split)
    guesses = []
    for source in (data, moved):
        run = va.load_protocol(name, max_epochs=2, hidden=16).run(source)
        guesses.append(kind(party="client1").run(run.view(knowing(30))).features["client1"])
    here = {int(row): value for row, value in zip(guesses[0].rows, guesses[0].values, strict=True)}
    there = {int(order[row]): value for row, value in zip(guesses[1].rows, guesses[1].values, strict=True)}
    assert set(here) == set(there)
    for row, value in here.items():
        np.testing.assert_allclose(there[row], value, rtol=1e-6, atol=1e-6)


def test_attacks_guess_only_rows_they_have_messages_about(splitnn_run: Run) -> None:
    view = splitnn_run.view(knowing(30))
    for kind in BOTH:
        guess = kind(party="client2").run(view).features["client2"]
        np.testing.assert_array_equal(guess.rows, view.sent_by("client2").rows)


# --- solving linear maps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "width", "targets"), [(30, 8, 3), (12, 8, 8), (40, 20, 5)])
def test_solve_recovers_a_linear_map(rows: int, width: int, targets: int) -> None:
    rng = np.random.default_rng(rows)
    x, weights = rng.normal(size=(rows, width)), rng.normal(size=(width, targets))
    solution, error = solve(x, x @ weights)
    assert solution is not None and error < 1e-9
    np.testing.assert_allclose(solution, weights, atol=1e-9)


def test_solve_says_how_badly_left_out_rows_are_predicted() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(25, 4))
    y = x @ rng.normal(size=(4, 2)) + 0.3 * rng.normal(size=(25, 2))
    _, error = solve(x, y)
    residual = np.empty_like(y)
    for row in range(len(x)):
        rest = np.arange(len(x)) != row
        residual[row] = y[row] - x[row] @ np.linalg.lstsq(x[rest], y[rest], rcond=None)[0]
    by_hand = np.linalg.norm(residual) / np.linalg.norm(y - y.mean(axis=0))
    assert error == pytest.approx(by_hand, rel=0.3)


@pytest.mark.parametrize("seed", range(10))
def test_solve_finds_no_map_in_noise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for rows, width in ((30, 5), (20, 40), (8, 8)):
        _, error = solve(rng.normal(size=(rows, width)), rng.normal(size=(rows, 6)))
        assert error > 0.5


# --- names --------------------------------------------------------------------------------------------------


def test_attacks_by_name() -> None:
    assert attacks.RepresentationInversion is RepresentationInversion
    assert registry.load("attacks", "known-sample-reconstruction") is KnownSampleReconstruction
    for name in registry.registered("attacks"):
        kind = registry.load("attacks", name)
        assert kind.name == name == registry.kebab(kind.__name__) and kind.games
    with pytest.raises(AttributeError, match="RepresentationInversions"):
        _ = attacks.RepresentationInversions
