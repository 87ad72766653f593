"""TabVFL's claims: that their experiments are possible, what they count, that verdicts follow the numbers."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import vflaudit as va
from vflaudit.claims.base import Measured
from vflaudit.claims.tabvfl import CLAIMS, numbers
from vflaudit.claims.tabvfl.targets import CANCER, CHANCES, REAL, design, failing, source
from vflaudit.lab.experiment import prepare
from vflaudit.lab.perform import check, perform
from vflaudit.lab.store import Store
from vflaudit.lab.suite import load_suite
from vflaudit.lab.suites import QUICK
from vflaudit.report.audit import load_audit
from vflaudit.report.markdown import render_markdown

draw = importlib.import_module("vflaudit.claims.tabvfl.figures")  # the package's `figures` is its function
EXPERIMENTS = {e.model_dump_json(): e for claim in CLAIMS for part in claim.evidence for e in part.experiments}
LATENT, REMEDIES = (QUICK.with_name(f"tabvfl_{name}.toml") for name in ("latent", "remedies"))
TINY = {"pretrain_epochs": 1, "finetune_epochs": 1, "patience": None}


def test_claims_have_names_of_their_own_and_say_where_they_were_measured():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.paper == "tabvfl" and claim.evidence and claim.measured_on and claim.refuted_if


def test_every_experiment_can_be_set_up():
    loaded = {}
    for experiment in EXPERIMENTS.values():
        assert prepare(experiment).protocol.name == "tabvfl"
        if experiment.data == CANCER:
            data = loaded.setdefault(experiment.parties, experiment.load_data())
            check(experiment, data)


def test_data_is_cut_as_in_the_paper_only_where_it_is_big():
    assert source("covtype", 50) == "covtype:one_hot=true,rows=50" and source(CANCER) == CANCER
    assert set(REAL) <= {"bank", "covtype"}


def test_fast_suite_is_smaller_and_keeps_the_rest():
    whole, fast = load_suite(str(LATENT)), load_suite(str(LATENT), 2, fast=True)
    assert len(whole.experiments) / whole.seeds == len(fast.experiments) / 2 == 32
    assert all(e.rows is None and "learning_rate" not in e.set for e in whole.experiments)
    for experiment in fast.experiments:
        prepare(experiment)
        assert experiment.rows == 3000 and experiment.set["evaluate"] and experiment.set["learning_rate"] == 0.02


def test_suite_has_the_papers_number_for_every_design_that_it_prints():
    suite = load_suite(str(LATENT), 1)
    told = {(p.data, p.set["variant"], p.set["latent"]): p.value for p in suite.published}
    ran = {(e.data, e.set["variant"], e.set["latent"]) for e in suite.experiments}
    assert len(told) == len(suite.published) == 30 and set(told) < ran
    assert ran - set(told) == {(data, "le", 5) for data in ("bank", "covtype:one_hot=true,rows=50000")}
    assert told["bank", "tabvfl", 5] == 0.885 and told["bank", "lt", 64] == 0.882


def test_remedies_suite_names_parameters_that_exist():
    suite = load_suite(str(REMEDIES), 1)
    assert {e.control for e in suite.experiments} == {None, "positive", "negative"}
    for experiment in suite.experiments:
        if experiment.attack != "blind-unmixing":
            prepare(experiment)


def test_report_puts_the_papers_numbers_beside_what_was_measured(tmp_path):
    text = f"""
summary = "x"
[[experiment]]
protocol = "tabvfl"
attack = "random-guess"
control = "negative"
parties = 2
set = {{ variant = "ct", pretrain_epochs = 0, finetune_epochs = 1, latent = 2 }}
[[published]]
source = "Table X"
protocol = "tabvfl"
data = "{CANCER}"
set = {{ variant = "ct" }}
metric = "accuracy"
value = 0.123
[[published]]
source = "Table Y"
protocol = "tabvfl"
data = "{CANCER}"
set = {{ variant = "lt" }}
metric = "accuracy"
value = 0.456
"""
    path = tmp_path / "small.toml"
    path.write_text(text)
    suite, store, keys, values = load_suite(str(path), 2), Store(tmp_path / "out"), [], []
    for experiment in suite.experiments:
        ((_, result, timing),) = perform([experiment])
        store.write(result, timing)
        keys.append(result.key)
        values.append(result.utility["accuracy"])
    store.begin("small", keys, {"published": [number.model_dump() for number in suite.published]})
    audit = load_audit(tmp_path / "out")
    (beside,) = audit.published
    assert beside.paper == 0.123 and beside.here == pytest.approx(np.mean(values)) and beside.seeds == 2
    assert "Table X" in render_markdown(audit) and "Table Y" not in render_markdown(audit)


@pytest.fixture(scope="module")
def runs():
    """TabVFL with the FC layer and without, after one epoch."""
    data = va.load_dataset(CANCER, parties=5, partition="equal-blocks", shares=(0.7, 0.15, 0.15), seed=0)
    return {fc: va.load_protocol("tabvfl", fc=fc, **TINY).run(data, seed=0) for fc in (True, False)}


def test_columns_are_sent_as_they_are_only_without_the_layer(runs, monkeypatch):
    monkeypatch.setattr(numbers, "watched_run", lambda seed, fc=True: runs[fc])
    assert numbers.copied(0, fc=False) == 1 and numbers.copied(0, fc=True) == 0


def test_decoder_outputs_are_those_of_the_training_rows(runs):
    rows, outputs = numbers.decoder_outputs(runs[True])
    assert outputs.shape == (len(rows), 5) and np.allclose(outputs.mean(axis=0), 0, atol=1e-6)
    message = next(m for m in runs[True].transcript.select(receiver="guest2", kind="decoded") if m.rows[0] == rows[0])
    at = np.searchsorted(rows, message.rows)
    assert np.corrcoef(outputs[at, 1], message.arrays["values"][:, 0])[0, 1] > 0.999


def test_traffic_has_the_ratios_of_table_v():
    """106 numbers per row against 25 against 5, in both directions; headers of messages blur it a little."""
    assert numbers.byte_ratio(0, "tabvfl", "le", "tuning") == pytest.approx(106 / 25, rel=0.03)
    assert numbers.byte_ratio(0, "le", "lt", "tuning") == pytest.approx(25 / 5, rel=0.05)
    assert numbers.byte_ratio(0, "tabvfl", "le", "pretraining") > 1


def fake(key="k", **fields):
    return SimpleNamespace(
        key=key, adversary="host", utility=fields.get("utility", {}), metrics=fields.get("metrics", {})
    )


def test_correlation_is_squared_and_categories_are_averaged():
    found = fake(
        metrics={
            "abs_correlation": 0.9,
            "category_accuracy_by_column": {"job": 0.9, "loan": 1.0},
            "category_accuracy_baseline_by_column": {"job": 0.3, "loan": 0.8},
        }
    )
    for kind, value in ((numbers.UpToSign, 0.81), (numbers.Categories, 0.4)):
        assert kind("x", design(CANCER)).measured(lambda e, seed: found, (0, 1)).values == pytest.approx((value, value))


def test_best_gain_is_relative_and_of_the_best_dataset():
    told = {("tabvfl", CANCER): 0.9, ("lt", CANCER): 0.9, ("tabvfl", "wine"): 0.6, ("lt", "wine"): 0.5}
    pairs = tuple((design(name), design(name, "lt")) for name in (CANCER, "wine"))
    best = numbers.BestGain("x", pairs, lambda r: r.utility["f1"], within_paper=False)
    found = best.measured(lambda e, seed: fake(utility={"f1": told[e.set["variant"], e.data]}), (0, 1))
    assert found.values == pytest.approx((0.2, 0.2)) and len(best.experiments) == 4


@pytest.mark.parametrize(
    ("id", "values", "within_paper", "verdict"),
    [
        ("fc-hides", (0.99, 0.98, 0.99), True, "refuted"),
        ("fc-hides", (0.0, 0.01, 0.02), True, "upheld"),
        ("fc-mitigates", (0.0, 0.001, 0.0), True, "refuted"),
        ("bn-alone-leaks", (1.0, 1.0, 1.0), True, "upheld"),
        ("better-than-local", (-0.02, -0.021, -0.02), False, "conditional"),
        ("better-than-local", (0.02, 0.021, 0.02), False, "upheld"),
        ("cache-beats-zeros", (0.02, -0.02, 0.0), False, "inconclusive"),
        ("more-traffic", (0.9, 0.9, 0.9), True, "refuted"),
    ],
)
def test_verdicts_follow_the_numbers(id, values, within_paper, verdict):
    (claim,) = [claim for claim in CLAIMS if claim.id == id]
    assert claim.rule.ruling([Measured("x", "host", "m", values, within_paper)]) == verdict


def test_figures_of_what_was_measured_have_its_numbers(tmp_path):
    store, keys = Store(tmp_path), []
    store.begin("nothing", [])
    assert draw.failures(tmp_path) is None and draw.latent_quality(tmp_path) is None
    asked = [design(CANCER, variant) for variant in ("tabvfl", "lt", "ct")] + [failing(CANCER, 0.0)]
    asked += [failing(CANCER, p, how) for p in CHANCES for how in ("cache", "zeros")]
    quick = asked[-1].model_copy(update={"set": {**asked[-1].set, **TINY}})
    ((_, made, timing),) = perform([quick])
    for number, experiment in enumerate(asked):
        told = {"experiment": experiment.model_dump(mode="json"), "utility": {"latent_f1": 0.1 + number / 100}}
        one = made.model_copy(update={**told, "key": f"{number:032x}"})
        store.write(one, timing)
        keys.append(one.key)
    store.begin("all", keys)
    assert "0.2: cache 0.140, zeros 0.150" in draw.failures(tmp_path).caption
    assert "Local TabNets 0.110, TabVFL 0.100, Central TabNet 0.120" in draw.latent_quality(tmp_path).caption


def test_measured_figures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "SEEDS", 1)
    monkeypatch.setattr(draw, "EPOCHS", (1, 3))
    monkeypatch.setattr(draw, "OBSERVED", {**TINY, "pretrain_epochs": 3})
    monkeypatch.setattr(draw, "SHORT", {**TINY, "pretrain_epochs": 3})
    monkeypatch.setattr(draw, "REMEDIES", {name: draw.REMEDIES[name] for name in ("as published", "masks withheld")})
    Store(tmp_path).begin("nothing", [])
    entries = draw.figures(tmp_path)
    assert [entry["file"] for entry in entries] == ["figures/epochs-observed.svg", "figures/remedies.svg"]
    assert all((tmp_path / entry["file"]).stat().st_size > 5000 and entry["caption"] for entry in entries)


def test_point_leaks_if_every_seed_does():
    def verdict(f1, gains):
        return draw.Point("x", (f1,) * 2, {"who": gains}).verdict("who", 0.95)

    assert verdict(0.95, (0.2, 0.3)) == "leaks" and verdict(0.95, (0.05, 0.3)) == "unsettled"
    assert verdict(0.95, (0.05, 0.01)) == "hides" and verdict(0.8, (0.05, 0.01)) == "costs too much"
