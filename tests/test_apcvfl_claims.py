"""APC-VFL's claims: what they count, that their experiments are possible, that verdicts follow the numbers."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from vflaudit.claims.apcvfl import CLAIMS, numbers
from vflaudit.claims.apcvfl.targets import JOINT, SIZES, SPLITNN
from vflaudit.claims.base import Measured
from vflaudit.lab.experiment import prepare
from vflaudit.lab.perform import perform
from vflaudit.lab.store import Store
from vflaudit.lab.suite import load_suite
from vflaudit.lab.suites import APC_VFL_REMEDIES

draw = importlib.import_module("vflaudit.claims.apcvfl.figures")  # the package's `figures` is its function
EXPERIMENTS = {e.model_dump_json(): e for claim in CLAIMS for part in claim.evidence for e in part.experiments}


def test_claims_have_names_of_their_own_and_say_where_they_were_measured():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.paper == "apc-vfl" and claim.evidence and claim.measured_on and claim.refuted_if


def test_every_experiment_can_be_set_up():
    for experiment in EXPERIMENTS.values():
        setup = prepare(experiment)
        assert setup.protocol.name == experiment.protocol


def test_every_experiment_of_the_suite_can_be_set_up():
    suite = load_suite(str(APC_VFL_REMEDIES))
    assert len(suite.experiments) > 30
    for experiment in suite.experiments:
        prepare(experiment)


def test_rounds_are_counted_on_the_wire():
    assert numbers.rounds_after_alignment(0) == 1
    assert numbers.rounds_of_alignment(0) == 3  # there, back, and what is shared
    assert numbers.all_rounds(0) == 4
    run = numbers.federated(0, "vfedtrans", **numbers.QUICK)
    assert numbers.rounds(run, alignment=False) > 1


def test_eq_10_gives_a_row_of_table_iii():
    """84 rounds are 21 epochs of two batches; 380 +- 60 for 200 training rows has no such whole number."""
    assert numbers.eq_10(21, 50) == 84
    assert numbers.eq_10(1, 32) == 2 and numbers.eq_10(1, 33) == 4


def test_nothing_follows_the_representations_unless_inference_is_collaborative():
    assert numbers.messages_to_classify(0) == 0
    together = numbers.federated(0, variant="collaborative", **numbers.QUICK)
    assert numbers.rounds(together, alignment=False) > 1


def test_ids_of_shared_rows_alone_are_learned():
    assert numbers.told_members(0) == 1
    assert numbers.told_strangers(0) == 0


def test_dictionary_attack_would_find_ids_that_are_sent_unblinded(monkeypatch):
    from vflaudit.protocols.psi import curve, diffie_hellman

    monkeypatch.setattr(diffie_hellman, "Blinding", lambda key: list)
    monkeypatch.setattr(curve, "Blinding", lambda key: list)
    assert numbers.told_strangers(0) == 1


def test_servers_of_the_rival_learn_what_they_can():
    assert numbers.fedsvd_together(0) > 0.999999
    assert numbers.fedsvd_apart(0) == 0
    assert numbers.vfedpca_server(0) > 0.9


def result(key="k", **utility):
    return SimpleNamespace(utility=utility, key=key, adversary="active", metrics={})


def test_contrast_adds_and_subtracts_seed_by_seed():
    a, b = JOINT[250], SPLITNN[250]
    told = {("apc-vfl", 0): 3.0, ("splitnn", 0): 1.0, ("apc-vfl", 1): 5.0, ("splitnn", 1): 1.5}
    contrast = numbers.Contrast("x", (a,), (b,), lambda r: r.utility["accuracy"], "m")
    found = contrast.measured(lambda e, seed: result(accuracy=told[e.protocol, seed]), (0, 1))
    assert found.values == (2.0, 3.5) and contrast.experiments == (a, b) and len(found.keys) == 4


def test_told_subtracts_the_baseline_of_its_own_column():
    def find(experiment, seed):
        found = result()
        found.metrics = {
            "category_accuracy_by_column": {"race": 0.9, "sex": 1.0},
            "category_accuracy_baseline_by_column": {"race": 0.8, "sex": 0.1},
        }
        return found

    found = numbers.Told("x", JOINT[250], "race").measured(find, (0, 1, 2))
    assert found.values == pytest.approx((0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    ("id", "values", "verdict"),
    [
        ("safe-with-pairs", (0.5, 0.5, 0.51), "refuted"),
        ("safe-with-pairs", (0.0, 0.01, 0.02), "upheld"),
        ("distillation-helps", (0.0, -0.01, 0.01), "inconclusive"),
        ("distillation-helps", (0.05, 0.051, 0.05), "upheld"),
        ("distillation-helps", (-0.01, -0.011, -0.01), "refuted"),
        ("as-accurate-as-splitnn", (-0.05, -0.051, -0.05), "refuted"),
    ],
)
def test_verdicts_follow_the_numbers(id, values, verdict):
    (claim,) = [claim for claim in CLAIMS if claim.id == id]
    assert claim.rule.ruling([Measured("x", "active", "m", values)]) == verdict


def test_rounds_of_alignment_are_a_condition_and_no_refutation():
    (claim,) = [claim for claim in CLAIMS if claim.id == "one-round-in-all"]
    rows = [part.measured(None, (0, 1)) for part in claim.evidence]
    assert claim.rule.ruling(rows) == "conditional"


def test_table_iii_is_drawn_from_what_was_measured(tmp_path):
    """A figure from two seeds of every cell, its numbers those of the results; nothing without results."""
    store = Store(tmp_path)
    store.begin("nothing", [])
    assert draw.table_three(tmp_path) is None
    found = []
    for size in SIZES:
        for experiment in (JOINT[size], SPLITNN[size]):
            for seed in (0, 1):
                quick = {"max_epochs": 2} if experiment.protocol == "splitnn" else {**experiment.set, "epochs": 1}
                one = experiment.model_copy(update={"seed": seed, "set": quick})
                ((_, made, timing),) = perform([one])
                found.append(made)
                store.write(made, timing)
    store.begin("table", [made.key for made in found])
    drawn = draw.table_three(tmp_path)
    mean = 100 * np.mean([made.utility["accuracy"] for made in found if made.experiment["rows"] == 100][:2])
    assert f"APC-VFL {mean:.1f} (paper 95.6)" in drawn.caption
    assert f"rounds by eq. 10 {numbers.eq_10(2, 50):.0f} (paper 84)" in drawn.caption


def test_figures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "SEEDS", 1)
    monkeypatch.setattr(draw, "PAIRS", (5, 20))
    monkeypatch.setattr(draw, "REMEDIES", {name: draw.REMEDIES[name] for name in ("as published", "width 2")})
    Store(tmp_path).begin("nothing", [])
    entries = draw.figures(tmp_path)
    assert [entry["file"] for entry in entries] == ["figures/pairs-needed.svg", "figures/remedies.svg"]
    assert all((tmp_path / entry["file"]).stat().st_size > 5000 and entry["caption"] for entry in entries)


def test_point_leaks_if_every_seed_does():
    def verdict(accuracy, advantage):
        return draw.Point("x", (accuracy,) * 2, advantage).verdict(0.95)

    assert verdict(0.95, (0.2, 0.3)) == "leaks"
    assert verdict(0.95, (0.05, 0.3)) == "unsettled"
    assert verdict(0.95, (0.05, 0.01)) == "hides"
    assert verdict(0.8, (0.05, 0.01)) == "costs too much"
