"""Known people are found in RAP's tables without ids and after a shuffle; strangers are not."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks.gram_search import Budget, Whitening, groups, left_out, nearest, second_moment
from attacks.leverage import LeverageMatching
from attacks.linking import ColluderLinking
from defenses.secure_shuffle import SecureShuffle
from vflaudit.core.adversary import Knowledge, Moments, Rows
from vflaudit.core.dataset import Array, Column, Table, VerticalDataset
from vflaudit.core.run import ProtocolSpec, Run
from vflaudit.core.transcript import Message, Transcript
from vflaudit.core.view import Challenge, View
from vflaudit.errors import InputError

SERVER = va.Adversary({"server"})


@pytest.fixture(scope="module")
def rap_run(cancer: VerticalDataset) -> Run:
    """RAP on breast cancer; training does not matter to these attacks."""
    return va.load_protocol("rap", max_epochs=1).run(cancer, seed=0)


@pytest.fixture(scope="module")
def shuffled_run(cancer: VerticalDataset) -> Run:
    """The same after a secure shuffle."""
    return va.load_protocol("rap", max_epochs=1).run(cancer, seed=0, defenses=[SecureShuffle()])


def made_view(table: Array, known: Array, **knowledge: Any) -> View:
    """The server's view of one client's table, with hand-made knowledge."""
    columns = {"client1": tuple(Column(f"c{k}") for k in range(known.shape[1]))}
    parties = ("server", "client1", "label_owner")
    spec = ProtocolSpec("rap", {}, parties, columns, "regression", (), "label_owner", len(table), False)
    transcript = Transcript(population=len(table))
    transcript.append(Message("client1", "server", 0, "features", {"values": table}, np.arange(len(table))))
    return View(SERVER, spec, transcript, {}, Knowledge(samples=Rows({"client1": known}), **knowledge))


def exact(x: Array) -> dict[str, Any]:
    """Second moments as they are."""
    return {"second_moments": {"client1": x.T @ x / len(x)}}


def people(rows: int, width: int, seed: int = 0) -> tuple[Array, Array, np.random.Generator]:
    """Correlated Gaussian people and a private matrix."""
    rng = np.random.default_rng([seed, rows, width])
    return (
        rng.standard_normal((rows, width)) @ rng.standard_normal((width, width)),
        rng.standard_normal((width,) * 2),
        rng,
    )


def r2(guess: Any, x: Array) -> float:
    """Mean R2 of a guess about client1."""
    error = ((guess.features["client1"].values - x) ** 2).sum(axis=0)
    return float((1 - error / ((x - x.mean(axis=0)) ** 2).sum(axis=0)).mean())


# --- Algebra ------------------------------------------------------------------------------------------------


@given(rows=st.integers(12, 60), width=st.integers(1, 6), seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_inner_products_do_not_change_under_any_invertible_matrix(
    rows: int, width: int, seed: int, shift: float
) -> None:
    x, a, _ = people(rows, width, seed)
    x = x + shift
    u, w = (v @ Whitening.of(second_moment(v), 1e-10).forward for v in (x, x @ a))
    scale = 1e-6 * np.linalg.cond(a) * np.linalg.cond(x)
    np.testing.assert_allclose(u @ u.T, w @ w.T, atol=scale)
    np.testing.assert_allclose((u**2).sum(axis=1), (w**2).sum(axis=1), atol=scale)
    slow = x @ np.linalg.pinv(x.T @ x / len(x)) @ x.T
    np.testing.assert_allclose(u @ u.T, slow, atol=scale)


@given(seed=st.integers(0, 10_000))
def test_nearest_and_groups_agree_with_slow_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (40, 3)).astype(float)
    place, counts = groups(rows, 1e-9)
    distinct, first, number = np.unique(rows, axis=0, return_index=True, return_counts=True)
    assert sorted(place) == sorted(first) and dict(zip(place, counts, strict=True)) == dict(
        zip(first, number, strict=True)
    )
    points = rng.standard_normal((5, 3))
    distances = np.linalg.norm(points[:, None] - distinct, axis=2)
    found, near = nearest(points, distinct)
    np.testing.assert_allclose(near, distances.min(axis=1))
    np.testing.assert_allclose(nearest(points, distinct, excluding=found)[1], np.sort(distances, axis=1)[:, 1])


@given(seed=st.integers(0, 10_000))
def test_left_out_errors_agree_with_leaving_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((9, 3)), rng.standard_normal((9, 2))
    errors, proven, rank = left_out(x, y)
    assert proven.all() and rank == 3
    for row in range(9):
        rest = np.arange(9) != row
        slow = y[row] - x[row] @ np.linalg.lstsq(x[rest], y[rest], rcond=None)[0]
        np.testing.assert_allclose(errors[row], slow, atol=1e-8)


# --- Equivariance -------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), width=st.integers(2, 6))
def test_the_attack_follows_row_order_and_units(seed: int, width: int) -> None:
    x, a, rng = people(150, width, seed)
    ids, order, units = rng.permutation(150)[: width + 4], rng.permutation(150), 10 ** rng.uniform(-3, 3, width)
    first = LeverageMatching().run(made_view(x @ a, x[ids], **exact(x)))
    moved = LeverageMatching().run(made_view((x @ a)[order], x[ids], **exact(x)))
    scaled = LeverageMatching().run(made_view(x @ a, x[ids] * units, **exact(x * units)))
    assert first.verified and moved.verified and scaled.verified
    values = first.features["client1"].values
    np.testing.assert_allclose(moved.features["client1"].values, values[order], atol=1e-6)
    np.testing.assert_allclose(scaled.features["client1"].values / units, values, atol=1e-6)


# --- Positive controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("knowledge", [Moments(), va.DistributionSample(150)], ids=["moments", "aux"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_known_people_are_found_and_the_table_is_solved(
    rap_run: Run, shuffled_run: Run, knowledge: Any, shuffled: bool
) -> None:
    run = shuffled_run if shuffled else rap_run
    adversary = va.Adversary({"server"}, [va.KnownSamples(12), knowledge])
    guess = LeverageMatching().run(run.view(adversary))
    assert guess.verified
    for party in run.data.parties:
        score = va.Reconstruction(party=party).score(run, guess)
        assert score.score > 0.99 and score.interval[0] > 0.5
        assert guess.notes["matched"][party] == 12


def test_one_solved_table_gives_ids_for_the_others(rap_run: Run) -> None:
    """Only client1's moments are known: the others' tables are solved with the ids that its table gave."""
    adversary = va.Adversary({"server"}, [va.KnownSamples(12), Moments()])
    view = rap_run.view(adversary)
    moments = {"client1": view.knowledge.second_moments["client1"]}
    view = replace(view, knowledge=replace(view.knowledge, second_moments=moments))
    guess = LeverageMatching().run(view)
    assert guess.notes["method"]["client3"] == "ids from the table of client1" and guess.verified
    assert va.Reconstruction(party="client3").score(rap_run, guess).score > 0.99


def test_candidates_of_the_game_are_named(rap_run: Run) -> None:
    game = va.Reidentification(party="client2", candidates=20)
    adversary = va.Adversary({"server"}, [Moments()])
    view = rap_run.view(adversary, challenge=game.challenge(rap_run))
    score = game.score(rap_run, LeverageMatching(party="client2").run(view))
    assert score.score == 1.0 and score.verified


def test_hundreds_of_known_rows_need_no_other_knowledge() -> None:
    x, a, rng = people(1000, 5)
    guess = LeverageMatching().run(made_view((x @ a).astype(np.float32), x[rng.permutation(1000)[:150]]))
    assert guess.verified and r2(guess, x) > 0.99


def test_with_as_many_rows_as_columns_it_proposes_without_verifying() -> None:
    x, a, rng = people(500, 6)
    guess = LeverageMatching().run(made_view(x @ a, x[rng.permutation(500)[:6]], **exact(x)))
    assert guess.verified is False and r2(guess, x) > 0.99


def test_ids_are_used_where_they_are_known(rap_run: Run) -> None:
    adversary = va.Adversary({"server"}, [va.KnownSamples(12, with_ids=True)])
    guess = LeverageMatching().run(rap_run.view(adversary))
    assert guess.verified and set(guess.notes["method"].values()) == {"ids"}
    assert va.Reconstruction(party="client1").score(rap_run, guess).score > 0.99


def test_a_colluder_undoes_the_shuffle(shuffled_run: Run) -> None:
    adversary = va.Adversary({"server", "client2"}, [va.KnownSamples(15, with_ids=True)])
    guess = ColluderLinking(party="client1").run(shuffled_run.view(adversary))
    assert guess.verified and guess.notes["unique_link_rate"] == 1.0 and guess.notes["known_rows_linked"] == 15
    score = va.Reconstruction(party="client1").score(shuffled_run, guess)
    assert score.score > 0.99 and score.interval[0] > 0.2


def test_colluders_join_their_columns() -> None:
    """Neither of two colluders has unique rows; together they do."""
    rng = np.random.default_rng(0)
    values = np.column_stack([np.repeat(np.arange(20.0), 20), np.tile(np.arange(20.0), 20), rng.random((400, 2))])
    names = ("a", "b", "c", "d")
    table = Table(
        "grid", tuple(Column(name) for name in names), values, rng.integers(0, 2, 400), "classification", ("0", "1")
    )
    split = {"client1": ["c", "d"], "client2": ["a"], "client3": ["b"]}
    data = va.load_dataset(table, split=split, seed=0)
    protocol = va.load_protocol("rap", max_epochs=1, hidden=4, pseudo_feature=False)
    run = protocol.run(data, seed=0, defenses=[SecureShuffle()])
    rate = {}
    for corrupts in (("server", "client2"), ("server", "client2", "client3")):
        adversary = va.Adversary(corrupts, [va.KnownSamples(15, with_ids=True)])
        guess = ColluderLinking(party="client1").run(run.view(adversary))
        rate[len(corrupts)] = guess.notes["unique_link_rate"]
    assert rate == {2: 0.0, 3: 1.0} and guess.notes["colluders"] == ["client2", "client3"]
    assert guess.verified and va.Reconstruction(party="client1").score(run, guess).score > 0.99


def test_candidates_are_named_after_a_shuffle_too(rap_run: Run, shuffled_run: Run) -> None:
    game = va.Reidentification(party="client2", candidates=20)
    view = shuffled_run.view(va.Adversary({"server"}, [Moments()]), challenge=game.challenge(shuffled_run))
    guess = LeverageMatching(party="client2").run(view)
    assert guess.shuffled and game.score(shuffled_run, guess).score == 1.0
    assert game.score(shuffled_run, replace(guess, shuffled=False)).score < 0.2  # positions are not handles
    with pytest.raises(InputError, match="nothing was shuffled"):
        game.score(rap_run, guess)
    with pytest.raises(InputError, match="none of the"):
        game.score(shuffled_run, replace(guess, matches=np.full(20, len(shuffled_run.data) - 1)))


def test_a_search_ends_when_its_work_is_done() -> None:
    """People who are not there, in a long table: counted work, not time, ends the search. The result is the same."""
    x, a, _ = people(6000, 8)
    view = made_view(x[:5000] @ a, x[5000:5012], distribution=Rows({"client1": x[5012:5100]}))
    budget = Budget(10.0)
    assert budget.spend(9) and not budget.spend(2)
    guesses = [LeverageMatching(beam=2000, work=0.01).run(view, seed=1) for _ in range(2)]
    for guess in guesses:
        assert guess.verified is False and guess.notes["method"]["client1"] == "none"
    np.testing.assert_array_equal(guesses[0].features["client1"].values, guesses[1].features["client1"].values)
    known = made_view(x[:5000] @ a, x[:12], **exact(x[:5000]))
    assert LeverageMatching(work=0.01).run(known).verified


# --- Awkward data -------------------------------------------------------------------------------------------


def test_repeated_rows_and_one_hot_columns() -> None:
    """Rank deficient (indicators add up to 1 twice), every row about five times, float32."""
    rng = np.random.default_rng(1)
    one, two = np.eye(4)[rng.integers(0, 4, 400)], np.eye(3)[rng.integers(0, 3, 400)]
    x = np.hstack([one, two, rng.integers(0, 6, (400, 1))])
    table = (x @ rng.standard_normal((8, 8))).astype(np.float32)
    guess = LeverageMatching().run(made_view(table, x[rng.permutation(400)[:30]], **exact(x)))
    assert guess.notes["directions"]["client1"] == "7 of 7"
    assert guess.verified and r2(guess, x) > 0.99


@pytest.mark.parametrize(("noise", "dtype"), [(0.0, "float32"), (0.001, "float64"), (0.001, "float32")])
def test_rounding_and_noisy_knowledge(noise: float, dtype: str) -> None:
    solved = 0
    for seed in range(5):
        x, a, rng = people(800, 6, seed)
        known = x[rng.permutation(800)[:12]]
        known = known + noise * x.std(axis=0) * rng.standard_normal(known.shape)
        guess = LeverageMatching().run(made_view((x @ a).astype(dtype), known, **exact(x)))
        solved += bool(guess.verified) and r2(guess, x) > 0.99
    assert solved >= 4


def test_raw_units(cancer: VerticalDataset) -> None:
    run = va.load_protocol("rap", max_epochs=1, standardise=False, precision="float64").run(cancer, seed=0)
    guess = LeverageMatching().run(run.view(va.Adversary({"server"}, [va.KnownSamples(12), Moments()])))
    assert guess.verified and va.Reconstruction(party="client1").score(run, guess).score > 0.99


def test_a_long_table_takes_little_memory() -> None:
    x, a, rng = people(100_000, 10)
    view = made_view((x @ a).astype(np.float32), x[rng.permutation(100_000)[:14]], **exact(x))
    tracemalloc.start()
    guess = LeverageMatching().run(view)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert guess.verified and r2(guess, x) > 0.99 and peak < 1e9


# --- Negative controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_found_where_nothing_is(cancer: VerticalDataset, seed: int) -> None:
    run = va.load_protocol("ideal", like="rap", max_epochs=1).run(cancer, seed=seed)
    for knowledge in (Moments(), va.DistributionSample(100)):
        guess = LeverageMatching().run(run.view(va.Adversary({"server"}, [va.KnownSamples(12), knowledge])), seed)
        assert guess.verified is False
        for party in run.data.parties:
            score = va.Reconstruction(party=party).score(run, guess)
            assert score.advantage <= 0 and score.interval[0] <= 0


@pytest.mark.parametrize("kind", ["moments", "aux"])
def test_people_who_are_not_in_the_table_never_verify(rap_run: Run, kind: str) -> None:
    item = Moments() if kind == "moments" else va.DistributionSample(80)
    view = rap_run.view(va.Adversary({"server"}, [va.KnownSamples(12), item]))
    pool = rap_run.data.aux
    assert pool is not None
    rng = np.random.default_rng(0)
    for _ in range(10):
        rows = rng.permutation(len(pool))[:12]
        strangers = Rows({party: block.values[rows] for party, block in pool.blocks.items()})
        guess = LeverageMatching(beam=2000).run(replace(view, knowledge=replace(view.knowledge, samples=strangers)))
        assert guess.verified is False and not any(guess.notes["found"].values())


@pytest.mark.parametrize("width", [2, 3, 6])
def test_strangers_never_verify_in_few_dimensions_either(width: int) -> None:
    """With few columns and many rows somebody similar is always near: that must not count."""
    for seed in range(10):
        x, a, rng = people(1500, width, seed)
        others = rng.permutation(1500)[: width + 4]
        rest = np.setdiff1d(np.arange(1500), others)
        guess = LeverageMatching(beam=2000).run(made_view(x[rest] @ a, x[others], **exact(x[rest])))
        assert guess.verified is False


def test_linking_finds_nothing_in_the_ideal(cancer: VerticalDataset) -> None:
    run = va.load_protocol("ideal", like="rap", max_epochs=1).run(cancer, seed=0, defenses=[SecureShuffle()])
    adversary = va.Adversary({"server", "client2"}, [va.KnownSamples(20, with_ids=True)])
    guess = ColluderLinking(party="client1").run(run.view(adversary))
    assert guess.verified is False and guess.notes["unique_link_rate"] == 0
    assert va.Reconstruction(party="client1").score(run, guess).advantage <= 0


# --- What it cannot do, it says -----------------------------------------------------------------------------


def test_unmet_needs_are_named(rap_run: Run, shuffled_run: Run) -> None:
    with pytest.raises(InputError, match="known rows"):
        LeverageMatching().run(rap_run.view(SERVER))
    known = va.KnownSamples(20, with_ids=True)
    with pytest.raises(InputError, match="shuffled table"):
        ColluderLinking().run(rap_run.view(va.Adversary({"server", "client2"}, [known])))
    with pytest.raises(InputError, match="shuffled table"):
        ColluderLinking().run(shuffled_run.view(va.Adversary({"server"}, [known])))
    with pytest.raises(InputError, match="ids"):
        ColluderLinking().run(shuffled_run.view(va.Adversary({"server", "client2"}, [va.KnownSamples(20)])))


def test_a_pseudo_feature_has_no_invariant() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 1)) + 2
    table = np.hstack([x, rng.normal(2, 1, (300, 1))]) @ rng.standard_normal((2, 2))
    guess = LeverageMatching().run(made_view(table, x[:20], **exact(x)))
    assert guess.verified is False and guess.notes["method"]["client1"] == "none"


def test_a_view_is_not_changed(rap_run: Run) -> None:
    view = rap_run.view(va.Adversary({"server"}, [va.KnownSamples(12), Moments()]))
    before = view.digest()
    one, two = (LeverageMatching().run(view, seed=1) for _ in range(2))
    np.testing.assert_array_equal(one.features["client1"].values, two.features["client1"].values)
    assert view.digest() == before


def test_every_candidate_gets_a_row_even_without_other_knowledge(rap_run: Run) -> None:
    challenge = Challenge({"client1": rap_run.data.blocks["client1"].values[rap_run.data.aligned("train")[:20]]})
    guess = LeverageMatching(party="client1").run(replace(rap_run.view(SERVER), challenge=challenge))
    assert guess.matches is not None and guess.matches.shape == (20,)
    raw = replace(rap_run.view(SERVER), challenge=challenge, spec=replace(rap_run.spec, standardised=False))
    assert not LeverageMatching().run(raw).features["client2"].values.any()  # nothing at all is known about client2
