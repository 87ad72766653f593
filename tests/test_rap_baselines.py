"""RAP's table 1 baselines (noise, encryption) and section 3's applications."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attacks
import vflaudit as va
from attacks.label_codes import LabelCodePairing
from vflaudit.accounting.gaussian import gaussian_delta, gaussian_deviation
from vflaudit.core.dataset import VerticalDataset
from vflaudit.protocols.he_enclave import HEEnclave, _public, _secret, seal, unseal
from vflaudit.protocols.ldp import LDP
from vflaudit.protocols.rap.applications import (
    anomaly_agreement,
    applications,
    distances,
    kmeans_agreement,
    neighbour_agreement,
)
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter

FAST = {"max_epochs": 10, "hidden": 32}


@pytest.fixture(scope="module")
def small() -> VerticalDataset:
    return va.load_dataset("synthetic:rows=120,features=5,categorical=1", parties=2)


# --- local differential privacy -----------------------------------------------------------------------------


@given(st.floats(0.01, 50), st.floats(-10, -1), st.floats(0.1, 100))
def test_the_gaussian_is_calibrated_exactly(epsilon: float, log_delta: float, sensitivity: float) -> None:
    delta = 10.0**log_delta
    deviation = gaussian_deviation(sensitivity, epsilon, delta)
    assert gaussian_delta(deviation, sensitivity, epsilon) <= delta * (1 + 1e-9)
    assert gaussian_delta(deviation * 0.999, sensitivity, epsilon) > delta


def test_the_calibration_agrees_with_the_divergence_itself() -> None:
    for epsilon, delta in ((0.5, 1e-5), (1.0, 1e-5), (10.0, 1e-3)):
        deviation = gaussian_deviation(1.0, epsilon, delta)
        at = np.linspace(-12 * deviation, 1 + 12 * deviation, 2_000_001)
        here, there = (np.exp(-(((at - mean) / deviation) ** 2) / 2) for mean in (1.0, 0.0))
        excess = np.maximum(here - np.exp(epsilon) * there, 0.0).sum() * (at[1] - at[0])
        assert excess / (deviation * np.sqrt(2 * np.pi)) == pytest.approx(delta, rel=1e-4)
    assert gaussian_deviation(1.0, 1.0, 1e-5) < np.sqrt(2 * np.log(1.25e5))  # the classical bound is looser


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_rows_are_clipped_and_the_noise_has_its_scale(mechanism: str) -> None:
    protocol = LDP(mechanism=mechanism, epsilon=4.0, clip=2.0)
    values = np.tile([30.0, -40.0, 0.0], (40_000, 1))
    noisy = protocol.noisy(values, np.random.default_rng(0))
    order = 1 if mechanism == "laplace" else 2
    clipped = values[0] * 2.0 / np.linalg.norm(values[0], ord=order)
    spread = protocol.scale(3) * (np.sqrt(2) if mechanism == "laplace" else 1.0)
    np.testing.assert_allclose(noisy.mean(axis=0), clipped, atol=5 * spread / 200)
    np.testing.assert_allclose(noisy.std(axis=0), spread, rtol=0.03)
    if mechanism == "laplace":
        assert protocol.scale(3) == 2 * 2.0 / 4.0  # any two rows are neighbours: sensitivity is twice the norm


def test_less_epsilon_costs_accuracy_and_protects(cancer: VerticalDataset) -> None:
    accuracy, leak = {}, {}
    adversary = va.Adversary({"server"})
    for epsilon in (1.0, 1000.0):
        runs = [LDP(epsilon=epsilon, **FAST).run(cancer, seed=seed) for seed in range(3)]
        accuracy[epsilon] = np.mean([run.utility["accuracy"] for run in runs])
        sent = runs[0].view(adversary).sent_by("client1")
        truth = runs[0].data.blocks["client1"].values[sent.rows]
        leak[epsilon] = np.corrcoef(sent.values[:, 0], truth[:, 0])[0, 1]
    assert accuracy[1000.0] > 0.9 > accuracy[1.0] and leak[1000.0] > 0.9 and leak[1.0] < 0.3
    assert runs[0].spec.parameters["epsilon"] == 1000.0 and runs[0].costs.rounds == 1


def test_ldp_is_isolated_and_deterministic(small: VerticalDataset) -> None:
    protocol = LDP(mechanism="gaussian", max_epochs=1, hidden=4)
    assert_deterministic(protocol, small)
    assert_isolated(protocol.run(small), va.Adversary({"server"}))
    assert_secrets_do_not_matter(protocol.run(small), va.Adversary({"server", "client1"}))
    with pytest.raises(ValueError, match="epsilon"):
        LDP(epsilon=0)


# --- encryption for an enclave ------------------------------------------------------------------------------


def test_the_enclave_learns_what_centralized_learns_and_the_server_nothing(cancer: VerticalDataset) -> None:
    run = HEEnclave(**FAST).run(cancer, seed=0)
    assert run.utility["accuracy"] > 0.9 and run.costs.rounds == 3
    adversary = va.Adversary({"server"}, [va.KnownSamples(60, with_ids=True), va.ClassPriors()])
    view = run.view(adversary)
    for message in view.transcript:
        assert all(array.dtype == np.uint8 for array in message.arrays.values())
    for party in run.data.parties:
        sent = view.sent_by(party)
        assert sent.values.shape[1] == 4 * run.data.blocks[party].width + 16
        share = np.bincount(sent.values.astype(int).ravel(), minlength=256) / sent.values.size
        assert share.max() < 2.2 / 256  # bytes of a good cipher are uniform
    guess = attacks.KnownSampleReconstruction(party="client1").run(view, seed=0)
    score = va.Reconstruction(party="client1").score(run, guess)
    assert score.interval[0] <= 0 and not score.verified
    with pytest.raises(va.InputError, match="class codes"):
        LabelCodePairing().run(view)


def test_the_enclave_decrypts_what_was_sent_and_notices_changes() -> None:
    protocol, rng = HEEnclave(keys="os"), np.random.default_rng(0)
    one, other = protocol._key(0, "enclave"), protocol._key(0, "client1")
    secret = _secret(one, _public(other))
    assert secret == _secret(other, _public(one)) and protocol._key(0, "enclave") is not one
    values, rows = rng.standard_normal((20, 3)).astype("<f4"), np.arange(5, 25)
    sealed = seal(secret, values, rows, "client1 features")
    assert sealed.shape == (20, 28) and len(np.unique(seal(secret, values * 0, rows, "client1 features"), axis=0)) == 20
    np.testing.assert_array_equal(unseal(secret, sealed, rows, "client1 features", "<f4"), values)
    changed, moved = sealed.copy(), sealed[::-1]
    changed[3, 2] ^= 1
    for bad, what in ((changed, "client1 features"), (moved, "client1 features"), (sealed, "client2 features")):
        with pytest.raises(va.InputError, match="changed on its way"):
            unseal(secret, bad, rows, what, "<f4")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_enclave_run_is_isolated_and_deterministic(task: str) -> None:
    protocol = HEEnclave(max_epochs=1, hidden=4)
    for owner in ("label_owner", "client1"):
        data = va.load_dataset(f"synthetic:rows=80,features=4,task={task}", parties=2, overlap=0.9, label_owner=owner)
        assert_deterministic(protocol, data)
        run = protocol.run(data)
        assert_isolated(run, va.Adversary({"server"}))
        assert_secrets_do_not_matter(run, va.Adversary({"server", "client1"}))
        assert "private_key" in run.states["enclave"].parameters and not run.states["server"].parameters
    with pytest.raises(va.InputError, match="another party must own"):
        protocol.run(va.load_dataset("synthetic:rows=80,features=4", parties=2, label_owner="server"))


# --- applications (section 3) -------------------------------------------------------------------------------


def projected(width: int, seed: int, latent: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Four clusters in `width` columns (of a few hidden factors, or independent), and their projection."""
    rng = np.random.default_rng(seed)
    inner = latent or width
    values = rng.standard_normal((4, inner))[rng.integers(4, size=300)] * 1.5 + rng.standard_normal((300, inner))
    if latent:
        values = values @ rng.standard_normal((latent, width)) / np.sqrt(latent)
    return values, values @ rng.standard_normal((width, width)) / np.sqrt(width)


def agreements(width: int, latent: int | None) -> dict[str, float]:
    found: dict[str, list[float]] = {"anomaly": [], "kmeans": [], "neighbours": [], "distortion": []}
    for seed in range(5):
        x, t = projected(width, seed, latent)
        found["anomaly"].append(anomaly_agreement(x, t)["f1"])
        found["kmeans"].append(kmeans_agreement(x, t, clusters=4, seed=seed))
        found["neighbours"].append(neighbour_agreement(x, t))
        upper = np.triu_indices(len(x), 1)
        found["distortion"].append(float(np.std(distances(t)[upper] ** 2 / distances(x)[upper] ** 2)))
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_agreement_is_poor_for_few_columns_and_better_for_many() -> None:
    few, many = agreements(4, latent=4), agreements(256, latent=4)
    assert few["neighbours"] < 0.75 and few["anomaly"] < 0.8 and few["kmeans"] < 0.9
    for name in ("anomaly", "kmeans", "neighbours"):
        assert many[name] > few[name] + 0.1, (name, few, many)
    assert many["distortion"] < few["distortion"] / 3  # Corollary 2


def test_corollary_2_does_not_help_neighbours_of_independent_columns() -> None:
    few, many = agreements(16, latent=None), agreements(256, latent=None)
    assert many["distortion"] < few["distortion"] / 2  # distances are kept better and better,
    assert many["neighbours"] < 0.65  # but they also become more and more alike, so neighbours are not


def test_the_same_table_agrees_with_itself(cancer: VerticalDataset) -> None:
    values = cancer.blocks["client1"].values[:200]
    assert anomaly_agreement(values, values) == {"jaccard": 1.0, "f1": 1.0}
    assert kmeans_agreement(values, values) == 1.0
    for measure in ("euclidean", "inner-product", "angular"):
        assert neighbour_agreement(values, values, measure=measure) == 1.0
    noise = np.random.default_rng(0).standard_normal(values.shape)
    assert neighbour_agreement(values, noise) < 0.1 and abs(kmeans_agreement(values, noise)) < 0.1


def test_applications_of_a_run(cancer: VerticalDataset) -> None:
    found = applications(va.load_protocol("rap", max_epochs=1, hidden=4).run(cancer, seed=0))
    assert set(found) == {
        "anomaly_jaccard",
        "anomaly_f1",
        "kmeans_adjusted_rand",
        "neighbours_euclidean",
        "neighbours_inner_product",
        "neighbours_angular",
    }
    assert all(-0.5 <= value < 0.99 for value in found.values())
    with pytest.raises(va.InputError, match="no message"):
        applications(va.load_protocol("splitnn", max_epochs=1, hidden=4).run(cancer, seed=0))
    with pytest.raises(va.InputError, match="k=0"):
        neighbour_agreement(np.zeros((3, 1)), np.zeros((3, 1)), k=0)
