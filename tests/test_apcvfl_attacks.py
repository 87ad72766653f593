"""Attacks on representations and factors, with their controls; remedies for representations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from attacks.attribute import AttributeInference
from attacks.factors import FactorReconstruction, joint_table, table_of_gram
from attacks.isometry import IsometricAlignment, followed, nearest_rotation, transported
from attacks.known_samples import KnownSampleReconstruction
from defenses.representation import Quantisation, RandomRotation, RepresentationNoise
from vflaudit.accounting.gaussian import gaussian_epsilon
from vflaudit.core.randomness import stream
from vflaudit.core.transcript import Transcript
from vflaudit.errors import InputError
from vflaudit.protocols.apcvfl.autoencoders import Training, distance_correlation, fit_autoencoder

GAME = va.Reconstruction(party="passive1")
POPULATION = va.Adversary({"active"}, [va.DistributionSample(170)])
QUICK = {"folds": None, "randomness": "seed"}


def knowing(count):
    return va.Adversary({"active"}, [va.KnownSamples(count, with_ids=True)])


@pytest.fixture(scope="module")
def data():
    return va.load_dataset("breast-cancer", partition="apc-vfl", seed=0)


@pytest.fixture(scope="module")
def run(data):
    return va.load_protocol("apc-vfl", epochs=40, **QUICK).run(data, seed=0)


@pytest.fixture(scope="module")
def ideal(data):
    return va.load_protocol("ideal", like="apc-vfl", epochs=40, **QUICK).run(data, seed=0)


@pytest.fixture(scope="module")
def vfedtrans(data):
    return va.load_protocol("vfedtrans", epochs=1, **QUICK).run(data, seed=0)


def score(target, attack, adversary, game=GAME):
    return game.score(target, attack.run(target.view(adversary), seed=target.seed))


def with_messages(target, change):
    """The same run, its representations changed."""
    other = Transcript()
    for message in target.transcript:
        if message.kind == "representation":
            message = replace(message, arrays={"values": change(np.array(message.arrays["values"]))})
        other.append(message)
    return replace(target, transcript=other)


# --- nobody known: isometric alignment ----------------------------------------------------------------------


def test_population_alone_turns_representations_back(run):
    found = score(run, IsometricAlignment(party="passive1"), POPULATION)
    assert found.interval[0] > 0.1 and found.notes["trust"]["passive1"] > 0.8


def test_alignment_gains_nothing_from_an_ideal_protocol(ideal):
    found = score(ideal, IsometricAlignment(party="passive1"), POPULATION)
    assert found.interval[0] <= 0 and found.notes["trust"]["passive1"] < 0.4


def test_alignment_gains_nothing_from_rows_in_another_order(run):
    """The cloud is the same to the last point; only whose point it is has changed."""
    permuted = with_messages(run, lambda values: stream(0, "permuted").permutation(values))
    found = score(permuted, IsometricAlignment(party="passive1"), POPULATION)
    assert found.interval[0] <= 0 and found.notes["trust"]["passive1"] < 0.4


def test_alignment_survives_any_rotation_and_scale(run):
    """What it uses does not depend on which of the infinitely many encoders it was."""
    turn = np.linalg.qr(stream(1, "turn").standard_normal((256, 256)))[0]
    turned = with_messages(run, lambda values: 7 * values @ turn + 3)
    plain, other = (score(r, IsometricAlignment(party="passive1"), POPULATION).score for r in (run, turned))
    assert other == pytest.approx(plain, abs=0.02)


def test_alignment_of_a_constant_message_is_the_regression(run):
    found = score(with_messages(run, np.zeros_like), IsometricAlignment(party="passive1", halves=1), POPULATION)
    assert found.notes["trust"]["passive1"] == 0 and abs(found.advantage) < 0.05


def test_alignment_says_what_it_needs(run):
    with pytest.raises(InputError, match="other rows of the same population"):
        IsometricAlignment().run(run.view(knowing(5)))


@given(rows=st.integers(30, 60), width=st.integers(1, 5), seed=st.integers(0, 99))
def test_transport_gives_the_wanted_covariance_and_leaves_a_match_alone(rows, width, seed):
    rng = np.random.default_rng(seed)
    x, y = (
        rng.standard_normal((rows, width)),
        rng.standard_normal((2 * rows, width)) @ rng.standard_normal((width,) * 2),
    )
    moved = transported(x, y)
    np.testing.assert_allclose(moved.T @ moved / rows, y.T @ y / len(y), atol=1e-4)
    np.testing.assert_allclose(transported(x, x), x, atol=1e-6)


@given(width=st.integers(1, 6), seed=st.integers(0, 99))
def test_nearest_rotation_is_one_and_keeps_rotations(width, seed):
    matrix = np.random.default_rng(seed).standard_normal((width, width))
    turn = nearest_rotation(matrix)
    np.testing.assert_allclose(turn @ turn.T, np.eye(width), atol=1e-9)
    np.testing.assert_allclose(nearest_rotation(3 * turn), turn, atol=1e-9)


def test_trust_is_one_for_the_truth_and_small_for_noise_and_for_idle_regressions():
    rng = stream(0, "trust")
    signal = rng.standard_normal((4000, 3))
    truth = signal + rng.standard_normal((4000, 3))
    ones = np.ones(3)
    assert followed(truth, signal, ones, 2 * ones) == pytest.approx(1, abs=0.08)
    assert followed(rng.permutation(truth), signal, ones, 2 * ones) < 0.08
    assert followed(truth, 1e-3 * signal, 1e-6 * ones, 2 * ones) < 0.05


# --- known people -------------------------------------------------------------------------------------------


def test_ten_known_people_undo_an_encoder_and_ideal_messages_stay_closed(run, ideal):
    method = KnownSampleReconstruction(party="passive1")
    few, many = (score(run, method, knowing(count)) for count in (2, 30))
    assert few.score < 0.5 < 0.9 < many.score and many.interval[0] > 0.1
    assert score(ideal, method, knowing(30)).interval[0] <= 0


# --- one attribute ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people():
    return va.load_dataset("synthetic:shape=adult,rows=700", partition="vfedsec", seed=0)


def test_attribute_is_told_by_representations_and_not_by_ideal_messages(people):
    gains = {}
    for name, more in (("apc-vfl", {}), ("ideal", {"like": "apc-vfl"})):
        target = va.load_protocol(name, epochs=15, **QUICK, **more).run(people, seed=0)
        found = score(target, AttributeInference(party="passive1", column="relationship"), knowing(60)).metrics
        right, without = (found[f"category_accuracy{part}_by_column"]["relationship"] for part in ("", "_baseline"))
        shares = target.data.block("passive1").values[:, target.data.block("passive1").groups()["relationship"]]
        assert without > 0.9 * shares.mean(axis=0).max()  # never less than the most frequent category
        gains[name] = right - without
    assert gains["apc-vfl"] > 0.3 and gains["ideal"] < 0.05


def test_attribute_guess_is_one_category_and_says_nothing_else(people):
    target = va.load_protocol("apc-vfl", epochs=2, **QUICK).run(people, seed=0)
    made = AttributeInference(party="passive1", column="race").run(target.view(knowing(30))).features["passive1"]
    at = target.data.block("passive1").groups()["race"]
    assert set(np.unique(made.values[:, at])) <= {0.0, 1.0} and (made.values[:, at].sum(axis=1) == 1).all()
    rest = np.delete(made.values, at, axis=1)
    assert np.ptp(rest, axis=0).max() < 1e-9


def test_attribute_names_what_it_cannot_find(people, run):
    target = va.load_protocol("apc-vfl", epochs=1, **QUICK).run(people, seed=0)
    with pytest.raises(InputError, match="relationship"):
        AttributeInference(party="passive1", column="relationshp").run(target.view(knowing(30)))
    with pytest.raises(InputError, match="needs a categorical column"):
        AttributeInference().run(run.view(knowing(30)))


# --- FedSVD and VFedPCA -------------------------------------------------------------------------------------


def test_factors_are_the_passive_table_up_to_a_rotation(vfedtrans):
    sent, exact = joint_table(vfedtrans.view(va.Adversary({"active"})))
    truth = vfedtrans.data.block("passive1").values[sent.rows]
    assert exact and sent.values.shape == truth.shape
    np.testing.assert_allclose(sent.values @ sent.values.T, truth @ truth.T, atol=1e-5)


@given(rows=st.integers(4, 20), width=st.integers(1, 4), seed=st.integers(0, 99))
def test_table_of_gram_has_its_products(rows, width, seed):
    table = np.random.default_rng(seed).standard_normal((rows, width))
    gram = table @ table.T
    found = table_of_gram(gram, width)
    np.testing.assert_allclose(found @ found.T, gram, atol=1e-8)


def test_known_people_undo_the_rotation_exactly(vfedtrans):
    found = score(vfedtrans, FactorReconstruction(party="passive1"), knowing(28))
    assert found.score > 0.9999 and found.verified


def test_population_undoes_it_in_part(vfedtrans):
    assert score(vfedtrans, FactorReconstruction(party="passive1"), POPULATION).interval[0] > 0.1


@pytest.mark.parametrize("settings", [{"send_values": False}, {"representation": "vfedpca"}], ids=str)
def test_known_people_undo_factors_without_singular_values(data, settings):
    target = va.load_protocol("vfedtrans", epochs=1, **settings, **QUICK).run(data, seed=0)
    assert score(target, FactorReconstruction(party="passive1"), knowing(40)).score > 0.99
    with pytest.raises(InputError, match="singular values"):
        FactorReconstruction().run(target.view(POPULATION))


@pytest.mark.parametrize("adversary", [knowing(28), POPULATION], ids=str)
def test_ideal_factors_give_nothing(data, adversary):
    target = va.load_protocol("ideal", like="vfedtrans", epochs=1, **QUICK).run(data, seed=0)
    assert score(target, FactorReconstruction(party="passive1"), adversary).interval[0] <= 0


def test_factor_attack_says_what_it_needs(run, vfedtrans):
    with pytest.raises(InputError, match="FedSVD or VFedPCA"):
        FactorReconstruction().run(run.view(knowing(5)))
    with pytest.raises(InputError, match="known samples with their ids"):
        FactorReconstruction().run(vfedtrans.view(va.Adversary({"active"})))


# --- remedies -----------------------------------------------------------------------------------------------


def test_rotation_keeps_distances_and_is_the_same_for_all_messages_of_a_run():
    values = stream(0, "z").standard_normal((20, 6))
    rng = stream(5, "defense")
    first, second = (RandomRotation().apply(values, rng) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first @ first.T, values @ values.T, atol=1e-9)
    assert not np.allclose(first, RandomRotation().apply(values, stream(6, "defense")))


def test_rotation_does_not_cost_accuracy(data):
    """New rows are turned by the same matrix as the rows that were trained on."""
    settings = {"variant": "collaborative", "epochs": 30, **QUICK}
    plain, turned = (
        va.load_protocol("apc-vfl", **settings).run(data, seed=0, defenses=defenses).utility["accuracy"]
        for defenses in ([], [RandomRotation()])
    )
    assert turned > plain - 0.08


@given(bits=st.integers(1, 8), seed=st.integers(0, 99))
def test_quantisation_leaves_so_many_levels_near_the_value(bits, seed):
    values = np.random.default_rng(seed).standard_normal((300, 3))
    values[:, 2] = 1.5
    out = Quantisation(bits=bits).apply(values, stream(0, "unused"))
    assert max(len(np.unique(column)) for column in out.T) <= 2**bits
    assert (out[:, 2] == 1.5).all()
    near = np.abs(values - values.mean(axis=0)) <= 3 * values.std(axis=0)
    step = 6 * values.std(axis=0) / 2**bits
    assert (np.abs(out - values) <= step / 2 + 1e-9)[near].all()


def test_representation_noise_has_the_epsilon_that_it_says():
    values = np.full((4000, 4), 9.0)  # clipped to a length of 2
    out = RepresentationNoise(epsilon=3.0, delta=1e-5).apply(values, stream(0, "noise"))
    assert out.mean() == pytest.approx(1.0, abs=0.1)
    assert gaussian_epsilon(float(out.std()), 2 * 2.0, 1e-5) == pytest.approx(3.0, rel=0.05)
    assert RepresentationNoise.hook == "features_out"


def test_distance_correlation_by_hand_and_at_its_ends():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3))
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]

    def measured(a, b):
        return float(distance_correlation(torch.from_numpy(a), torch.from_numpy(b)))

    assert measured(x, 5 * x @ turn + 1) == pytest.approx(1.0, abs=1e-4)
    assert measured(x, rng.standard_normal((40, 3))) < 0.6
    y = np.abs(x[:, :1])
    a, b = (np.linalg.norm(v[:, None] - v[None], axis=2) for v in (x, y))
    a, b = (d - d.mean(0) - d.mean(1, keepdims=True) + d.mean() for d in (a, b))
    assert measured(x, y) == pytest.approx(np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean())), abs=1e-4)


def test_decorrelation_lowers_the_distance_correlation_of_what_is_sent(data):
    values = data.block("client2").values
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    found = {}
    for weight in (0.0, 3.0):
        model = fit_autoencoder(values, (32, 40), "selu", Training(epochs=10, decorrelation=weight), 0, "g1")
        found[weight] = float(distance_correlation(torch.from_numpy(values), torch.from_numpy(model.encode(values))))
    assert found[3.0] < found[0.0] - 0.1


def test_no_decorrelation_changes_nothing(data):
    plain, zero = (
        va.load_protocol("apc-vfl", epochs=1, **QUICK, **more).run(data, seed=0).transcript.digest()
        for more in ({}, {"decorrelation": 0.0})
    )
    assert plain == zero
    other = va.load_protocol("apc-vfl", epochs=1, decorrelation=1.0, **QUICK).run(data, seed=0)
    assert other.transcript.digest() != plain
