"""The parts of vFedSec's claims: experiments that can run, numbers that can come out either way, figures."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from vflaudit import registry
from vflaudit.claims import drawing
from vflaudit.claims.check import claims_of, draw
from vflaudit.claims.vfedsec import cost_figure, encryption, numbers
from vflaudit.lab.experiment import prepare

CLAIMS = claims_of("vfedsec")
SEED = 3
figures: Any = importlib.import_module("vflaudit.claims.vfedsec.figures")  # the package has the function of that name


# --- claims -------------------------------------------------------------------------------------------------


def test_claims_have_names_sections_and_evidence() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(names) == len(set(names)) >= 17
    for claim in CLAIMS:
        assert claim.section and claim.statement and claim.refuted_if and claim.measured_on and claim.evidence
        assert len({evidence.what for evidence in claim.evidence}) == len(claim.evidence), claim.name


def test_every_experiment_is_ready_to_run() -> None:
    experiments = [experiment for claim in CLAIMS for evidence in claim.evidence for experiment in evidence.experiments]
    assert len(experiments) >= 20
    for experiment in experiments:
        assert prepare(experiment).attack.name == experiment.attack in registry.registered("attacks")


def test_the_page_has_a_row_for_every_claim() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "vfedsec.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        assert f"| `{claim.id}` |" in page, claim.id


def test_absent_data_has_a_stand_in_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VFLAUDIT_DATA", raising=False)
    assert numbers.paper_data("bank").startswith("synthetic:shape=bank")
    assert numbers.measured_on(numbers.paper_data("adult")).startswith("synthetic columns like adult's")
    assert "synthetic columns" in figures.real_or_not()
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "bank-full.csv").write_text("")
    monkeypatch.setenv("VFLAUDIT_DATA", str(tmp_path))
    assert numbers.paper_data("bank").startswith("bank:") and numbers.paper_data("adult").startswith("synthetic:")
    assert "real" in numbers.measured_on(numbers.paper_data("bank"))
    assert figures.real_or_not().startswith("Bank: real rows; adult: synthetic")


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_numbers() -> Iterator[None]:
    """Runs are cached by seed: none must outlive what a test has changed."""
    yield
    for function in (numbers.trained, numbers.costs, figures.dataset):
        function.cache_clear()


def with_security(monkeypatch: pytest.MonkeyPatch, security: str) -> None:
    """All runs behind the numbers without part of their security."""
    honest = numbers.trained.__wrapped__
    monkeypatch.setattr(numbers, "trained", lambda seed: honest(seed, security=security))


def test_masks_change_no_weight_and_quantisation_does() -> None:
    assert numbers.largest_change(SEED) == 0
    masked, clear = (numbers.trained(SEED, security=how).model.parameters for how in ("masked", "clear"))
    assert max(np.abs(masked[name] - clear[name]).max() for name in clear) > 0


def test_uniformity_is_not_rejected_with_masks_and_is_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(numbers.uniformity_auc(SEED)) < 0.15  # 400 of 800 samples are judged: the deviation is about 0.03
    assert numbers.rejected_messages(SEED) <= 0.4  # a client fails with a chance of 1 in 100: three of five never do
    with_security(monkeypatch, "quantised")
    assert numbers.rejected_messages(SEED) == 1


def test_sealed_ids_are_read_by_nobody_and_plain_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers.opened_by_others(SEED) == 0
    assert numbers.opened_by_aggregator(SEED) == 0
    with_security(monkeypatch, "clear")
    assert numbers.opened_by_aggregator(SEED) == 1


def test_costs_are_shares_and_growth_is_an_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "BATCH", 32)
    assert 0 < numbers.byte_overhead(SEED) < 1  # bytes are counted, and security adds some
    assert max(numbers.cpu_overhead_active(SEED), numbers.cpu_overhead_passive(SEED)) < 1
    assert np.isfinite([numbers.growth_clients(SEED), numbers.growth_batch(SEED)]).all()


@pytest.mark.skipif(not encryption.INSTALLED, reason="the extra `he` is not installed")
def test_encrypted_results_are_longer_than_masked_ones() -> None:
    packed, paillier = encryption.bytes_packed(SEED), encryption.bytes_paillier(SEED)
    assert 1 < packed < paillier


# --- figures ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of few points, on synthetic columns, with encryption of few rows."""
    monkeypatch.delenv("VFLAUDIT_DATA", raising=False)
    for name, value in {
        "SEEDS": 1, "ROWS": 150, "MORE_ROWS": 150, "WIDTHS": (6, 64), "BATCHES": (16, 64), "EPOCHS": (1, 2)
    }.items():  # fmt: skip
        monkeypatch.setattr(figures, name, value)
    monkeypatch.setattr(cost_figure, "BATCH", 8)


def test_figures_are_drawn_with_the_claims(small: None, tmp_path: Path) -> None:
    entries = draw("vfedsec", tmp_path)
    assert [Path(entry["file"]).stem for entry in entries] == list(figures.DRAWINGS)
    for entry in entries:
        assert ElementTree.parse(tmp_path / entry["file"]).getroot().tag.endswith("svg")
        assert entry["title"] and entry["caption"].endswith(".")
    captions = {Path(entry["file"]).stem: entry["caption"] for entry in entries}
    for name in ("hidden-width", "batch-size", "epochs"):
        assert "Bank and adult: synthetic columns" in captions[name]
    assert "bank from h = 64" in captions["hidden-width"] and "breast-cancer from h = 64" in captions["hidden-width"]


def test_a_figure_has_the_same_bytes_every_time(small: None, tmp_path: Path) -> None:
    made = [drawing.draw_all(tmp_path / name, {"collusion": figures.staircase})[0]["file"] for name in "ab"]
    assert (tmp_path / "a" / made[0]).read_bytes() == (tmp_path / "b" / made[1]).read_bytes()


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    assert drawing.draw_all(tmp_path, {"nothing": lambda folder: None}) == []
    assert list((tmp_path / "figures").iterdir()) == []


def test_costs_without_encryption_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost_figure, "INSTALLED", False)
    monkeypatch.setattr(cost_figure, "BATCH", 8)
    assert [words for words, *_ in cost_figure.seconds()] == ["product, no protection", "masks", "masks, ids, keys"]
    assert "the extra `he` is not installed" in cost_figure.overhead(tmp_path).caption


def test_ids_and_keys_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = [], []
    for size, found in ((8, few), (16, many)):
        monkeypatch.setattr(cost_figure, "BATCH", size)
        found.append(cost_figure.ids_and_keys())
    assert many[0] - few[0] == 8 * 2 * (12 + 8 + 16)  # of each id in two clusters: nonce, number, tag


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (cost_figure.time_words, 51.2, "51 s"),
        (cost_figure.time_words, 0.059, "59 ms"),
        (cost_figure.time_words, 13e-6, "13 µs"),
        (cost_figure.size_words, 5.43e9, "5.4 GB"),
        (cost_figure.size_words, 419_813, "420 kB"),
    ],
)
def test_units(function: Any, value: float, words: str) -> None:
    assert function(value) == words
