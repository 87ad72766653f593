"""The parts of RAP's claims: data that may be absent, tuned rates, costs on a network, a server without knowledge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vflaudit as va
from vflaudit.claims.base import Compared
from vflaudit.claims.check import FIRST_SEED, claims_of
from vflaudit.claims.rap import blind, categories, costs, data, tuning
from vflaudit.claims.rap.utility_figures import accuracies, by_clients
from vflaudit.core.costs import Network
from vflaudit.protocols import training


def test_absent_data_has_a_stand_in_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VFLAUDIT_DATA", raising=False)
    assert data.chosen(data.HIGGS).startswith("synthetic:")
    assert "synthetic:" in data.named(data.COVTYPE) and "in place of covtype" in data.named(data.COVTYPE)
    assert all("synthetic" in one.what for one in categories.clients())
    monkeypatch.setenv("VFLAUDIT_DATA", str(tmp_path))
    (tmp_path / "higgs_small").mkdir()
    (tmp_path / "higgs_small" / "binary.train").write_text("")
    assert data.chosen(data.HIGGS) == data.HIGGS and "in place" not in data.named(data.HIGGS)
    assert not data.here(data.COVTYPE)


def test_every_comparison_uses_tuned_rates_of_the_grid() -> None:
    compared = [e for claim in claims_of("rap") for e in claim.evidence if isinstance(e, Compared)]
    assert len(compared) >= 20
    for evidence in compared:
        for experiment in evidence.experiments:
            expected = tuning.RATES[experiment.data, experiment.set["model"]][experiment.protocol]
            assert experiment.set["learning_rate"] == expected and expected in training.GRID


def test_judged_seeds_are_not_tuning_seeds() -> None:
    assert tuning.FIRST_TUNING_SEED + max(tuning.SEEDS.values()) < FIRST_SEED
    pairs = {(data, model) for data in tuning.SEEDS for model in tuning.MODELS.get(data, ("mlp",))}
    assert pairs == set(tuning.RATES)
    assert all(set(rates) == set(tuning.METHODS[model]) for (_, model), rates in tuning.RATES.items())


def test_tuning_takes_the_best_validation_score_and_skips_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning.best_rate({3.0: -np.inf, 0.1: 0.7, 0.01: 0.9, 0.001: 0.9}) == 0.001
    monkeypatch.setattr(training, "GRID", (0.1, 1e-9))
    scores = tuning.validation_scores("iris", "centralized", "lr", range(2))
    assert set(scores) == {0.1, 1e-9} and tuning.best_rate(scores) == 0.1  # a step of 1e-9 learns nothing


@pytest.fixture
def small_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "WO", "synthetic:rows=400,features=6,task=regression")
    monkeypatch.setattr(costs, "BATCHES", {"1%": 40, "0.1%": 20})
    costs.training_costs.cache_clear()
    yield
    costs.training_costs.cache_clear()


def test_speed_is_of_training_alone_and_follows_the_network(small_costs: None) -> None:
    rap, split = (costs.training_costs(name, "1%", 0) for name in ("rap", "splitnn"))
    assert rap.rounds == 1 and split.rounds == 4 * 10 * costs.EPOCHS  # four a batch, and nothing is served
    assert split.critical_bytes > 10 * rap.critical_bytes
    assert costs.speed_up_wan(0) > costs.speed_up(0) and costs.wan_over_lan(0) > 1
    slow = Network("slow", costs.latency_for(10, 0), Network.LAN.bandwidth_bits_per_s)
    assert slow.seconds(split) / slow.seconds(rap) == pytest.approx(10)
    assert costs.training_costs("splitnn", "0.1%", 0).rounds == 2 * split.rounds
    assert costs.speed_up_lan_small_batches(0) > 0


def test_matched_correlation_ignores_order_sign_and_scale() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((300, 4))
    assert blind.matched_correlation(truth, truth[:, [2, 0, 3, 1]] * [-3, 0.1, 5, -1]) == pytest.approx(1)
    assert blind.matched_correlation(truth, rng.standard_normal((300, 4))) < 0.2


def test_a_server_that_knows_nothing_finds_independent_skewed_columns_but_not_gaussian_ones() -> None:
    skewed = [blind.separated_columns(s, "synthetic:rows=1500,features=16,skew=1,correlation=0") for s in range(3)]
    gaussian = [blind.separated_columns(s, "synthetic:rows=1500,features=16,correlation=0") for s in range(3)]
    assert min(skewed) > 0.2 and abs(np.mean(gaussian)) < 0.1


def test_equal_categories_look_equal_and_codes_pair_without_knowledge() -> None:
    names = [
        c.name
        for c in va.load_dataset("synthetic:rows=300,features=2,categorical=2", parties=1).blocks["client1"].columns
    ]
    client = categories.CategoricalClient("small", "synthetic:rows=300,features=2,categorical=2", tuple(names[2:]))
    assert blind.grouped_people(0, client) == pytest.approx(1)
    assert blind.paired_codes(0, "wine") > 0.5


def test_the_figure_of_clients_needs_results(tmp_path: Path) -> None:
    assert by_clients(tmp_path) is None and accuracies([]) == {}
