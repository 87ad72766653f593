"""Known rows of RAP's people: too few, noisy, averaged in groups, or with random signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from attacks.few_rows import mean_rotation, shrunk_moment
from attacks.known_samples import KnownSampleReconstruction, merged
from attacks.leverage import LeverageMatching
from attacks.signs import find_signs, upright
from defenses.projection import RandomSigns
from vflaudit.core.adversary import micro_aggregation
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.games import Guess, Score
from vflaudit.core.run import Run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """RAP on breast cancer and on diabetes, several seeds; training does not matter to these attacks."""
    found = []
    for seed in range(3):
        for name, parties in (("breast-cancer", 4), ("diabetes", 2)):
            data = va.load_dataset(name, parties=parties, seed=seed)
            found.append(va.load_protocol("rap", max_epochs=1, hidden=4).run(data, seed=seed))
    return found


def knowing(count: int, *more: Any, **how: Any) -> va.Adversary:
    """A server that knows some rows and their ids."""
    return va.Adversary({"server"}, [va.KnownSamples(count, with_ids=how.pop("ids", True), **how), *more])


def solved(run: Run, adversary: va.Adversary, seed: int = 0, **options: Any) -> tuple[Score, Guess]:
    """The score and the guess of known-sample reconstruction."""
    guess = KnownSampleReconstruction(party="client1", **options).run(run.view(adversary), seed)
    return va.Reconstruction(party="client1").score(run, guess), guess


# --- fewer rows than columns --------------------------------------------------------------------------------


def test_second_moments_are_worth_several_known_rows(runs: list[Run]) -> None:
    for share in (0.25, 0.6):
        kinds: dict[str, list[float]] = {"nothing": [], "others": [], "moments": []}
        for run in runs:
            count = max(1, round(share * run.data.block("client1").width))
            for kind, more in {
                "nothing": [],
                "others": [va.DistributionSample(100)],
                "moments": [va.Moments()],
            }.items():
                kinds[kind].append(solved(run, knowing(count, *more))[0].score)
        means = {kind: np.mean(scores) for kind, scores in kinds.items()}
        assert means["moments"] > means["nothing"] + 0.1 and means["others"] > means["nothing"] + 0.1, means


def test_one_row_less_than_columns_leaves_one_sign_and_moments_tell_it(runs: list[Run]) -> None:
    scores = [solved(run, knowing(run.data.block("client1").width - 1, va.Moments()))[0].score for run in runs]
    assert np.median(scores) > 0.99 and np.mean(scores) > 0.9


def test_as_many_rows_as_columns_are_exact_and_not_verified(runs: list[Run]) -> None:
    for run in runs:
        score, guess = solved(run, knowing(run.data.block("client1").width))
        assert score.score > 0.99 and guess.verified is False


def test_a_known_mean_is_one_more_equation() -> None:
    for seed in range(4):
        data = va.load_dataset("wine", parties=3, seed=seed)
        protocol = va.load_protocol("rap", max_epochs=1, hidden=4, standardise=False, precision="float64")
        run = protocol.run(data, seed=seed)
        count = run.data.block("client1").width - 1
        assert solved(run, knowing(count, va.FeatureMeans()))[0].score > 0.99
        few = [solved(run, knowing(2, *more))[0].score for more in ([], [va.FeatureMeans()], [va.Moments()])]
        assert few[0] < few[1] and few[0] < few[2]


@pytest.mark.parametrize("more", [[], [va.Moments()], [va.DistributionSample(100)]], ids=["rows", "moments", "others"])
def test_few_rows_find_nothing_where_nothing_is(cancer: VerticalDataset, more: list[Any]) -> None:
    for seed in range(3):
        run = va.load_protocol("ideal", like="rap", max_epochs=1, hidden=4).run(cancer, seed=seed)
        for count in (3, 7, 12):
            score, guess = solved(run, knowing(count, *more), seed)
            assert score.interval[0] <= 0 and guess.verified is False


def test_the_mean_rotation_agrees_with_the_formula_in_one_dimension() -> None:
    """P = 1 or -1: the mean is the hyperbolic tangent; the quadratic part is the same for both."""
    for pull in (-3.0, -0.5, 0.0, 1.0):
        found = mean_rotation(np.ones((1, 1)), np.ones((1, 1)), np.full((1, 1), pull), np.random.default_rng(0))
        np.testing.assert_allclose(found, np.tanh(-pull), atol=0.06)


def test_the_mean_rotation_agrees_with_slow_sampling() -> None:
    rng = np.random.default_rng(1)
    left, right, pull = np.diag([3.0, 1.0, 0.2]), np.diag([2.0, 1.0, 0.1]), rng.standard_normal((3, 3))
    every = np.linalg.qr(rng.standard_normal((200_000, 3, 3)))[0]
    every *= rng.choice([-1.0, 1.0], (200_000, 1, 3))  # uniform over all orthogonal matrices
    energy = 0.5 * np.einsum("ab,nbc,cd,nad->n", left, every, right, every) + (pull * every).sum(axis=(1, 2))
    weight = np.exp(-energy + energy.min())
    slow = np.einsum("n,nab->ab", weight / weight.sum(), every)
    np.testing.assert_allclose(mean_rotation(left, right, pull, np.random.default_rng(0)), slow, atol=0.06)


@given(seed=st.integers(0, 1000), count=st.integers(1, 9))
def test_a_shrunk_moment_has_the_given_mean_and_deviation(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rows, mean, deviation = rng.standard_normal((count, 4)), rng.standard_normal(4), rng.uniform(0.5, 2, 4)
    moment = shrunk_moment(rows, mean, deviation)
    np.testing.assert_allclose(np.diag(moment), deviation**2 + mean**2)
    assert np.linalg.eigvalsh(moment - np.outer(mean, mean)).min() > 0


# --- noise and groups ---------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), count=st.integers(2, 40), k=st.integers(2, 8))
def test_groups_have_k_members_or_more(seed: int, count: int, k: int) -> None:
    values = np.random.default_rng(seed).standard_normal((count, 3))
    sizes = np.bincount(micro_aggregation(values, min(k, count)))
    assert sizes.sum() == count and sizes.min() >= min(k, count) and sizes.max() <= 2 * k


def test_groups_of_similar_people_stay_together() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 5)
    groups = micro_aggregation(10 * rng.standard_normal((4, 6))[truth] + 0.1 * rng.standard_normal((20, 6)), 5)
    assert len({*zip(truth, groups, strict=True)}) == 4


def test_averaged_people_are_equations_if_their_ids_are_known(runs: list[Run]) -> None:
    """30 people in groups of 3 are 10 equations: enough for 8 columns. In groups of 10 they are 3."""
    run = runs[0]
    three, guess = solved(run, knowing(30, k=3))
    ten, _ = solved(run, knowing(30, k=10))
    assert three.score > 0.99 and guess.verified and 0 < ten.score < 0.9


def test_merged_pairs_are_means() -> None:
    x, y = np.array([[1.0], [5.0], [3.0]]), np.array([[7.0, 1.0], [2.0, 2.0], [7.0, 1.0]])
    left, right = merged(x, y)
    np.testing.assert_allclose(left, [[2.0], [5.0]])
    np.testing.assert_allclose(right, [[7.0, 1.0], [2.0, 2.0]])


def test_noisy_rows_help_but_do_not_verify(runs: list[Run]) -> None:
    for run in runs[:4]:
        score, guess = solved(run, knowing(40, noise=0.01))
        assert score.score > 0.95 and guess.verified is False
        assert score.adversary.endswith("knowing the rows of 40 people with noise of 0.01 deviations and their ids")


@pytest.mark.parametrize("how", [{"noise": 0.3}, {"k": 3}, {"k": 5}, {"k": 5, "noise": 0.01}])
def test_people_who_are_not_there_as_they_are_known_never_verify(runs: list[Run], how: dict[str, Any]) -> None:
    for run in runs[::2]:
        for more in (va.Moments(), va.DistributionSample(100)):
            view = run.view(knowing(30, more, ids=False, **how))
            guess = LeverageMatching(party="client1", beam=500, work=0.3).run(view)
            assert guess.verified is False
            assert va.Reconstruction(party="client1").score(run, guess).interval[0] <= 0


def test_one_percent_of_noise_is_survived_with_ids_by_leverage_too(runs: list[Run]) -> None:
    guess = LeverageMatching(party="client1").run(runs[0].view(knowing(40, noise=0.01)))
    assert va.Reconstruction(party="client1").score(runs[0], guess).score > 0.9


# --- random signs -------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), width=st.integers(1, 6), more=st.integers(2, 10))
def test_signs_of_known_rows_follow_from_algebra(seed: int, width: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    x, signs = rng.standard_normal((width + more, width)), rng.choice([-1.0, 1.0], width + more)
    sent = signs[:, None] * (x @ rng.standard_normal((width, width)))
    found = find_signs(sent, x)
    if width == 1:  # one column: a sign is the sign of a ratio, and all equations are met by any number
        return
    assert found is not None and abs(found @ signs) == width + more


def test_too_few_rows_do_not_tell_signs() -> None:
    rng = np.random.default_rng(0)
    assert find_signs(rng.standard_normal((5, 4)), rng.standard_normal((5, 4))) is None


def test_rows_are_turned_upright_by_what_people_look_like() -> None:
    rng = np.random.default_rng(0)
    people = rng.exponential(size=(400, 3)) - 1
    x, signs = rng.exponential(size=(500, 3)) - 1, rng.choice([-1.0, 1.0], (500, 1))
    guess = upright(x * signs, people, 0)
    assert 1 - ((guess - x) ** 2).sum() / (x**2).sum() > 0.3
    symmetric = rng.standard_normal((400, 3))
    assert np.abs(upright(x * signs, symmetric, 0)).max() < 0.5 * np.abs(x).max()
    assert not upright(x, people[:2], 0).any()


@pytest.fixture(scope="module")
def turned_run(cancer: VerticalDataset) -> Run:
    """RAP with random signs, in raw units."""
    protocol = va.load_protocol("rap", max_epochs=1, hidden=4, standardise=False, precision="float64")
    return protocol.run(cancer, seed=0, defenses=[RandomSigns()])


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_random_signs_do_not_hide_raw_columns(turned_run: Run, ids: bool) -> None:
    """Nobody has a negative radius: the sign of each row is plain."""
    adversary = knowing(20, va.Moments(), ids=ids)
    kinds: list[Any] = [LeverageMatching, *([KnownSampleReconstruction] if ids else [])]
    for kind in kinds:
        guess = kind(party="client1").run(turned_run.view(adversary))
        assert va.Reconstruction(party="client1").score(turned_run, guess).score > 0.95
        assert guess.verified is False  # the signs of other rows are a guess


def test_random_signs_do_not_hide_who_is_who(turned_run: Run) -> None:
    game = va.Reidentification(party="client1", candidates=20)
    view = turned_run.view(va.Adversary({"server"}, [va.Moments()]), challenge=game.challenge(turned_run))
    assert game.score(turned_run, LeverageMatching(party="client1").run(view)).score == 1.0


def test_random_signs_of_nobody(cancer: VerticalDataset) -> None:
    run = va.load_protocol("ideal", like="rap", max_epochs=1, hidden=4).run(cancer, seed=0, defenses=[RandomSigns()])
    for kind in (KnownSampleReconstruction, LeverageMatching):
        guess = kind(party="client1").run(run.view(knowing(30, va.DistributionSample(100))))
        assert va.Reconstruction(party="client1").score(run, guess).interval[0] <= 0 and guess.verified is False
