"""From a name or a file to a vertical dataset, and every mistake told in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.loading import load_table, parse_data, read_split
from vflaudit.core.preprocess import encode

SYNTHETIC = "synthetic:rows=100,features=6"


def write_csv(folder: Path) -> Path:
    """Forty people: two numbers, a category, a label, and an id."""
    rng = np.random.default_rng(0)
    lines = ["id,age,income,city,bought"]
    for person in range(40):
        city = ("Rome", "Oslo", "Lima")[person % 3]
        lines.append(f"p{person},{20 + person},{rng.normal(30, 5):.3f},{city},{'yes' if person % 2 else 'no'}")
    path = folder / "people.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_split(folder: Path, text: str) -> Path:
    path = folder / "split.toml"
    path.write_text(text, encoding="utf-8")
    return path


SPLIT = 'label_owner = "shop"\n[parties]\nbank = ["income"]\nshop = ["city", "age"]\n'


def test_csv_and_split_end_to_end(tmp_path: Path) -> None:
    data = va.load_dataset(
        str(write_csv(tmp_path)), label="bought", id_column="id", split=write_split(tmp_path, SPLIT), seed=4
    )
    assert data.parties == ("bank", "shop") and data.label_owner == "shop"
    assert [column.name for column in data.blocks["shop"].columns] == ["city", "age"]
    assert data.task == "classification" and data.classes == ("no", "yes")
    for row, name in enumerate(data.ids):  # every row still belongs to the same person at every party
        person = int(str(name).removeprefix("p"))
        assert data.blocks["shop"].values[row, 1] == 20 + person
        category = data.blocks["shop"].columns[0].categories[int(data.blocks["shop"].values[row, 0])]
        assert category == ("Rome", "Oslo", "Lima")[person % 3]
        assert data.labels[row] == person % 2
    run = va.load_protocol("splitnn", max_epochs=1, hidden=4).run(data)
    assert run.spec.parties == ("server", "bank", "shop")
    assert [column.name for column in run.spec.columns["shop"]][-1] == "age"
    assert run.data.blocks["shop"].width == 4


def test_a_mapping_is_a_split_too(tmp_path: Path) -> None:
    path = str(write_csv(tmp_path))
    split = {"a": ["age"], "b": ["income"]}
    data = va.load_dataset(path, label="bought", id_column="id", split=split, label_owner="b")
    assert data.parties == ("a", "b") and data.label_owner == "b"
    assert data.ids.tolist() != sorted(data.ids.tolist())  # rows are shuffled


def test_options_are_parsed_and_typed() -> None:
    assert parse_data("synthetic:rows=500,skew=1") == ("synthetic", {"rows": "500", "skew": "1"})
    assert parse_data("wine") == ("wine", {})
    assert parse_data("/data/a:b=c.csv") == ("/data/a:b=c.csv", {})
    table = load_table("synthetic:rows=500,features=3,task=regression")
    assert table.values.shape == (500, 3) and table.task == "regression"
    assert len(load_table("breast-cancer:rows=90").labels) == 90


def test_the_pool_is_disjoint_from_what_parties_hold() -> None:
    data = va.load_dataset("breast-cancer", parties=4, aux=0.3)
    assert data.aux is not None and len(data.aux) == round(0.3 * 569)
    assert len(data) + len(data.aux) == 569
    assert not set(data.ids) & set(data.aux.ids)
    assert va.load_dataset("breast-cancer", aux=0).aux is None


@given(
    rows=st.integers(30, 100),
    aux=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    shares=st.sampled_from([(0.7, 0.1, 0.2), (1.0, 0.0, 0.0), (0.5, 0.25, 0.25)]),
    seed=st.integers(0, 50),
)
def test_rows_are_split_once(rows: int, aux: float, shares: tuple[float, ...], seed: int) -> None:
    data = va.load_dataset(SYNTHETIC, parties=2, rows=rows, aux=aux, shares=shares, seed=seed)
    pool = 0 if data.aux is None else len(data.aux)
    assert len(data) + pool == rows and pool == round(aux * rows)
    parts = [data.split[part] for part in ("train", "validation", "test")]
    assert np.concatenate(parts).tolist() == list(range(len(data)))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * len(data)) <= 1
    table = load_table(SYNTHETIC)
    place = {name: row for row, name in enumerate(table.ids)}  # type: ignore[arg-type]
    index = {column.name: k for k, column in enumerate(table.columns)}
    for block in data.blocks.values():
        columns = [index[column.name] for column in block.columns]
        expected = table.values[[place[name] for name in data.ids]][:, columns]
        np.testing.assert_array_equal(block.values, expected)


def test_seeds_shuffle_and_repeat() -> None:
    first, again, other = (va.load_dataset(SYNTHETIC, parties=2, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_overlap_is_the_share_of_rows_that_each_party_holds() -> None:
    data = va.load_dataset("synthetic:rows=3000,features=4", parties=2, overlap=0.8)
    shares = [block.present.mean() for block in data.blocks.values()]
    assert all(abs(share - 0.8) < 0.05 for share in shares)
    both = np.mean(data.blocks["client1"].present & data.blocks["client2"].present)
    assert abs(both - 0.64) < 0.05  # parties miss rows independently
    assert data.aux is not None and all(block.present.all() for block in data.aux.blocks.values())


def test_knowing_more_than_the_pool_is_an_error() -> None:
    run = va.load_protocol("centralized", max_epochs=1, hidden=2).run(va.load_dataset(SYNTHETIC, parties=2))
    pool = run.data.aux
    assert pool is not None
    view = run.view(va.Adversary({"server"}, [va.DistributionSample(len(pool))]))
    known = view.knowledge.distribution
    assert known is not None and known.labels is not None and len(known.labels) == len(pool)
    assert sorted(known.features["client1"][:, 0]) == sorted(pool.blocks["client1"].values[:, 0])
    for wanted in (len(pool) + 1, 0):
        with pytest.raises(va.InputError, match=f"cannot know {wanted} rows of the population: there are {len(pool)}"):
            run.view(va.Adversary({"server"}, [va.DistributionSample(wanted)]))
    bare = va.load_protocol("centralized", max_epochs=1, hidden=2).run(va.load_dataset(SYNTHETIC, parties=2, aux=0))
    with pytest.raises(va.InputError, match="there are 0 rows in the auxiliary pool"):
        bare.view(va.Adversary({"server"}, [va.DistributionSample(1)]))


def test_more_columns_than_parties_and_back() -> None:
    data = encode(va.load_dataset("synthetic:rows=60,features=2,categorical=2", parties=4))
    assert sorted(block.width for block in data.blocks.values()) == [1, 1, 4, 4]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown name": ({"data": "brest-cancer"}, "did you mean 'breast-cancer'"),
    "unknown option": ({"data": "synthetic:row=5"}, "did you mean 'rows'"),
    "option without value": ({"data": "synthetic:rows"}, "expected NAME:KEY=VALUE"),
    "option of the wrong type": ({"data": "synthetic:rows=many"}, "rows='many'.*valid integer"),
    "option out of range": ({"data": "synthetic:rows=0"}, "rows=0 is not"),
    "missing file": ({"data": "nowhere/people.csv", "label": "y"}, "'nowhere/people.csv' does not exist"),
    "label of a built-in": ({"data": "wine", "label": "y"}, "'wine' has its label built in"),
    "aux of 1": ({"data": "wine", "aux": 1.0}, "aux=1.0"),
    "negative aux": ({"data": "wine", "aux": -0.1}, "aux=-0.1"),
    "no overlap": ({"data": "wine", "overlap": 0.0}, "overlap=0.0"),
    "shares of two": ({"data": "wine", "shares": (0.5, 0.5)}, "three shares"),
    "shares that do not sum to 1": ({"data": "wine", "shares": (0.5, 0.2, 0.2)}, "sum to 1"),
    "negative share": ({"data": "wine", "shares": (1.2, -0.2, 0.0)}, "three shares"),
    "too many rows": ({"data": "wine", "rows": 179}, "'wine' has 178 rows"),
    "too few rows": ({"data": "wine", "rows": 10}, "at least 10 are needed"),
    "too many parties": ({"data": "wine", "parties": 14}, "13 columns"),
    "no party": ({"data": "wine", "parties": 0}, "asked for: 0"),
    "unknown partition": ({"data": "wine", "partition": "round-robbin"}, "did you mean 'round-robin'"),
    "quadrants of a table": ({"data": "wine", "partition": "quadrants"}, "not made of images"),
    "three quadrants": ({"data": "digits", "partition": "quadrants", "parties": 3}, "4 parties, not 3"),
    "thirteen slices": ({"data": "digits", "partition": "slices", "parties": 13}, "8 rows cannot be cut into 13"),
    "importance for one": ({"data": "wine", "partition": "importance", "parties": 1}, "two parties or more"),
    "a paper that does not split it": ({"data": "wine", "partition": "vfedsec"}, "no split of dataset 'wine'"),
    "a paper's split and parties": (
        {"data": "synthetic:shape=bank", "partition": "vfedsec", "parties": 3},
        "fixes the parties",
    ),
    "unknown shape": ({"data": "synthetic:shape=bonk"}, "input should be 'bank', 'adult' or 'mimic-iii'"),
    "split and parties": ({"data": "wine", "split": {"a": ["ash"]}, "parties": 2}, "not both"),
    "split of an unknown column": ({"data": "wine", "split": {"a": ["asch"]}}, "did you mean 'ash'"),
    "column given twice": ({"data": "wine", "split": {"a": ["ash"], "b": ["ash"]}}, "given twice"),
    "party without columns": ({"data": "wine", "split": {"a": ["ash"], "b": []}}, "'b' is given no column"),
    "split file that is not there": ({"data": "wine", "split": "no.toml"}, "'no.toml' cannot be read"),
}


def one_sentence(call: Callable[[], object]) -> str:
    with pytest.raises(va.InputError) as caught:
        call()
    text = str(caught.value)
    assert text and "\n" not in text and len(text) < 300 and "Traceback" not in text
    return text


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_one_sentence(mistake: str) -> None:
    arguments, expected = MISTAKES[mistake]
    text = one_sentence(
        lambda: va.load_dataset(arguments["data"], **{k: v for k, v in arguments.items() if k != "data"})
    )
    assert re.search(expected, text), text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[parties\na=1", "not TOML"),
        ("", "parties"),
        ("[parties]\n", "names no party"),
        ('[parties]\na = "ash"', "parties.a"),
        ("[parties]\na = [1]", "parties.a"),
        ('[partys]\na = ["ash"]', "parties"),
        ('label = "a"\n[parties]\na = ["ash"]', "label_owner"),
    ],
)
def test_bad_split_files(tmp_path: Path, text: str, word: str) -> None:
    told = one_sentence(lambda: read_split(write_split(tmp_path, text)))
    assert word in told and "split.toml" in told


def test_bad_csv_files(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    for arguments, word in (
        ({}, "--label"),
        ({"label": "buoght"}, "'bought'"),
        ({"label": "bought"}, "id_column"),  # the column of ids is told apart from a category
        ({"label": "bought", "id_column": "nr"}, "'nr'"),
        ({"label": "bought", "id_column": "bought"}, "both the label and the id"),
    ):
        assert word in one_sentence(lambda arguments=arguments: va.load_dataset(str(path), **arguments))
    text = path.read_text(encoding="utf-8").replace("p3,23", "p3,")
    path.write_text(text, encoding="utf-8")
    told = one_sentence(lambda: va.load_dataset(str(path), label="bought", id_column="id"))
    assert "'age'" in told and "row 4" in told
