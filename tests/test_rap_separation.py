"""Attacks on RAP that need no ids: scale (2.3), pseudo feature (2.3), distribution only (section 3, Case 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from attacks import alignment
from attacks.pseudo import PseudoFeatureStripping, others
from attacks.scale import ColumnFacts, MeanScaleRecovery, calibrate
from attacks.separation import BlindSeparation, Effort, search
from defenses.secure_shuffle import SecureShuffle
from vflaudit.core.adversary import Known
from vflaudit.core.dataset import Column, Table
from vflaudit.core.run import Run
from vflaudit.core.view import View
from vflaudit.errors import InputError

SERVER = {"server"}


def run_of(data: Any, seed: int, *, protocol: str = "rap", **parameters: Any) -> Run:
    """A short run: the tables are what matters, not the training."""
    extra = {"like": "rap"} if protocol == "ideal" else {}
    return va.load_protocol(protocol, max_epochs=1, **extra, **parameters).run(data, seed=seed)


def seen(run: Run, *knows: Known) -> View:
    return run.view(va.Adversary(SERVER, knows))


def one_against_rest(name: str, column: str, seed: int) -> Any:
    """A client with a single column, another with all others."""
    columns = [c.name for c in va.load_dataset(name, parties=1).blocks["client1"].columns]
    return va.load_dataset(name, split={"client1": [column], "client2": [c for c in columns if c != column]}, seed=seed)


def score(attack: Any, run: Run, *knows: Known, party: str = "client1") -> Any:
    return va.Reconstruction(party=party).score(run, attack.run(seen(run, *knows), seed=0))


def table_of(columns: Sequence[np.ndarray], seed: int) -> Table:
    """Columns as a dataset, with a label that says nothing."""
    labels = np.random.default_rng(seed).integers(2, size=len(columns[0]))
    names = tuple(Column(f"x{k}") for k in range(len(columns)))
    return Table("made", names, np.stack(columns, axis=1), labels, "classification", ("a", "b"))


# --- the scale of one column ----------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [va.FeatureMeans(), va.Moments()])
def test_an_exact_mean_gives_the_column_away(knows: Known) -> None:
    for seed in range(3):
        run = run_of(one_against_rest("diabetes", "bmi", seed), seed, pseudo_feature=False, standardise=False)
        assert score(MeanScaleRecovery(), run, knows).score > 1 - 1e-9


def test_the_error_of_a_sampled_mean_is_cv_over_root_n() -> None:
    run = run_of(one_against_rest("breast-cancer", "mean radius", 0), 0, pseudo_feature=False, standardise=False)
    truth = run.data.blocks["client1"].values[run.data.aligned("train"), 0]
    rng = np.random.default_rng(0)
    for count in (10, 100):
        errors = [
            abs(calibrate(2.0 * truth, ColumnFacts(people=rng.choice(truth, count))).factor / 0.5 - 1)
            for _ in range(300)
        ]
        expected = truth.std() / truth.mean() / np.sqrt(count)
        assert 0.8 < np.sqrt(np.mean(np.square(errors))) / expected < 1.25


def test_standardised_columns_give_deviation_and_skew_away() -> None:
    won = [
        score(
            MeanScaleRecovery(),
            run_of(one_against_rest("breast-cancer", "mean area", seed), seed, pseudo_feature=False),
            va.DistributionSample(150),
        ).score
        for seed in range(4)
    ]
    assert min(won) > 0.9


def test_without_skew_the_sign_stays_hidden() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        odds = [
            calibrate(rng.standard_normal(800), ColumnFacts(0.0, 1.0, rng.standard_normal(100))).sign for _ in range(9)
        ]
        assert np.median(odds) < 0.8
    assert calibrate(rng.standard_normal(50), ColumnFacts(0.0, 1.0)).sign == 0.5


@pytest.mark.parametrize("standardise", [True, False])
def test_scale_recovery_finds_nothing_where_nothing_is(standardise: bool) -> None:
    for seed in range(4):
        data = one_against_rest("breast-cancer", "mean area", seed)
        run = run_of(data, seed, protocol="ideal", pseudo_feature=False, standardise=standardise)
        assert score(MeanScaleRecovery(), run, va.DistributionSample(100)).interval[0] <= 0.01


@given(st.floats(0.01, 100), st.booleans(), st.integers(0, 5))
def test_calibration_undoes_any_factor(size: float, negative: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    column = rng.gamma(2.0, 1.0, 400)
    facts = ColumnFacts(people=rng.gamma(2.0, 1.0, 50))
    factor = -size if negative else size
    guess = calibrate(factor * column, facts).guess(factor * column, facts)
    np.testing.assert_allclose(guess, calibrate(column, facts).guess(column, facts), rtol=1e-6, atol=1e-9)
    assert np.corrcoef(guess, column)[0, 1] > 0.999


# --- the pseudo feature ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "column"), [("breast-cancer", "mean area"), ("breast-cancer", "mean smoothness"), ("diabetes", "s5")]
)
def test_a_pseudo_feature_is_stripped(name: str, column: str) -> None:
    for seed in range(3):
        run = run_of(one_against_rest(name, column, seed), seed, standardise=False)
        result = score(PseudoFeatureStripping(), run, va.Moments())
        assert result.score > 0.97 and result.interval[0] > 0.9
        assert result.metrics["abs_correlation"] > 0.99


def test_standardised_columns_are_stripped_too() -> None:
    for seed in range(3):
        run = run_of(one_against_rest("breast-cancer", "mean area", seed), seed)
        assert score(PseudoFeatureStripping(), run, va.DistributionSample(150)).score > 0.85


def test_each_evidence_is_enough_alone() -> None:
    """Correlation with a Gaussian column, shape of an independent one, and 45 degrees up to two candidates."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        attack, matrix, count = PseudoFeatureStripping(), rng.standard_normal((2, 2)), 1000
        friend, nothing = rng.standard_normal((count, 1)), np.zeros((count, 0))
        related = 0.7 * friend[:, 0] + 0.7 * rng.standard_normal(count)
        skewed = rng.exponential(size=count) - 1
        shifted = rng.normal(3.0, 1.0, count)
        for column, known, decided in (
            (related, friend, "correlation"),
            (skewed, nothing, "shape"),
        ):
            table = np.stack([column, rng.normal(column.mean(), column.std(), count)], axis=1) @ matrix
            found = attack.strip(table, known)
            assert abs(np.corrcoef(table @ found.best, column)[0, 1]) > 0.98
            assert found.decided_by == decided
        table = np.stack([shifted, rng.normal(shifted.mean(), shifted.std(), count)], axis=1) @ matrix
        found = attack.strip(table, nothing)
        both = np.abs(np.corrcoef(np.column_stack([table @ found.directions.T, shifted]).T)[-1, :-1])
        assert found.probabilities[(both > 0.97) | (both < 0.25)].sum() > 0.95


def test_an_independent_gaussian_column_stays_hidden() -> None:
    entropies = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = rng.standard_normal((800, 2)) @ rng.standard_normal((2, 2))
        found = PseudoFeatureStripping(directions=180).strip(table, rng.standard_normal((800, 5)))
        entropies.append(-(found.probabilities * np.log(found.probabilities + 1e-300)).sum() / np.log(180))
    assert min(entropies) > 0.6


def test_a_numeric_label_is_stripped() -> None:
    for seed in range(3):
        run = run_of(va.load_dataset("diabetes", parties=2, seed=seed), seed)
        view = seen(run)
        table = view.table_of(view.spec.label_owner, kind="labels")
        found = PseudoFeatureStripping().strip(table.values.astype(float), others(view, view.spec.label_owner, table))
        truth = run.data.labels[table.rows]
        assert abs(np.corrcoef(table.values @ found.best, truth)[0, 1]) > 0.99


def test_stripping_finds_nothing_where_nothing_is() -> None:
    for seed in range(4):
        for standardise in (True, False):
            run = run_of(
                one_against_rest("breast-cancer", "mean area", seed), seed, protocol="ideal", standardise=standardise
            )
            assert score(PseudoFeatureStripping(), run, va.DistributionSample(100)).interval[0] <= 0.01


@given(st.integers(0, 1000))
@settings(max_examples=15)
def test_stripping_does_not_depend_on_the_matrix_or_the_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    column = rng.exponential(size=600)
    plain = np.stack([column, rng.normal(1, 1, 600)], axis=1)
    known = column[:, None] + rng.standard_normal((600, 1))
    matrix, order = rng.standard_normal((2, 2)), rng.permutation(600)
    attack = PseudoFeatureStripping()
    one = plain @ attack.strip(plain, known).best
    two = plain @ matrix @ attack.strip(plain @ matrix, known).best
    moved = plain[order] @ matrix[:, ::-1]
    three = moved @ attack.strip(moved, known[order]).best
    assert abs(np.corrcoef(one, two)[0, 1]) > 0.9999
    assert abs(np.corrcoef(one[order], three)[0, 1]) > 0.9999


# --- distribution only ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "least"), [("breast-cancer", 0.85), ("diabetes", 0.8), ("wine", 0.35)])
def test_the_distribution_is_enough_when_clients_correlate(name: str, least: float) -> None:
    won = []
    for seed in range(3):
        run = run_of(va.load_dataset(name, parties=4, seed=seed), seed)
        assert run.data.aux is not None
        guess = BlindSeparation().run(seen(run, va.DistributionSample(len(run.data.aux))), seed=seed)
        scores = [va.Reconstruction(party=party).score(run, guess) for party in run.data.parties]
        won.append(np.mean([s.score for s in scores]))
        assert sum(s.interval[0] > 0 for s in scores) >= 2
    assert min(won) > least


def test_a_shuffle_does_not_help() -> None:
    """None of these attacks needs to know which row is whose."""
    run = va.load_protocol("rap", max_epochs=1).run(
        va.load_dataset("breast-cancer", parties=4), seed=0, defenses=[SecureShuffle()]
    )
    assert score(BlindSeparation(restarts=60), run, va.DistributionSample(150)).score > 0.8
    data = one_against_rest("breast-cancer", "mean area", 0)
    run = va.load_protocol("rap", max_epochs=1, standardise=False).run(data, seed=0, defenses=[SecureShuffle()])
    assert score(PseudoFeatureStripping(), run, va.Moments()).score > 0.97


def test_a_colluding_client_joins_in_the_clear() -> None:
    run = run_of(va.load_dataset("diabetes", parties=4), 0)
    view = run.view(va.Adversary({"server", "client4"}, [va.DistributionSample(130)]))
    guess = BlindSeparation(restarts=60, party="client1").run(view, seed=0)
    assert set(guess.features) == {"client1"}
    assert va.Reconstruction(party="client1").score(run, guess).interval[0] > 0.5


def two_peaks(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.choice([-2.0, 1.0], size, p=[0.25, 0.75]) + 0.2 * rng.standard_normal(size)


def made(seed: int, *, gaussian: bool) -> Any:
    """Three independent columns of different lopsided shapes (or none) at one client, noise at another."""
    rng = np.random.default_rng(seed)
    size = 1600
    shapes = [rng.exponential(size=size), rng.random(size) ** 2, two_peaks(rng, size)]
    columns = [rng.standard_normal(size) for _ in range(3)] if gaussian else shapes
    data = table_of([*columns, rng.standard_normal(size), rng.standard_normal(size)], seed)
    return va.load_dataset(data, split={"client1": ["x0", "x1", "x2"], "client2": ["x3", "x4"]}, seed=seed)


def test_one_client_alone_is_given_away_by_shape_and_not_otherwise() -> None:
    attack = BlindSeparation(tables="own", party="client1", restarts=40)
    for seed in range(3):
        knows = va.DistributionSample(400)
        assert score(attack, run_of(made(seed, gaussian=False), seed), knows).score > 0.9
        assert score(attack, run_of(made(seed, gaussian=True), seed), knows).advantage < 0.05


def test_correlations_between_clients_give_gaussian_columns_away() -> None:
    """In their own units completely; standardised, one sign for all clients is left, and a guess that knows this."""
    source = va.load_dataset("diabetes", parties=1).blocks["client1"]
    real = source.values[:, [column.kind == "numeric" for column in source.columns]]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        people = rng.multivariate_normal(real.mean(axis=0), np.cov(real.T), size=1000)
        data = va.load_dataset(table_of(list(people.T), seed), parties=4, seed=seed)
        run = run_of(data, seed, standardise=False)
        assert score(BlindSeparation(), run, va.DistributionSample(300)).score > 0.85
        alone = score(BlindSeparation(tables="own", party="client1"), run_of(data, seed), va.DistributionSample(300))
        assert alone.advantage < 0.1


def test_separation_finds_nothing_where_nothing_is() -> None:
    for seed, name in enumerate(("breast-cancer", "wine", "diabetes", "wine")):
        run = run_of(va.load_dataset(name, parties=4, seed=seed), seed, protocol="ideal")
        guess = BlindSeparation(restarts=30).run(seen(run, va.DistributionSample(50)), seed=seed)
        for party in run.data.parties:
            assert va.Reconstruction(party=party).score(run, guess).interval[0] <= 0.01


def test_one_hot_columns_have_lower_rank() -> None:
    rng = np.random.default_rng(0)
    codes = rng.choice(3, 500, p=[0.6, 0.3, 0.1])
    columns = (Column("c", "categorical", ("a", "b", "c")), Column("x"), Column("y"))
    values = np.stack([codes, rng.exponential(size=500) + codes, codes - rng.random(500)], axis=1)
    table = Table("made", columns, values, rng.integers(2, size=500), "classification", ("a", "b"))
    data = va.load_dataset(table, split={"client1": ["c", "x"], "client2": ["y"]})
    run = run_of(data, 0)
    result = score(BlindSeparation(restarts=30), run, va.DistributionSample(140))
    assert result.score > 0.5 and result.metrics["category_accuracy"] > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_alignment_does_not_depend_on_the_matrix_or_the_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hidden = np.stack([rng.exponential(size=700), rng.random(700) ** 2, two_peaks(rng, 700)], axis=1)
    target, cloud = hidden[:300], hidden[300:]
    matrix, order = rng.standard_normal((3, 3)), rng.permutation(400)
    guesses = []
    for values in (cloud @ matrix, cloud @ matrix[:, ::-1], (cloud @ matrix)[order], cloud):
        joined, back = alignment.block(values, target, np.random.default_rng(0))
        found, weights = search([joined], Effort(restarts=20, candidates=6, steps=150), seed)
        guesses.append(joined.cloud @ found[0][weights.argmax()] @ back.outer)
    guesses[2] = guesses[2][np.argsort(order)]
    for guess in guesses[1:]:
        for k in range(3):
            assert np.corrcoef(guesses[0][:, k], guess[:, k])[0, 1] > 0.99


def test_every_refinement_lowers_the_distance() -> None:
    rng = np.random.default_rng(0)
    parts = [alignment.block(rng.exponential(size=(90, 3)), rng.exponential(size=(70, 3)), rng)[0] for _ in range(2)]
    now = alignment.random_rotations(parts, 4, rng)
    for _ in range(10):
        then = alignment.refine(parts, now, 1)
        assert (alignment.energy(parts, then) <= alignment.energy(parts, now) + 1e-12).all()
        now = then


# --- what they need -------------------------------------------------------------------------------------------


def test_unmet_needs_are_told() -> None:
    run = run_of(one_against_rest("wine", "alcohol", 0), 0)
    for attack in (MeanScaleRecovery(), PseudoFeatureStripping(), BlindSeparation()):
        with pytest.raises(InputError, match="it needs"):
            attack.run(seen(run))
    with pytest.raises(InputError, match="sent without a pseudo feature"):
        MeanScaleRecovery().run(seen(run, va.FeatureMeans()))
    with pytest.raises(InputError, match="'client2' does not hold one"):
        PseudoFeatureStripping(party="client2").run(seen(run, va.FeatureMeans()))
    with pytest.raises(InputError, match="10 rows of the population or more, not 5"):
        BlindSeparation().run(seen(run, va.DistributionSample(5)))
    with pytest.raises(InputError, match="two columns"):
        PseudoFeatureStripping().strip(np.zeros((9, 3)), np.zeros((9, 0)))


def test_a_guess_is_the_same_again_and_leaves_the_view_alone() -> None:
    run = run_of(va.load_dataset("wine", parties=3), 0)
    view = seen(run, va.DistributionSample(50))
    before = view.digest()
    one, two = (BlindSeparation(restarts=10).run(view, seed=1) for _ in range(2))
    for party in run.data.parties:
        np.testing.assert_array_equal(one.features[party].values, two.features[party].values)
    assert view.digest() == before
