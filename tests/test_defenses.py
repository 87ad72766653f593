"""Noise is added where, by whom and as much as it says."""

from __future__ import annotations

import numpy as np
import pytest

import defenses
import vflaudit as va
from attacks.inversion import RepresentationInversion
from attacks.known_samples import KnownSampleReconstruction
from defenses.base import Defense, Protection
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.adversary import Adversary
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Run

KNOWING = Adversary({"server"}, [va.KnownSamples(40, with_ids=True)])


def central(data: VerticalDataset, *defences: Defense, seed: int = 0) -> Run:
    return va.load_protocol("centralized", max_epochs=1, hidden=2).run(data, seed=seed, defenses=defences)


def noise_of(run: Run, plain: Run, party: str) -> Array:
    (noisy,), (clean,) = (list(each.transcript.select(sender=party)) for each in (run, plain))
    return noisy.arrays["values"].astype(np.float64) - clean.arrays["values"]


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
def test_noise_has_its_deviation(cancer: VerticalDataset, sigma: float) -> None:
    plain, run = central(cancer), central(cancer, GaussianNoise(sigma=sigma))
    for party in cancer.parties:
        noise = noise_of(run, plain, party)
        assert noise.std() == pytest.approx(sigma, rel=0.1) and abs(noise.mean()) < 0.1 * sigma
        assert np.abs(np.corrcoef(noise.T) - np.eye(noise.shape[1])).max() < 0.25  # independent over columns
    assert run.data.blocks["client1"] is not plain.data.blocks["client1"]
    np.testing.assert_array_equal(run.data.blocks["client1"].values, plain.data.blocks["client1"].values)


def test_no_noise_is_no_change(cancer: VerticalDataset) -> None:
    assert central(cancer, GaussianNoise(sigma=0)).transcript.digest() == central(cancer).transcript.digest()


def test_every_party_has_its_own_noise(cancer: VerticalDataset) -> None:
    plain, run = central(cancer), central(cancer, GaussianNoise(sigma=1.0))
    width = min(block.width for block in cancer.blocks.values())
    noise = [noise_of(run, plain, party)[:, :width].ravel() for party in cancer.parties]
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.1
    again, other = central(cancer, GaussianNoise(sigma=1.0)), central(cancer, GaussianNoise(sigma=1.0), seed=1)
    np.testing.assert_array_equal(noise_of(again, plain, "client1"), noise_of(run, plain, "client1"))
    assert np.abs(noise_of(other, plain, "client1") - noise_of(run, plain, "client1")).min() > 0


def test_a_party_is_not_shifted_by_the_others() -> None:
    """The noise of a party depends on its own name and what it sent before, not on who else took part."""
    values = np.zeros((50, 3))
    alone, crowd = Protection([GaussianNoise()], 0), Protection([GaussianNoise()], 0)
    crowd("features_out", "client1", values)
    np.testing.assert_array_equal(alone("features_out", "client2", values), crowd("features_out", "client2", values))
    fresh = alone("features_out", "client2", values)  # and is new every time
    assert np.abs(np.corrcoef(fresh.ravel(), crowd("features_out", "client1", values).ravel())[0, 1]) < 0.3
    assert (fresh != Protection([GaussianNoise()], 0)("features_out", "client2", values)).all()


def test_defenses_add_up_and_hooks_are_told_apart() -> None:
    values = np.zeros((4000, 2), dtype=np.float32)
    twice = Protection([GaussianNoise(sigma=3.0), GaussianNoise(sigma=4.0)], 0)
    out = twice("features_out", "client1", values)
    assert out.std() == pytest.approx(5.0, rel=0.05) and out.dtype == np.float32
    assert twice("gradients_out", "server", values) is values
    assert (values == 0).all()


def test_noise_is_fresh_in_every_batch(cancer: VerticalDataset) -> None:
    protocol = va.load_protocol("splitnn", max_epochs=2, hidden=8, learning_rate=1e-12)
    plain, run = (protocol.run(cancer, defenses=chosen) for chosen in ((), (GaussianNoise(sigma=1.0),)))
    first, second = (
        {int(row): value for m in run.transcript.select(sender="client1", epoch=epoch) for row, value in _rows(m)}
        for epoch in (0, 1)
    )
    clean = {int(row): value for m in plain.transcript.select(sender="client1", epoch=0) for row, value in _rows(m)}
    noise = np.array([[first[row] - clean[row], second[row] - clean[row]] for row in clean])
    assert noise.std() == pytest.approx(1.0, rel=0.1)
    assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]) < 0.15
    served = [m for m in run.transcript.select(sender="client1") if m.epoch is None]
    assert len(served) == 2 and min(m.arrays["values"].min() for m in served) < 0  # also when it predicts


def _rows(message: va.Message) -> list[tuple[int, Array]]:
    assert message.rows is not None
    return list(zip(message.rows, message.arrays["values"], strict=True))


@pytest.mark.parametrize(
    "attack", [RepresentationInversion(party="client1"), KnownSampleReconstruction(party="client1")]
)
def test_noise_weakens_the_attack(cancer: VerticalDataset, attack: RepresentationInversion) -> None:
    scores = []
    for sigma in (0.0, 0.5, 2.0, 100.0):
        run = va.load_protocol("splitnn", max_epochs=2).run(cancer, defenses=[GaussianNoise(sigma=sigma)])
        scores.append(va.Reconstruction(party="client1").score(run, attack.run(run.view(KNOWING))).score)
    assert scores[0] > scores[1] > scores[2] and scores[0] > 0.7 and scores[2] < 0.5 and scores[3] < 0.1


def test_noise_costs_accuracy(cancer: VerticalDataset) -> None:
    loud = va.load_protocol("centralized", max_epochs=20).run(cancer, defenses=[GaussianNoise(sigma=100.0)])
    assert loud.utility["accuracy"] < 0.85


def test_the_adversary_is_told(cancer: VerticalDataset) -> None:
    run = central(cancer, GaussianNoise(sigma=0.5))
    assert run.view(KNOWING).spec.parameters["defenses"] == [
        {"name": "gaussian-noise", "at": "features_out", "sigma": 0.5}
    ]


ON_GRADIENTS = GaussianNoise(sigma=0.5, at="gradients_out")


class OnlyElsewhere(GaussianNoise):
    """Noise for another protocol."""

    applies_to = ("rap",)


@pytest.mark.parametrize(
    ("protocol", "defense"),
    [("local", GaussianNoise()), ("centralized", ON_GRADIENTS), ("splitnn", OnlyElsewhere())],
)
def test_a_defense_that_does_not_apply_is_refused(cancer: VerticalDataset, protocol: str, defense: Defense) -> None:
    with pytest.raises(va.InputError, match=f"'gaussian-noise' does not apply to protocol '{protocol}'"):
        va.load_protocol(protocol).run(cancer, defenses=[defense])


def test_noise_on_gradients_reaches_the_clients(cancer: VerticalDataset) -> None:
    protocol = va.load_protocol("splitnn", max_epochs=1, hidden=8, batch_size=1000)
    plain, run = protocol.run(cancer), protocol.run(cancer, defenses=[ON_GRADIENTS])
    (noisy,), (clean,) = (list(each.transcript.select(receiver="client1")) for each in (run, plain))
    assert (noisy.arrays["values"] - clean.arrays["values"]).std() == pytest.approx(0.5, rel=0.1)
    parameters = (each.states["client1"].parameters["0.weight"] for each in (run, plain))
    assert np.abs(np.subtract(*parameters)).max() > 1e-3


def test_bad_noise() -> None:
    from vflaudit.core.config import configure

    with pytest.raises(va.InputError, match=r"sigma=.?-1"):
        configure(GaussianNoise, {"sigma": "-1"}, "defense 'gaussian-noise'")
    with pytest.raises(va.InputError, match="features_out"):
        configure(GaussianNoise, {"at": "labels_out"}, "defense 'gaussian-noise'")
    assert defenses.GaussianNoise is GaussianNoise
