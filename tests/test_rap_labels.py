"""RAP's label codes and one-hot columns: pairs are found, categories named, and nothing found where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

import vflaudit as va
from attacks.frequency import FrequencyAnalysis, match, name_groups, same_rows, without_directions
from attacks.label_codes import LabelCodePairing, best_matching, best_names, leverage
from defenses.base import RowsDefense
from defenses.gaussian_noise import GaussianNoise
from vflaudit.core.dataset import Array, Column, Table, VerticalDataset
from vflaudit.core.games import LabelInference, Reconstruction, Score
from vflaudit.core.run import Run
from vflaudit.core.wire import Wire

SEEDS = range(4)


def rap(data: VerticalDataset, seed: int, **parameters: Any) -> Run:
    return va.load_protocol("rap", max_epochs=1, hidden=4, **parameters).run(data, seed=seed)


def infer(run: Run, *knows: Any, **parameters: Any) -> Score:
    guess = LabelCodePairing(**parameters).run(run.view(va.Adversary({"server"}, knows)), seed=run.seed)
    return LabelInference().score(run, guess)


# --- label codes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, parties", [("breast-cancer", 4), ("wine", 4), ("digits", 4), ("iris", 2)])
def test_codes_are_paired_and_known_labels_name_them(name: str, parties: int) -> None:
    for seed in SEEDS:
        data = va.load_dataset(name, parties=parties, seed=seed)
        score = infer(rap(data, seed), va.LabeledSamples(40))
        assert score.score > 0.999 and score.notes["pairing_margin"] > score.notes["pairing_margin_needed"]
        assert score.interval[0] > 0.0


@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_class_shares_name_classes_of_different_sizes(name: str) -> None:
    scores = [infer(rap(va.load_dataset(name, seed=seed), seed), va.ClassPriors()) for seed in SEEDS]
    for score in scores:  # two classes of the same size cannot be told apart, and the attack says so
        assert score.score > 0.999 or score.notes["naming_margin"] < 1e-6
    assert np.mean([score.score for score in scores]) > 0.95


def test_other_people_name_classes_by_leverage_where_shares_cannot() -> None:
    for seed in SEEDS:
        score = infer(rap(va.load_dataset("wine", seed=seed), seed), va.DistributionSample(50))
        assert score.score > 0.999 and "leverage of other people" in score.notes["named_by"]


def test_classes_with_the_same_mean_are_paired_by_the_forest() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1500, 4))
    labels = (values[:, 0] * values[:, 1] > 0).astype(int)
    labels[:400] = 1  # unequal shares, so that they can be named
    values[:400, :2] = np.abs(values[:400, :2])
    table = Table("xor", tuple(Column(n) for n in "abcd"), values, labels, "classification", ("0", "1"))
    for seed in SEEDS:
        score = infer(rap(va.load_dataset(table, parties=2, seed=seed), seed), va.ClassPriors(), statistic="both")
        assert score.score > 0.999


class Shuffle(RowsDefense):
    """A shuffler that everybody trusts."""

    name: ClassVar[str] = "test-shuffle"
    helpers: ClassVar[tuple[str, ...]] = ("shuffler",)

    def exchange(
        self, wire: Wire, tables: Mapping[str, Array], senders: Mapping[str, str], receiver: str, seed: int
    ) -> tuple[dict[str, Array], Array]:
        order = np.random.default_rng(seed).permutation(len(next(iter(tables.values()))))
        return wire.send("shuffler", receiver, "shuffled", {n: t[order] for n, t in tables.items()}), order


def test_a_shuffle_hides_who_has_a_label_not_which_label_a_row_has(cancer: VerticalDataset) -> None:
    run = va.load_protocol("rap", max_epochs=1, hidden=4).run(cancer, seed=0, defenses=[Shuffle()])
    guess = LabelCodePairing().run(run.view(va.Adversary({"server"}, [va.ClassPriors()])), seed=0)
    assert guess.labels is not None and guess.labels.shuffled
    assert LabelInference().score(run, guess).score > 0.999


def test_positive_control_centralized(centralized_run: Run) -> None:
    assert infer(centralized_run, va.ClassPriors()).score > 0.999
    assert infer(centralized_run, va.LabeledSamples(10)).score > 0.999


@pytest.mark.parametrize("knows", [va.ClassPriors(), va.LabeledSamples(20), va.DistributionSample(100)])
def test_negative_control_ideal(cancer: VerticalDataset, knows: Any) -> None:
    scores = []
    for seed in range(6):
        run = va.load_protocol("ideal", like="rap", max_epochs=1, hidden=4).run(cancer, seed=seed)
        scores.append(infer(run, knows))
    assert abs(np.mean([score.advantage for score in scores])) < 0.05
    assert sum(score.interval[0] <= 0 <= score.interval[1] for score in scores) >= 5
    assert not any(score.verified for score in scores)


def test_what_it_needs_is_told(cancer: VerticalDataset) -> None:
    run = rap(cancer, 0)
    with pytest.raises(va.InputError, match="something to name classes by"):
        infer(run)
    limited = rap(cancer, 0, variant="limited-server")
    with pytest.raises(va.InputError, match="table of class codes"):
        infer(limited, va.ClassPriors())


def test_matching_is_exact_and_names_are_best() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 4, 6, 8):
        cost = rng.random((size, size)) ** 3
        cost = cost + cost.T
        pairs, margin = best_matching(cost)
        every = sorted(sum(cost[i, j] for i, j in option) for option in matchings(list(range(size))))
        assert sum(cost[i, j] for i, j in pairs) == pytest.approx(every[0])
        assert margin == (np.inf if size == 2 else pytest.approx(every[1] - every[0]))
    names, gap = best_names(np.array([[0.0, -1.0], [-5.0, 0.0]]))
    assert names.tolist() == [0, 1] and gap == pytest.approx(6.0)
    values, matrix = rng.standard_normal((50, 4)), rng.standard_normal((4, 4))
    np.testing.assert_allclose(leverage(values), leverage(values @ matrix), rtol=1e-8)


def matchings(items: list[int]) -> list[list[tuple[int, int]]]:
    if not items:
        return [[]]
    first, rest = items[0], items[1:]
    return [[(first, other), *more] for at, other in enumerate(rest) for more in matchings(rest[:at] + rest[at + 1 :])]


# --- one-hot columns ----------------------------------------------------------------------------------------


def categories(name: str = "digits", cuts: tuple[float, ...] = (0.5, 10.5), count: int = 3) -> Table:
    """Real categories that come without a download: pixels of digits as empty, grey, black; two numbers beside."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    at = [10, 20, 42][:count]
    values = np.column_stack([np.searchsorted(cuts, digits.data[:, at]), digits.data[:, [28, 36]]])
    kinds = tuple(f"level{k}" for k in range(len(cuts) + 1))
    columns = (*(Column(f"pixel{k}", "categorical", kinds) for k in at), Column("a"), Column("b"))
    return Table(name, columns, values, digits.target, "classification", tuple("0123456789"))


def attack(data: VerticalDataset, seed: int, protocol: str = "rap", **more: Any) -> tuple[Score, Run]:
    run = va.load_protocol(protocol, max_epochs=1, hidden=4, **more).run(data, seed=seed)
    assert data.aux is not None
    knows = va.Adversary({"server"}, [va.DistributionSample(len(data.aux))])
    guess = FrequencyAnalysis(party="client1").run(run.view(knows), seed=seed)
    return Reconstruction(party="client1").score(run, guess), run


SPLITS = {
    "several attributes": {"client1": ["pixel10", "pixel20", "pixel42"], "client2": ["a", "b"]},
    "beside numbers": {"client1": ["pixel10", "pixel42", "a"], "client2": ["b"]},
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_categories_are_named(split: dict[str, list[str]]) -> None:
    found = [attack(va.load_dataset(categories(), split=split, aux=0.5, seed=seed), seed)[0] for seed in SEEDS]
    accuracy = [score.metrics["category_accuracy"] for score in found]
    assert np.median(accuracy) > 0.99 and min(accuracy) > 0.6, accuracy
    assert np.mean([score.advantage for score in found]) > 0.5
    assert all(score.metrics["category_accuracy"] > 0.99 for score in found if score.verified)


def test_the_partition_into_categories_is_exact() -> None:
    data = va.load_dataset(categories(), split=SPLITS["several attributes"], seed=0)
    run = rap(data, 0)
    table = run.view(va.Adversary({"server"})).table_of("client1")
    where, rows, counts = same_rows(np.asarray(table.values, dtype=np.float64), np.random.default_rng(0))
    _, truth = np.unique(run.data.blocks["client1"].values[table.rows], axis=0, return_inverse=True)
    assert len(rows) == truth.max() + 1 and counts.sum() == len(truth)
    assert len({*zip(where.tolist(), truth.ravel().tolist(), strict=True)}) == len(rows)


def test_a_single_binary_category_is_read_off() -> None:
    table = categories(cuts=(4.5,), count=1)
    split = {"client1": ["pixel10"], "client2": ["a", "b"]}
    for seed in SEEDS:
        score, _ = attack(va.load_dataset(table, split=split, aux=0.5, seed=seed), seed)
        assert score.score > 0.99 and score.metrics["category_accuracy"] == 1.0 and not score.verified


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_negative_control(split: dict[str, list[str]]) -> None:
    for seed in SEEDS:
        score, _ = attack(va.load_dataset(categories(), split=split, aux=0.5, seed=seed), seed, "ideal", like="rap")
        assert score.interval[0] <= 0.01 and abs(score.advantage) < 0.05 and not score.verified


def test_positive_control() -> None:
    data = va.load_dataset(categories(), split=SPLITS["several attributes"], aux=0.5, seed=0)
    score, _ = attack(data, 0, "centralized")
    assert score.metrics["category_accuracy"] > 0.99 and score.verified


def test_noise_and_numbers_alone_stop_it() -> None:
    data = va.load_dataset(categories(), split=SPLITS["several attributes"], aux=0.5, seed=0)
    noisy = va.load_protocol("rap", max_epochs=1, hidden=4).run(data, seed=0, defenses=[GaussianNoise(sigma=0.5)])
    assert data.aux is not None
    knows = va.Adversary({"server"}, [va.DistributionSample(len(data.aux))])
    guess = FrequencyAnalysis(party="client1").run(noisy.view(knows), seed=0)
    assert guess.notes["client1"]["result"] == "rows do not repeat"
    assert abs(Reconstruction(party="client1").score(noisy, guess).advantage) < 0.02
    numbers = FrequencyAnalysis(party="client2").run(noisy.view(knows), seed=0)
    assert numbers.notes["client2"]["result"] == "no lattice"


def test_parts_of_the_attack_on_made_up_people() -> None:
    rng = np.random.default_rng(3)
    widths, shares = [2, 3, 4], [[0.7, 0.3], [0.6, 0.3, 0.1], [0.4, 0.3, 0.2, 0.1]]
    codes = [np.stack([rng.choice(len(p), 4000, p=p) for p in shares], axis=1) for _ in range(2)]
    hot = np.hstack([np.eye(w)[codes[0][:, k]] for k, w in enumerate(widths)])
    sent = np.hstack([hot, rng.standard_normal((4000, 2))]) @ rng.standard_normal((11, 11))
    clean = without_directions(sent, 2, 20_000, rng)
    assert clean is not None
    where, rows, counts = same_rows(clean, rng)
    assert len(rows) == 24
    decoded, valid = match(rows, counts, codes[1], widths, 300)
    assert decoded is not None and valid == 1.0
    chances, misfit, sure = name_groups(decoded[where], codes[1], widths, None)
    named = np.stack([chance[decoded[where][:, k]].argmax(axis=1) for k, chance in enumerate(chances)], axis=1)
    assert (named == codes[0]).all() and misfit < 4 and sure > 0.99


@pytest.mark.parametrize("columns", [["workclass", "marital-status", "sex"], ["marital-status", "sex", "age"]])
def test_adult(columns: list[str]) -> None:
    try:
        table = va.load_dataset("adult:rows=100", parties=2)
    except va.InputError:
        pytest.skip("Adult is not on this computer")
    assert table.aux is not None
    split = {"client1": columns, "client2": ["capital-gain", "fnlwgt"]}
    for seed in range(2):
        score, _ = attack(va.load_dataset("adult:rows=6000", split=split, aux=0.5, seed=seed), seed)
        assert score.metrics["category_accuracy"] > 0.98 and score.advantage > 0.6
