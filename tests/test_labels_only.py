"""Features from labels alone: class means help as far as classes differ, and not at all where labels are made up."""

from __future__ import annotations

import numpy as np
import pytest

import attacks
import vflaudit as va
from vflaudit.errors import InputError

SETTINGS = {"randomness": "seed", "batch_size": 64, "epochs": 2}
SERVER = va.Adversary({"server"}, [va.DistributionSample(130)])


def advantage(protocol: str, data: str, **parameters: object) -> tuple[float, tuple[float, float]]:
    run = va.load_protocol(protocol, **SETTINGS, **parameters).run(va.load_dataset(data, parties=3), seed=0)
    guess = attacks.FeaturesFromLabels(party="passive3").run(run.view(SERVER), seed=0)
    score = va.Reconstruction(party="passive3").score(run, guess)
    return score.advantage, score.interval


def test_labels_tell_what_classes_tell() -> None:
    data = va.load_protocol("vfedsec").prepare(va.load_dataset("breast-cancer", parties=3))
    rows = data.aligned("train")
    rows = rows[data.block("passive3").present[rows]]
    x, y = data.block("passive3").values[rows], data.labels[rows]
    means = np.stack([x[y == c].mean(axis=0) for c in (0, 1)])[y]
    explained = float((1 - ((x - means) ** 2).sum(axis=0) / ((x - x.mean(axis=0)) ** 2).sum(axis=0)).mean())
    found, (low, _) = advantage("vfedsec", "breast-cancer")
    assert low > 0.1 and abs(found - explained) < 0.05


def test_numeric_labels_work_too() -> None:
    assert advantage("vfedsec", "diabetes", optimiser="adam")[0] > 0.01


def test_made_up_labels_tell_nothing() -> None:
    found, (low, high) = advantage("ideal", "breast-cancer", like="vfedsec")
    assert low <= 0.02 and high < 0.1 and found < 0.05


def test_it_says_what_it_needs() -> None:
    run = va.load_protocol("vfedsec", **SETTINGS).run(va.load_dataset("wine", parties=2), seed=0)
    with pytest.raises(InputError, match="other people with their labels"):
        attacks.FeaturesFromLabels().run(run.view(va.Adversary({"server"})), seed=0)
    with pytest.raises(InputError, match="vFedSec's server"):
        attacks.FeaturesFromLabels().run(run.view(va.Adversary({"passive1"}, [va.DistributionSample(20)])), seed=0)
