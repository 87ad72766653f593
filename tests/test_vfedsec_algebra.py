"""What vFedSec's server solves for: rows from the Secure Layer's output, and from the sums of gradients."""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from attacks.gradient_algebra import GradientAlgebra
from attacks.joint_rows import Equations, Joint
from attacks.label_gradient import LabelFromGradient
from attacks.one_hot import solve_rows
from attacks.secure_forward import SecureLayerForward
from attacks.secure_people import People, believable, doubled
from attacks.secure_rounds import added_noise
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.games import Score
from vflaudit.core.run import Run
from vflaudit.errors import InputError

CANCER = "breast-cancer"  # 30 numbers, ten per party
MIXED = "synthetic:rows=240,features=4,categorical=6,categories=8"  # 52 columns after one-hot
SERVER, WITH_ACTIVE, WITH_FELLOW = ("server",), ("server", "active"), ("server", "passive1")
POPULATION = va.DistributionSample(100)
WITH_CLUSTER = ("server", "passive3", "passive4")


@lru_cache(maxsize=32)
def trained(
    data: str = CANCER,
    protocol: str = "vfedsec",
    defenses: tuple[GaussianNoise, ...] = (),
    seed: int = 0,
    **settings: object,
) -> Run:
    """One run with keys from a seed, done once."""
    settings = {"epochs": 1, "batch_size": 64, "randomness": "seed", **settings}
    if protocol == "ideal":
        settings["like"] = "vfedsec"
    return va.load_protocol(protocol, **settings).run(va.load_dataset(data, parties=3), seed=seed, defenses=defenses)


def scores(attack: SecureLayerForward | GradientAlgebra, run: Run, corrupts: tuple[str, ...] = SERVER) -> list[Score]:
    """The score against everybody whom the attack guesses."""
    guess = attack.run(run.view(va.Adversary(corrupts=corrupts)), seed=0)
    assert set(guess.features) <= set(run.view(va.Adversary(corrupts=corrupts)).victims)
    return [va.Reconstruction(party=party).score(run, guess) for party in guess.features]


def worst(found: list[Score]) -> float:
    """The lowest R2."""
    return min(score.score for score in found)


# One batch of equations


@given(st.integers(0, 10_000), st.sampled_from([10, 24, 60]))
def test_one_hot_rows_are_found_from_far_fewer_equations_than_columns(seed: int, hidden: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, numbers, noise = [2, 3, 9, 12, 4, 16], 3, 1e-5
    cuts = np.cumsum([0, *sizes])
    groups = [np.arange(low, high) for low, high in pairwise(cuts)]
    rows = np.zeros((20, cuts[-1] + numbers))
    for group in groups:
        rows[np.arange(20), rng.choice(group, 20)] = 1.0
    rows[:, cuts[-1] :] = rng.standard_normal((20, numbers))
    weights = rng.uniform(-0.2, 0.2, (hidden, rows.shape[1]))
    solved = solve_rows(weights, rows @ weights.T + noise * rng.standard_normal((20, hidden)), groups, noise)
    assert solved.explained.all()
    np.testing.assert_array_equal(solved.values[:, : cuts[-1]], rows[:, : cuts[-1]])
    np.testing.assert_allclose(solved.values, rows, atol=1e-2)


def test_too_few_equations_explain_nothing() -> None:
    rng = np.random.default_rng(0)
    weights, rows = rng.standard_normal((6, 10)), rng.standard_normal((30, 10))
    solved = solve_rows(weights, rows @ weights.T, [], 1e-6)
    assert not solved.explained.any()
    np.testing.assert_allclose(solved.values @ weights.T, rows @ weights.T, atol=1e-6)  # it fits, and still is a guess
    made_up = solve_rows(weights[:, :3], rng.standard_normal((30, 6)), [], 1e-6)  # six equations, nothing behind them
    assert not made_up.explained.any()


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_joint_equations_give_the_posterior_mean(seed: int, count: int, wide: int, hidden: int, masked: bool) -> None:
    """Against the dense normal equations of all cells, with one weight matrix per round and partly reached columns."""
    rng = np.random.default_rng(seed)
    reached = rng.random(wide) < 0.7
    truth, everybody = rng.standard_normal((count, wide)), np.arange(count)
    left, right = 0.1, 0.2
    rounds = []
    matrix, vector = np.eye(count * wide), np.zeros(count * wide)
    for _ in range(2):
        weights, slope = rng.standard_normal((hidden, wide)), rng.standard_normal((count, hidden))
        mask = (rng.random((count, hidden)) < 0.6).astype(float) if masked else None
        target = truth @ weights.T + right * rng.standard_normal((count, hidden))
        gradient = (slope.T @ truth + left * rng.standard_normal((hidden, wide))) * reached
        rounds.append(Equations(everybody, weights, target, slope, gradient, mask))
        use = np.ones((count, hidden)) if mask is None else mask
        for row in range(count):
            here = slice(row * wide, (row + 1) * wide)
            matrix[here, here] += (weights.T * use[row]) @ weights / right**2
            vector[here] += weights.T @ (use[row] * target[row]) / right**2
        matrix += np.kron(slope @ slope.T, np.diag(reached.astype(float))) / left**2
        vector += (slope @ gradient).ravel() / left**2
    joint = Joint(rounds, [everybody], reached, left, right)
    cells, _ = joint.solve(np.zeros(wide), np.eye(wide), 1.0, 0, 300)
    np.testing.assert_allclose(cells, np.linalg.solve(matrix, vector).reshape(count, wide), atol=1e-5)


# The Secure Layer's output


@pytest.mark.parametrize("corrupts", [SERVER, WITH_ACTIVE, WITH_FELLOW, WITH_CLUSTER])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_forward_solves_columns_no_more_than_the_width(corrupts: tuple[str, ...], optimiser: str) -> None:
    """Also in the last batches: the active party's private weights are replayed. Verified only with own columns."""
    found = scores(SecureLayerForward(), trained(optimiser=optimiser), corrupts)
    assert worst(found) > 0.9999
    assert all(score.metrics["relative_error"] < 1e-4 for score in found)
    assert {score.verified for score in found} == {None if corrupts == SERVER else True}


@pytest.mark.parametrize("hidden", [10, 32])
def test_forward_solves_categories_beyond_the_width(hidden: int) -> None:
    found = scores(SecureLayerForward(), trained(MIXED, hidden=hidden), SERVER)
    assert len(found) == 5 and worst(found) > 0.999
    assert all(score.metrics.get("category_accuracy", 1.0) == 1.0 for score in found)


def test_masks_and_fixed_point_change_nothing() -> None:
    masked, plain = trained(), trained(security="quantised")
    guesses = [SecureLayerForward().run(run.view(va.Adversary(corrupts=SERVER))) for run in (masked, plain)]
    for party in guesses[0].features:
        np.testing.assert_array_equal(guesses[0].features[party].values, guesses[1].features[party].values)


def test_lone_clients_are_replayed_too() -> None:
    run = trained(clients_per_cluster=1, epochs=2)
    assert worst(scores(SecureLayerForward(), run)) > 0.9999


@pytest.mark.parametrize("batches", ["fixed", "reshuffled"])
def test_epochs_add_up_where_one_has_too_few_equations(batches: str) -> None:
    """16 equations for 20 unknown numbers: open after one epoch, solved after three, as the weights have moved."""
    short, long = (trained(hidden=16, epochs=epochs, batches=batches) for epochs in (1, 3))
    assert worst(scores(SecureLayerForward(), short, WITH_ACTIVE)) < 0.9
    found = scores(SecureLayerForward(), long, WITH_ACTIVE)
    assert worst(found) > 0.99 and all(score.verified for score in found)


def test_a_sample_of_the_population_helps_where_equations_are_too_few() -> None:
    run, adversaries = trained(hidden=16), [va.Adversary(corrupts=SERVER, knows=k) for k in ([], [POPULATION])]
    game = va.Reconstruction(party="passive1")
    plain, helped = (game.score(run, SecureLayerForward().run(run.view(adversary))) for adversary in adversaries)
    assert helped.interval[0] > plain.interval[1]  # both over a baseline of zero


def test_rows_are_found_again_in_reshuffled_batches() -> None:
    run = trained(epochs=3)
    people = People(run.view(va.Adversary(corrupts=SERVER)))
    guess = SecureLayerForward().run(run.view(va.Adversary(corrupts=SERVER)))
    table = np.hstack([guess.features[first].values for first in people.clusters])
    assert run.order is not None
    first = run.order[people.places]
    for seen in people.follow(table, 3):
        np.testing.assert_array_equal(first[seen.people], run.order[seen.round.places])


@pytest.mark.skipif("VFLAUDIT_DATA" not in os.environ, reason="needs the real tables in $VFLAUDIT_DATA")
@pytest.mark.parametrize("hidden", [8, 64])
def test_adult_with_the_papers_split_is_read_by_the_server_alone(hidden: int) -> None:
    split = {
        "client1": ["workclass", "occupation", "capital-gain", "capital-loss", "hours-per-week"],
        "client2": ["race", "marital-status", "relationship", "age", "sex", "native-country"],
        "client3": ["education"],
    }
    data = va.load_dataset("adult", split=split, rows=500)
    run = va.load_protocol("vfedsec", hidden=hidden, epochs=1, randomness="seed").run(data, seed=0)
    found = scores(SecureLayerForward(), run)
    assert worst(found) > 0.999 and all(score.metrics["category_accuracy"] == 1.0 for score in found)


# Sums of gradients


def test_gradients_alone_solve_a_batch_up_to_the_rank() -> None:
    small, large = trained(batch_size=32), trained(batch_size=256)
    attack = GradientAlgebra(forward=False)
    found = scores(attack, small)
    assert {score.party for score in found} == {"passive1", "passive2", "passive3", "passive4"}
    assert worst(found) > 0.999 and all(score.notes["rank"] == 32 for score in found)
    assert worst(scores(attack, large)) < 0.9
    assert not any(score.verified for score in found)


@pytest.mark.parametrize("batches", ["fixed", "reshuffled"])
def test_gradients_of_more_epochs_solve_larger_batches(batches: str) -> None:
    settings = {"batch_size": 128, "batches": batches, "optimiser": "adam", "modulus_bits": 64, "fraction_bits": 24}
    once, often = (scores(GradientAlgebra(forward=False), trained(epochs=e, **settings)) for e in (1, 8))
    assert worst(once) < 0.9 and worst(often) > 0.99


def test_both_kinds_of_equations_solve_what_neither_does_alone() -> None:
    run = trained(hidden=16, epochs=6, batch_size=256)
    forward, left = scores(SecureLayerForward(), run), scores(GradientAlgebra(forward=False), run)
    both = scores(GradientAlgebra(), run)
    assert worst(forward) < 0.97 and worst(left) < 0.9
    assert worst(both) > 0.99 and both[0].notes["explained"] == 1.0 and both[0].verified is None
    assert all(score.verified for score in scores(GradientAlgebra(), run, WITH_ACTIVE))


def test_weights_that_are_sent_back_tell_the_active_partys_gradient() -> None:
    run = trained(batch_size=32, lone_weights="server", epochs=2)
    found = {score.party: score.score for score in scores(GradientAlgebra(forward=False), run)}
    assert found["active"] > 0.99


def test_a_lone_client_sends_no_gradient() -> None:
    view = trained(clients_per_cluster=1, epochs=2).view(va.Adversary(corrupts=SERVER))
    with pytest.raises(InputError, match="a client alone updates locally and sends none"):
        GradientAlgebra().run(view)
    view = trained().view(va.Adversary(corrupts=SERVER))
    with pytest.raises(InputError, match="'active' sends no gradient"):
        GradientAlgebra(forward=False, party="active").run(view)


# A hidden layer before the Secure Layer


def test_a_hidden_layer_is_solved_through() -> None:
    run = trained(model="mlp", batch_size=16)
    assert worst(scores(SecureLayerForward(), run)) > 0.99
    assert worst(scores(GradientAlgebra(forward=False), run)) > 0.99
    assert worst(scores(GradientAlgebra(), run)) > 0.999
    wide = trained(model="mlp", batch_size=256)
    assert worst(scores(GradientAlgebra(forward=False), wide)) < 0.9  # 32 hidden units, 256 rows


def test_a_cnn_is_refused() -> None:
    data = va.load_dataset("digits", parties=2, partition="slices")
    run = va.load_protocol("vfedsec", model="cnn", hidden=8, epochs=1, randomness="seed").run(data, seed=0)
    for attack in (SecureLayerForward(), GradientAlgebra()):
        with pytest.raises(InputError, match="layer by layer"):
            attack.run(run.view(va.Adversary(corrupts=SERVER)))


# Equations that are not true, and noise


def test_believable_values_stay_and_others_do_not() -> None:
    people = People(trained(MIXED).view(va.Adversary(corrupts=SERVER)))
    marks = np.concatenate(people.groups)
    numbers = np.setdiff1d(np.arange(people.width), marks)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((len(people.places), people.width))
    table[:, marks] = rng.random((len(table), len(marks)))
    np.testing.assert_array_equal(believable(people, table), table)
    wild = table.copy()
    wild[:, numbers[0]] *= 4.0
    wild[0, numbers[1]], wild[1, numbers[1]], wild[2, marks[0]] = 1e9, np.nan, -3.0
    tame = believable(people, wild)
    assert np.mean(tame[:, numbers[0]] ** 2) < 0.2  # one part in sixteen is signal
    assert tame[0, numbers[1]] == tame[1, numbers[1]] == tame[2, marks[0]] == 0.0
    np.testing.assert_array_equal(tame[3:, numbers[1:]], table[3:, numbers[1:]])


def test_epochs_are_doubled() -> None:
    assert [doubled(last) for last in (1, 2, 5, 8, 10)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("attack", [SecureLayerForward(), GradientAlgebra(), GradientAlgebra(forward=False)], ids=str)
def test_more_epochs_are_never_much_worse(attack: SecureLayerForward | GradientAlgebra, seed: int) -> None:
    """Eight outputs for 30 columns: links between epochs and replayed weights are partly wrong."""
    once, often = (scores(attack, trained(optimiser="adam", hidden=8, epochs=epochs, seed=seed)) for epochs in (1, 10))
    first, all_ = (float(np.mean([score.score for score in found])) for found in (once, often))
    assert all_ > first - 0.1 and worst(often) > -0.1


@pytest.mark.parametrize("batches", ["fixed", "reshuffled"])
def test_misjudged_units_of_a_hidden_layer_give_no_wild_values(batches: str) -> None:
    """96 hidden units behind 64 outputs: which units are active is partly a guess, and the gradients rest on it."""
    run = trained(model="mlp", optimiser="adam", epochs=4, batches=batches)
    assert worst(scores(GradientAlgebra(forward=False), run)) > -0.3
    assert worst(scores(GradientAlgebra(), run)) > 0.6 and worst(scores(SecureLayerForward(), run)) > 0.6


@pytest.mark.parametrize("epochs", [1, 4])
def test_noise_on_outputs_leaves_the_gradients(epochs: int) -> None:
    run = trained(defenses=(GaussianNoise(sigma=1.0),), optimiser="adam", epochs=epochs)
    found = {score.party: score for score in scores(GradientAlgebra(), run)}
    assert min(score.score for party, score in found.items() if party != "active") > 0.9
    assert not any(score.verified for score in found.values())
    assert worst(scores(GradientAlgebra(forward=False), run)) > 0.8


@pytest.mark.parametrize("batches", ["fixed", "reshuffled"])
def test_known_noise_on_outputs_is_weighed(batches: str) -> None:
    """Clusters of one send no gradients. Noise on Z is what remains, and epochs average it where rows are linked."""
    settings = {"optimiser": "adam", "clients_per_cluster": 1, "batches": batches}
    weak, strong = (GaussianNoise(sigma=sigma) for sigma in (1.0, 100.0))
    once, often = (
        scores(SecureLayerForward(), trained(defenses=(weak,), epochs=epochs, **settings)) for epochs in (1, 6)
    )
    assert 0.3 < worst(once) < 0.7 and not any(score.verified for score in [*once, *often])
    assert worst(often) > (worst(once) + 0.2 if batches == "fixed" else worst(once) - 0.1)
    assert -0.05 < worst(scores(SecureLayerForward(), trained(defenses=(strong,), epochs=2, **settings))) < 0.05


def test_noise_on_outputs_leaves_no_wild_categories() -> None:
    run = trained(MIXED, defenses=(GaussianNoise(sigma=1.0),))
    assert worst(scores(SecureLayerForward(), run)) > -0.05
    both = scores(GradientAlgebra(), run)
    assert worst(both) > -0.3 and np.mean([score.score for score in both]) > 0.3


def test_the_servers_own_noise_on_gradients_does_not_confuse_it() -> None:
    """Each client gets another copy of the gradient: a lone client's weights are replayed with its own copy."""
    noise = GaussianNoise(sigma=1e-3, at="gradients_out")
    run = trained(defenses=(noise,), clients_per_cluster=1, epochs=2)
    assert worst(scores(SecureLayerForward(), run)) > 0.9999
    run = trained(defenses=(noise,), hidden=16, epochs=2)
    assert worst(scores(GradientAlgebra(forward=False), run)) > -0.1
    view = run.view(va.Adversary(corrupts=SERVER))
    assert (added_noise(view, "gradients_out"), added_noise(view, "features_out")) == (1e-3, 0.0)


@pytest.mark.parametrize(("protocol", "guest"), [("vfedsec", "passive1"), ("splitnn", "client2")])
def test_noise_on_gradients_hides_labels(protocol: str, guest: str) -> None:
    settings = {"epochs": 1, "randomness": "seed"} if protocol == "vfedsec" else {"max_epochs": 1}
    data, found = va.load_dataset(CANCER, parties=3), []
    adversary = va.Adversary(corrupts={guest}, knows=[va.ClassPriors()])
    for sigma in (0.0, 1.0):
        noise = GaussianNoise(sigma=sigma, at="gradients_out")
        run = va.load_protocol(protocol, batch_size=64, **settings).run(data, seed=0, defenses=[noise])
        found.append(va.LabelInference().score(run, LabelFromGradient().run(run.view(adversary), seed=0)).score)
    assert found[0] > 0.95 and abs(found[1] - 0.5) < 0.15


# Controls


@pytest.mark.parametrize("corrupts", [SERVER, WITH_ACTIVE, WITH_FELLOW])
@pytest.mark.parametrize("settings", [{}, {"hidden": 16, "epochs": 2}, {"model": "mlp"}], ids=str)
def test_made_up_people_tell_nothing_and_are_never_verified(
    corrupts: tuple[str, ...], settings: dict[str, object]
) -> None:
    run = trained(protocol="ideal", **settings)
    for attack in (SecureLayerForward(), GradientAlgebra(), GradientAlgebra(forward=False)):
        for score in scores(attack, run, corrupts):
            assert score.interval[0] <= 0 and score.score < 0.1 and not score.verified
            if corrupts == SERVER:  # own columns are real, and correlate with the others' columns without any message
                assert score.metrics["abs_correlation"] < 0.2


def test_noise_on_the_output_is_noticed() -> None:
    """An answer that does not fit the messages is not called verified."""
    run = trained()
    view = run.view(va.Adversary(corrupts=WITH_ACTIVE))
    features = view.states["active"].features
    assert features is not None
    features.flags.writeable = True
    features += 0.01 * np.random.default_rng(0).standard_normal(features.shape)
    for attack in (SecureLayerForward(), GradientAlgebra()):
        assert attack.run(view).verified is False


def test_only_the_server_has_the_equations() -> None:
    view = trained().view(va.Adversary(corrupts={"active"}))
    for attack in (SecureLayerForward(), GradientAlgebra()):
        with pytest.raises(InputError, match="server"):
            attack.run(view)
