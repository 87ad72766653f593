"""The evaluation pipeline of Fig. 4."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import vflaudit as va
from vflaudit.protocols.tabvfl.evaluation import evaluate_latent, latent_quality
from vflaudit.protocols.tabvfl.protocol import TabVFL

SIX = {"logistic regression", "decision tree", "random forest", "mlp", "xgboost", "linear svm"}


def test_six_models_tell_separable_latents_from_noise() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=240)
    good = evaluate_latent(4 * np.eye(3)[labels] + rng.normal(size=(240, 3)), labels, seed=1)
    noise = evaluate_latent(rng.normal(size=(240, 3)), labels, seed=1)
    assert set(good.models) == SIX == set(noise.models)
    assert good.mean["accuracy"] > 0.9 and good.mean["f1"] > 0.9 and good.mean["roc_auc"] > 0.95
    assert abs(noise.mean["roc_auc"] - 0.5) < 0.12 and noise.mean["accuracy"] < 0.5
    for metric in ("accuracy", "f1", "roc_auc"):
        assert good.mean[metric] == pytest.approx(np.mean([scores[metric] for scores in good.models.values()]))


def test_two_classes_whatever_their_codes_and_the_same_seed_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(80) < 0.4, 7, 3)
    latent = labels[:, None] + rng.normal(size=(80, 2))
    first = evaluate_latent(latent, labels, seed=0)
    assert first == evaluate_latent(latent, labels, seed=0) != evaluate_latent(latent, labels, seed=1)
    assert first.mean["roc_auc"] > 0.9


def test_without_xgboost_there_are_five_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    labels = np.arange(40) % 2
    assert set(evaluate_latent(labels[:, None] + 0.0, labels).models) == SIX - {"xgboost"}


@pytest.mark.parametrize("variant", ["tabvfl", "ct", "lt", "le"])
def test_a_run_has_the_latents_of_all_rows_at_the_host(variant: str) -> None:
    data = va.load_dataset("iris", parties=2, aux=0.0)
    run = TabVFL(variant=variant, pretrain_epochs=1, finetune_epochs=1, steps=2, evaluate=variant == "tabvfl").run(data)
    secrets = run.states["host"].secrets
    assert secrets["latent"].shape == (150, 5) and sorted(secrets["latent_rows"]) == list(range(150))
    if variant == "tabvfl":
        mean = latent_quality(run, seed=0).mean
        assert {f"latent_{name}": value for name, value in mean.items()}.items() <= dict(run.utility).items()


def test_numbers_and_rare_classes_are_refused() -> None:
    run = TabVFL(pretrain_epochs=0, finetune_epochs=0).run(va.load_dataset("diabetes", parties=2))
    with pytest.raises(va.InputError, match="for classes"):
        latent_quality(run)
    with pytest.raises(va.InputError, match="evaluate=True"):
        TabVFL(pretrain_epochs=0, finetune_epochs=0, evaluate=True).run(va.load_dataset("diabetes", parties=2))
    with pytest.raises(va.InputError, match="eight rows"):
        evaluate_latent(np.zeros((20, 2)), np.array([0] * 15 + [1] * 5))
