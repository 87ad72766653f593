"""Dataset loaders: bundled, synthetic, published files (tiny ones, and real ones if present), the user's."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest

from vflaudit.core.dataset import Table
from vflaudit.core.sources import bundled, images, local, measured, tabular
from vflaudit.core.sources.names import ADULT, BANK, COVTYPE_NUMERIC, HIGGS, KDD, PHISHING, RICE, SUSY
from vflaudit.core.sources.synthetic import synthetic
from vflaudit.core.sources.user import read_user_file
from vflaudit.errors import InputError

REAL = Path(__file__).parents[2] / "shared" / "data"
needs_real_files = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real datasets are not in {REAL}")
RNG = np.random.default_rng(5)
BANK_ROW = [
    "58", "admin.", "married", "tertiary", "no", "2143", "yes", "no",
    "unknown", "5", "may", "261", "1", "-1", "0", "other",
]  # fmt: skip
ADULT_ROW = [
    "39", "State-gov", "77516", "Bachelors", "13", "Never-married", "Sales",
    "Husband", "White", "Male", "2174", "0", "40", "Cuba",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty VFLAUDIT_DATA, and a download cache of its own."""
    monkeypatch.setenv("VFLAUDIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFLAUDIT_DATA", str(REAL))


def put(path: Path, content: str | bytes) -> Path:
    """Writes the file; a name that ends in .gz is gzipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def lines(rows: Any, separator: str = ",") -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def one_sentence(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 500
    return text


# Bundled


@pytest.mark.parametrize(
    ("load", "shape", "classes"),
    [
        (bundled.breast_cancer, (569, 30), 2),
        (bundled.wine, (178, 13), 3),
        (bundled.digits, (1797, 64), 10),
        (bundled.diabetes, (442, 10), 0),
        (bundled.iris, (150, 4), 3),
    ],
)
def test_bundled_shapes(load: Any, shape: tuple[int, int], classes: int) -> None:
    table = load()
    assert table.values.shape == shape and len(table.classes) == classes
    assert table.task == ("classification" if classes else "regression")
    assert all(column.kind == "numeric" for column in table.columns)


def test_bundled_values_are_the_published_ones() -> None:
    cancer = bundled.breast_cancer()
    assert cancer.columns[0].name == "mean radius" and cancer.values[0, 0] == 17.99
    assert cancer.classes == ("malignant", "benign") and np.bincount(cancer.labels).tolist() == [212, 357]
    sugar = bundled.diabetes()
    assert sugar.columns[0].name == "age" and sugar.values[0, 0] == 59.0 and sugar.labels[0] == 151.0
    assert set(sugar.values[:, 1]) == {1.0, 2.0}
    assert bundled.digits().image == (8, 8) and bundled.digits().values.max() == 16.0


# Synthetic


def off_diagonal(table: Table) -> np.ndarray:
    matrix = np.corrcoef(table.values, rowvar=False)
    return matrix[~np.eye(len(matrix), dtype=bool)]


@pytest.mark.parametrize("skew", [0.0, 0.8])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8])
def test_synthetic_correlation_is_as_asked(correlation: float, skew: float) -> None:
    table = synthetic(rows=40_000, features=5, correlation=correlation, skew=skew)
    assert off_diagonal(table) == pytest.approx(correlation, abs=0.05)
    assert table.values.mean(0) == pytest.approx(0, abs=0.03)
    assert table.values.std(0) == pytest.approx(1, abs=0.06)


def test_synthetic_skew_follows_its_formula() -> None:
    def skewness(skew: float) -> float:
        values = synthetic(rows=200_000, features=2, correlation=0.0, skew=skew).values
        return float((((values - values.mean(0)) / values.std(0)) ** 3).mean())

    for skew in (0.0, 0.2, 0.4):
        square = skew**2
        assert skewness(skew) == pytest.approx((np.exp(square) + 2) * np.sqrt(np.expm1(square)), abs=0.08)


@pytest.mark.parametrize("signal", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("balance", [0.1, 0.5, 0.9])
def test_synthetic_balance_is_the_share_of_class_zero(balance: float, signal: float) -> None:
    labels = synthetic(rows=20_000, balance=balance, signal=signal).labels
    assert np.mean(labels == 0) == pytest.approx(balance, abs=0.015)


def test_synthetic_shares_are_geometric_for_more_classes() -> None:
    labels = synthetic(rows=40_000, classes=3, balance=2 / 3).labels
    assert np.bincount(labels) / 40_000 == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.01)
    even = synthetic(rows=40_000, classes=4).labels
    assert np.bincount(even) / 40_000 == pytest.approx([0.25] * 4, abs=0.01)


def test_synthetic_signal_decides_what_can_be_learned() -> None:
    def explained(signal: float) -> float:
        table = synthetic(rows=20_000, features=4, task="regression", signal=signal)
        design = np.column_stack([table.values, np.ones(20_000)])
        residual = table.labels - design @ np.linalg.lstsq(design, table.labels, rcond=None)[0]
        return float(1 - residual.var() / table.labels.var())

    assert explained(0.0) == pytest.approx(0.0, abs=0.01)
    assert explained(1.0) == pytest.approx(0.5, abs=0.03)
    assert explained(3.0) == pytest.approx(0.9, abs=0.03)


def test_synthetic_categories_are_equally_likely_and_additional() -> None:
    table = synthetic(rows=20_000, features=3, categorical=2, categories=5)
    assert [column.kind for column in table.columns] == ["numeric"] * 3 + ["categorical"] * 2
    assert len(table.columns[4].categories) == 5
    assert np.bincount(table.values[:, 4].astype(int)) / 20_000 == pytest.approx([0.2] * 5, abs=0.015)


def test_synthetic_is_decided_by_its_seed() -> None:
    one, same, other = synthetic(seed=1), synthetic(seed=1), synthetic(seed=2)
    assert (one.values == same.values).all() and (one.labels == same.labels).all()
    assert not (one.values == other.values).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": 0}, "rows=0 is not a whole number from 1"),
        ({"features": 2.5}, "features=2.5 is not a whole number"),
        ({"correlation": 1.0}, "correlation=1.0 is not a number from 0 to 0.999"),
        ({"skew": -1}, "skew=-1 is not a number from 0 to 2"),
        ({"balance": float("nan")}, "balance=nan"),
        ({"classes": True}, "classes=True"),
        ({"task": "clasification"}, "did you mean 'classification'?"),
        ({"balance": 0.99, "rows": 20}, "leaves a class without any of the 20 rows"),
    ],
)
def test_synthetic_says_what_it_expected(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        synthetic(**options)
    assert said in one_sentence(error)


# Published files, tiny ones of the same format


def test_adult_keeps_the_question_mark_and_reads_both_files(data: Path) -> None:
    row = "39, {}, 77516, Bachelors, 13, Never-married, Sales, Husband, White, Male, 2174, 0, 40, Cuba, {}\n"
    put(data / "adult" / "adult.data.gz", row.format("State-gov", "<=50K") + row.format("?", ">50K") + "\n")
    put(data / "adult" / "adult.test", "|1x3 Cross validator\n" + row.format("Private", ">50K."))
    table = tabular.adult()
    assert table.labels.tolist() == [0, 1, 1] and table.classes == ("<=50K", ">50K")
    assert table.columns[1].categories == ("?", "Private", "State-gov")
    assert table.values[:, 1].tolist() == [2, 0, 1] and table.values[0, 10] == 2174


def test_bank_separates_numbers_from_categories(data: Path) -> None:
    put(data / "bank" / "bank-full.csv", lines([[*BANK, "y"], [*BANK_ROW, "no"], [*BANK_ROW, "yes"]], ";"))
    table = tabular.bank()
    assert table.labels.tolist() == [0, 1] and table.values[0, 13] == -1
    numeric = [column.name for column in table.columns if column.kind == "numeric"]
    assert numeric == ["age", "balance", "day", "duration", "campaign", "pdays", "previous"]
    assert tabular.bank(day="category").columns[9].kind == "categorical"


@pytest.mark.parametrize("header", [True, False])
def test_covtype_collapses_its_one_hot_columns(data: Path, header: bool) -> None:
    wilderness, soil = np.eye(4, dtype=int)[[2, 0, 3]], np.eye(40, dtype=int)[[28, 1, 9]]
    body = np.column_stack([np.arange(30).reshape(3, 10), wilderness, soil, [2, 7, 1]])
    head = [
        *COVTYPE_NUMERIC,
        *(f"Wilderness_Area{k}" for k in range(1, 5)),
        *(f"Soil_Type{k}" for k in range(1, 41)),
    ]
    content = lines([[*head, "Cover_Type"], *body] if header else body)
    put(data / "covtype" / ("covtype.csv.gz" if header else "covtype.data"), content)
    table = tabular.covtype()
    assert [column.name for column in table.columns[10:]] == ["Wilderness_Area", "Soil_Type"]
    decoded = [table.columns[11].categories[int(code)] for code in table.values[:, 11]]
    assert decoded == ["29", "2", "10"] and table.columns[11].categories == ("2", "10", "29")
    assert table.labels.tolist() == [1, 6, 0]
    wide = tabular.covtype(one_hot=True, binary=True)
    assert wide.values.shape == (3, 54) and wide.labels.tolist() == [1, 0, 0]
    assert wide.columns[10].group == "Wilderness_Area" and wide.columns[53].group == "Soil_Type"


def one_hot_phishing(raw: np.ndarray) -> str:
    """LIBSVM's rule: a cell is numbered when its value first appears."""
    seen: dict[tuple[int, int], int] = {}
    rows = []
    for row in raw:
        cells = sorted(seen.setdefault((k, int(value)), len(seen) + 1) for k, value in enumerate(row[:30]))
        rows.append([int(row[30] > 0), *(f"{cell}:0.18257" for cell in cells)])
    return lines(rows, " ")


def test_phishing_recovers_which_cells_belong_together(data: Path) -> None:
    raw = np.where(RNG.random((40, 31)) < 0.5, -1, 1)
    raw[:, 3] = RNG.integers(-1, 2, 40)
    put(data / "phishing" / "phishing_websites.csv", lines(raw))
    put(data / "phishing" / "phishing.libsvm.gz", one_hot_phishing(raw))
    table, codes = tabular.phishing(), tabular.phishing(raw=True)
    assert table.values.shape == (40, 68) and (table.labels == (raw[:, 30] > 0)).all()
    assert codes.values.shape == (40, 30) and codes.columns[3].categories == ("-1", "0", "1")
    for position, name in enumerate(PHISHING):
        cells = [k for k, column in enumerate(table.columns) if column.group == name]
        assert len(cells) == len(np.unique(raw[:, position]))
        assert ((table.values[:, cells] > 0).sum(1) == 1).all()


def test_ujiindoorloc_makes_silence_quieter_than_any_signal(data: Path) -> None:
    head = [*(f"WAP{k:03d}" for k in range(1, 521)), "LONGITUDE", "LATITUDE", "FLOOR", "BUILDINGID"]
    row = [100, -67, *[100] * 518, -7541.5, 4864920.75, 2, 1]
    for name in ("trainingData.csv", "validationData.csv"):
        put(data / "ujiindoorloc" / name, lines([head, row]))
    table = tabular.ujiindoorloc()
    assert table.values[0, :3].tolist() == [-105, -67, -105] and table.labels.tolist() == [-7541.5] * 2
    assert tabular.ujiindoorloc(target="latitude").labels[1] == 4864920.75
    assert tabular.ujiindoorloc(target="floor").labels.tolist() == [2, 2]
    with pytest.raises(InputError, match="did you mean 'longitude'"):
        tabular.ujiindoorloc(target="longtitude")


def test_nsl_kdd_drops_difficulty_and_knows_families(data: Path) -> None:
    def row(attack: str) -> list[Any]:
        return [0, "tcp", "http", "SF", *[1] * 37, attack, 21]

    put(data / "nsl_kdd" / "KDDTrain+_20Percent.txt", lines([row("normal"), row("neptune")]))
    put(data / "nsl_kdd" / "KDDTest+.txt.gz", lines([row("rootkit"), row("snmpguess"), row("saint")]))
    table = tabular.nsl_kdd()
    assert len(table.columns) == len(KDD) == 41 and table.labels.tolist() == [0, 1, 1, 1, 1]
    families = tabular.nsl_kdd(families=True)
    assert [families.classes[k] for k in families.labels] == ["normal", "dos", "u2r", "r2l", "probe"]
    put(data / "nsl_kdd" / "KDDTest+.txt.gz", lines([row("mystery")]))
    with pytest.raises(InputError, match="label 'mystery' in row 2"):
        tabular.nsl_kdd()


def test_taobao_joins_ads_and_users(data: Path) -> None:
    shown = [["user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"]]
    shown += [[k % 3, 1494137644, k % 2, "430548_1007", 1 - k % 2, k % 2] for k in range(12)]
    put(data / "taobao" / "raw_sample.csv", lines(shown))
    ads = [
        ["adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"],
        [0, 6261, 1, 1, 95471, 170.0],
    ]
    put(data / "taobao" / "ad_feature.csv", lines([*ads, [1, 4520, 1, 1, "NULL", 20.5]]))
    users = "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
    put(
        data / "taobao" / "user_profile.csv",
        users + "new_user_class_level \n0,0,5,2,5,,3,0,3\n1,0,5,1,5,2,3,0,\n",
    )
    table = tabular.taobao()
    by_name = {column.name: position for position, column in enumerate(table.columns)}
    assert len(by_name) == 11 and table.labels.tolist() == [k % 2 for k in range(12)]
    assert table.values[:2, by_name["price"]].tolist() == [170.0, 20.5]
    assert table.columns[by_name["brand"]].categories == ("95471", "?")
    assert table.columns[by_name["final_gender_code"]].categories == ("1", "2", "?")  # user 2 has no profile
    assert "other" in tabular.taobao(top=1).columns[by_name["cate_id"]].categories
    assert np.bincount(tabular.taobao(rows=6, seed=1).labels).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("load", "file", "names"), [(measured.susy, "SUSY.csv.gz", SUSY), (measured.higgs, "HIGGS.csv", HIGGS)]
)
def test_collisions_sample_in_chunks(
    data: Path, monkeypatch: pytest.MonkeyPatch, load: Any, file: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr("vflaudit.core.sources.frames.CHUNK_ROWS", 7)
    body = np.column_stack([np.arange(40) % 4 == 0, np.arange(40 * len(names)).reshape(40, -1)]).astype(float)
    put(data / file.split(".")[0].lower() / file, lines(body))
    table = load()
    assert len(table.columns) in (18, 28) and (table.values == body[:, 1:]).all()
    part = load(rows=12, seed=3)
    assert np.bincount(part.labels).tolist() == [9, 3]
    assert part.ids is not None and (part.values == body[part.ids.astype(int), 1:]).all()
    assert set(part.ids) != set(load(rows=12, seed=4).ids)


def test_year_prediction_has_the_year_first(data: Path) -> None:
    body = np.column_stack([[2001, 1999, 1922], RNG.integers(0, 99, (3, 90)) / 4])
    put(data / "year_prediction" / "YearPredictionMSD.txt", lines(body))
    table = measured.year_prediction()
    assert table.labels.tolist() == [2001, 1999, 1922] and (table.values == body[:, 1:]).all()
    assert len(measured.year_prediction(rows=2).labels) == 2


def test_higgs_small_accepts_a_folder_in_kebab_case(data: Path) -> None:
    for name, label in (("binary.train", 1), ("binary.test.gz", 0)):
        put(data / "higgs-small" / name, lines([[label, *np.arange(28) / 8]], "\t"))
    table = measured.higgs_small()
    assert table.labels.tolist() == [1, 0] and table.values[1].tolist() == (np.arange(28) / 8).tolist()


def test_superconduct_has_the_temperature_last(data: Path) -> None:
    head = [*(f"f{k}" for k in range(81)), "critical_temp"]
    put(data / "superconduct" / "train.csv", lines([head, [*range(81), 29.5]]))
    table = measured.superconduct()
    assert table.values.shape == (1, 81) and table.labels.tolist() == [29.5]


def test_gisette_with_and_without_validation(data: Path) -> None:
    def body(rows: int) -> str:
        return lines(RNG.integers(0, 999, (rows, 5000)), " ").replace("\n", " \n")  # as published

    put(data / "gisette" / "gisette_train.data", body(3))
    put(data / "gisette" / "gisette_train.labels", "1\n-1\n1\n")
    assert measured.gisette(validation=False).labels.tolist() == [1, 0, 1]
    put(data / "gisette" / "gisette_valid.data", body(2))
    put(data / "gisette_valid.labels", "-1\n-1\n")
    table = measured.gisette()
    assert table.values.shape == (5, 5000) and table.labels.tolist() == [1, 0, 1, 0, 0]
    put(data / "gisette_valid.labels", "-1\n")
    with pytest.raises(InputError, match="1 labels for 2 rows"):
        measured.gisette()


def test_rice_reads_arff_and_csv(data: Path) -> None:
    rows = [[15231, 525.5, 229.75, 85.0, 0.92, 15617, 0.57, name] for name in ("Cammeo", "Osmancik")]
    csv = put(data / "rice" / "Rice_Cammeo_Osmancik.csv", lines([[*RICE, "Class"], *rows]))
    from_csv = measured.rice()
    csv.unlink()
    head = "% comment\n@RELATION rice\n" + "".join(f"@ATTRIBUTE {name}\tREAL\n" for name in RICE)
    put(csv.with_suffix(".arff"), head + "@ATTRIBUTE Class {Cammeo, Osmancik}\n@DATA\n" + lines(rows))
    table = measured.rice()
    assert (table.values == from_csv.values).all() and table.labels.tolist() == [0, 1]
    assert table.values[0, :2].tolist() == [15231, 525.5]


def test_mimic_takes_any_columns_beside_the_label(data: Path) -> None:
    rows = [[20 + k, "F" if k % 2 else "M", k % 4] for k in range(24)]
    put(data / "mimic_iii" / "mimic3.csv", lines([["Age", "Gender", "label"], *rows]))
    table = measured.mimic_iii(rows=8)
    assert table.name == "mimic-iii" and np.bincount(table.labels).tolist() == [2, 2, 2, 2]
    assert [column.kind for column in table.columns] == ["numeric", "categorical"]


# Images


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def put_images(folder: Path, names: tuple[str, ...], ending: str = "") -> np.ndarray:
    pictures = RNG.integers(0, 256, (10, 28, 28))
    labels = np.arange(10) % 5
    for name, array in zip(names, (pictures[:6], labels[:6], pictures[6:], labels[6:]), strict=True):
        put(folder / (name + ending), idx(array))
    return pictures


MNIST_NAMES = tuple(names[0] for names in images.MNIST_FILES)


@pytest.mark.parametrize("name", ["mnist", "kmnist", "fashion_mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_images_are_scaled_and_in_file_order(data: Path, name: str, ending: str) -> None:
    pictures = put_images(data / name, MNIST_NAMES, ending)
    table = getattr(images, name)()
    assert table.image == (28, 28) and table.columns[29].name == "pixel_1_1" and len(table.classes) == 10
    assert table.values == pytest.approx(pictures.reshape(10, 784) / 255)
    assert table.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    part = getattr(images, name)(rows=5)
    assert sorted(part.labels) == [0, 1, 2, 3, 4]


def test_emnist_images_are_turned_upright(data: Path) -> None:
    pictures = put_images(data / "emnist", images.EMNIST_FILES)  # type: ignore[arg-type]
    table = images.emnist()
    assert len(table.classes) == 47 and table.classes[10] == "A"
    assert table.values.reshape(10, 28, 28) == pytest.approx(pictures.transpose(0, 2, 1) / 255)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not an IDX file"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x00", "is not an IDX file of bytes in 3 dimensions"),
        (idx(np.zeros((6, 28, 28)))[:-1], "announces 4704 bytes in (6, 28, 28) but holds 4703"),
        (struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3), "but holds 0"),
        (idx(np.zeros((5, 28, 28))), "has 6 labels for 5 images"),
        (gzip.compress(idx(np.zeros((6, 28, 28))), mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_damaged_image_file_is_told_in_one_sentence(data: Path, content: bytes, said: str) -> None:
    put_images(data / "mnist", MNIST_NAMES)
    put(data / "mnist" / MNIST_NAMES[0], content)
    with pytest.raises(InputError) as error:
        images.mnist()
    assert said in one_sentence(error)


@pytest.mark.parametrize("content", ["1,2\n", "a,b,c\n", '1,"2\n', ""])
def test_a_damaged_table_is_told_in_one_sentence(data: Path, content: str) -> None:
    put(data / "susy" / "SUSY.csv", content)
    with pytest.raises(InputError) as error:
        measured.susy()
    assert "SUSY.csv" in one_sentence(error)


# Not here, and no network

DOWNLOADED = {
    "adult": tabular.adult,
    "bank": tabular.bank,
    "covtype": tabular.covtype,
    "superconduct": measured.superconduct,
    "mnist": images.mnist,
    "kmnist": images.kmnist,
    "fashion_mnist": images.fashion_mnist,
}
LOCAL_ONLY = {
    "phishing": tabular.phishing,
    "ujiindoorloc": tabular.ujiindoorloc,
    "nsl_kdd": tabular.nsl_kdd,
    "taobao": tabular.taobao,
    "susy": measured.susy,
    "higgs": measured.higgs,
    "higgs_small": measured.higgs_small,
    "year_prediction": measured.year_prediction,
    "gisette": measured.gisette,
    "rice": measured.rice,
    "mimic_iii": measured.mimic_iii,
    "emnist": images.emnist,
}


def unreachable(**_: Any) -> Any:
    raise URLError("no route to host")


@pytest.mark.parametrize("folder", [*DOWNLOADED, *LOCAL_ONLY])
def test_a_missing_dataset_says_which_files_go_where(data: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    monkeypatch.setattr("sklearn.datasets.fetch_covtype", unreachable)
    with pytest.raises(InputError) as error:
        {**DOWNLOADED, **LOCAL_ONLY}[folder]()
    text = one_sentence(error)
    assert f"the folder {data / folder}" in text and " from " in text
    assert ("could not be downloaded (URLError)" in text) == (folder in DOWNLOADED)


def test_the_missing_sentence_names_every_file_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VFLAUDIT_DATA", raising=False)
    with pytest.raises(InputError) as error:
        tabular.nsl_kdd()
    text = one_sentence(error)
    for word in ("KDDTrain+.txt or KDDTrain+_20Percent.txt", "KDDTest+.txt", "nsl_kdd", "set VFLAUDIT_DATA"):
        assert word in text


def test_a_download_gives_the_same_table_and_must_not_change(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame([[*ADULT_ROW, "<=50K"], [*ADULT_ROW, ">50K"]], columns=[*ADULT, "class"])
    frame.loc[1, "workclass"] = None
    asked: list[dict[str, Any]] = []

    def fetch(**options: Any) -> SimpleNamespace:
        asked.append(options)
        return SimpleNamespace(frame=frame.copy())

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    downloaded = tabular.adult()
    assert asked[0]["data_id"] == 1590 and downloaded.columns[1].categories == ("?", "State-gov")
    assert (tabular.adult().values == downloaded.values).all()
    frame.loc[0, "age"] = "40"
    with pytest.raises(InputError, match="is not the one that was recorded first"):
        tabular.adult()
    assert "adult" in (data.parent / "cache" / local.HASHES).read_text()


def test_the_openml_bank_is_renamed_and_images_are_reshaped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"V{k}" for k in range(1, 17)), "Class"]
    answer = SimpleNamespace(frame=pd.DataFrame([[*BANK_ROW, "2"], [*BANK_ROW, "1"]], columns=names))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: answer)
    table = tabular.bank()
    assert table.labels.tolist() == [1, 0] and table.columns[5].name == "balance" and table.values[0, 5] == 2143
    pixels = pd.DataFrame(np.arange(784)[None] % 256, columns=[f"pixel{k}" for k in range(1, 785)])
    answer.frame = pixels.assign(**{"class": ["7"]})
    picture = images.mnist()
    assert picture.labels.tolist() == [7] and picture.values[0, 30] == pytest.approx(30 / 255)


# Real files


@needs_real_files
@pytest.mark.parametrize(
    ("load", "shape", "counts"),
    [
        (tabular.adult, (48842, 14), [37155, 11687]),
        (tabular.bank, (45211, 16), [39922, 5289]),
        (tabular.covtype, (581012, 12), [211840, 283301, 35754, 2747, 9493, 17367, 20510]),
        (tabular.phishing, (11055, 68), [4898, 6157]),
        (tabular.ujiindoorloc, (21048, 520), None),
        (tabular.nsl_kdd, (25192 + 22544, 41), [23160, 24576]),
        (measured.higgs_small, (7500, 28), [3512, 3988]),
    ],
)
def test_real_tables_are_complete(real: None, load: Any, shape: tuple[int, int], counts: list[int] | None) -> None:
    table = load()
    assert table.values.shape == shape
    assert counts is None or np.bincount(table.labels).tolist() == counts


@needs_real_files
def test_real_phishing_cells_agree_with_the_raw_columns(real: None) -> None:
    cells, raw = tabular.phishing(), tabular.phishing(raw=True)
    assert (cells.labels == raw.labels).all()
    for position, column in enumerate(raw.columns):
        own = [k for k, cell in enumerate(cells.columns) if cell.group == column.name]
        pairs = np.column_stack([raw.values[:, position], cells.values[:, own].argmax(1)])
        assert len(np.unique(pairs, axis=0)) == len(own) == len(column.categories)


@needs_real_files
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_images_are_complete_and_sampled_by_class(real: None, name: str) -> None:
    for names, count in zip(images.MNIST_FILES, (60_000, 60_000, 10_000, 10_000), strict=True):
        path = local.find_file(name, names)
        assert path is not None
        assert len(images.read_idx(name, path, 3 if "images" in path.name else 1)) == count
    table = getattr(images, name)(rows=1000)
    assert table.values.shape == (1000, 784) and table.values.max() == 1.0
    assert np.bincount(table.labels).min() >= 90


@needs_real_files
def test_a_subsample_keeps_class_shares_and_follows_its_seed(real: None) -> None:
    whole, part, again = tabular.bank(), tabular.bank(rows=1000, seed=1), tabular.bank(rows=1000, seed=1)
    assert np.bincount(part.labels).tolist() == [883, 117]
    assert part.ids is not None and (part.values == whole.values[part.ids.astype(int)]).all()
    assert (part.ids == again.ids).all() and not (part.ids == tabular.bank(rows=1000, seed=2).ids).all()
    with pytest.raises(InputError, match="rows=99999 is not a whole number from 1 to 45211"):
        tabular.bank(rows=99_999)


# The user's own file


def user_csv(rows: int = 30, **columns: Any) -> str:
    base: dict[str, Any] = {
        "age": [20 + k for k in range(rows)],
        "city": ["Rome" if k % 3 else "Oslo" for k in range(rows)],
        "y": [k % 2 for k in range(rows)],
    }
    table = {**base, **columns}
    return lines([list(table), *zip(*table.values(), strict=True)])


def test_a_user_file_becomes_a_table(tmp_path: Path) -> None:
    content = user_csv(id=[f"p{k}" for k in range(30)], ok=[k < 9 for k in range(30)], note=["a", ""] * 15)
    table = read_user_file(put(tmp_path / "people.csv", content), "y", id_column="id")
    assert table.name == "people" and table.task == "classification" and table.classes == ("0", "1")
    assert [column.kind for column in table.columns] == [
        "numeric",
        "categorical",
        "categorical",
        "categorical",
    ]
    assert table.columns[1].categories == ("Oslo", "Rome") and table.columns[3].categories == ("?", "a")
    assert table.ids is not None and table.ids[3] == "p3" and table.values[3].tolist() == [23, 0, 1, 0]


def test_tsv_gzip_parquet_and_spreadsheet_marks_read_the_same(tmp_path: Path) -> None:
    content = user_csv()
    plain = read_user_file(put(tmp_path / "a.csv", content), "y")
    frame = pd.read_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    put(tmp_path / "a.tsv", content.replace(",", "\t"))
    put(tmp_path / "b.csv.gz", "\ufeff" + content)
    for name in ("a.parquet", "a.tsv", "b.csv.gz"):
        other = read_user_file(tmp_path / name, "y")
        assert other.columns == plain.columns and (other.values == plain.values).all()


def test_the_task_follows_the_label_unless_told(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", user_csv(grade=[k % 10 for k in range(30)]))
    assert read_user_file(path, "age").task == "regression"
    assert read_user_file(path, "grade").classes == tuple("0123456789")
    assert read_user_file(path, "grade", task="regression").labels[7] == 7.0
    assert read_user_file(path, "city").classes == ("Oslo", "Rome")


BAD_FILES: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("a.csv", b"", {}, "is empty"),
    ("a.xlsx", "x", {}, "does not end in .csv, .tsv or .parquet"),
    ("a.csv", user_csv(), {"label": "Y2"}, "no column in a.csv named 'Y2'"),
    ("a.csv", user_csv(), {"label": "ag"}, "did you mean 'age'?"),
    ("a.csv", user_csv(), {"id_column": "idd"}, "named 'idd'"),
    ("a.csv", user_csv(), {"id_column": "y"}, "both the label and the id"),
    ("a.csv", user_csv(), {"id_column": "city"}, "the id 'Rome' in column 'city' occurs more than once"),
    ("a.csv", user_csv(), {"task": "regresion"}, "did you mean 'regression'?"),
    ("a.csv", user_csv(), {"label": "city", "task": "regression"}, "'city' is not numeric"),
    ("a.csv", user_csv(), {"label": "age", "task": "classification"}, "too many to be classes"),
    ("a.csv", user_csv(y=[1, ""] * 15), {}, "'y' has no value in data row 2"),
    ("a.csv", user_csv(y=[1] * 30), {}, "the same value"),
    ("a.csv", user_csv(19), {}, "19 rows are too few, expected at least 20"),
    ("a.csv", lines([["y"], *[[k % 2] for k in range(30)]]), {}, "no feature column"),
    ("a.csv", user_csv().replace("city", "age", 1), {}, "two columns are named 'age'"),
    ("a.csv", user_csv(name=[f"n{k}" for k in range(30)]), {}, "'name' is different, as in an id"),
    ("a.csv", user_csv(bmi=[1.5] * 4 + ["inf"] + [2] * 25), {}, "'bmi' is infinite in data row 5"),
    ("a.csv", user_csv(bmi=[1.5] * 6 + [""] + [2] * 23), {}, "'bmi' has no value in data row 7"),
    ("a.csv", user_csv(bmi=[1.5] * 6 + ["tall"] + [2] * 23), {}, "numbers but for 'tall' in data row 7"),
    ("a.csv", user_csv(bmi=[""] * 30), {}, "'bmi' is empty in every row"),
    ("a.csv", user_csv().replace("city", ""), {}, "column 2 has no name"),
    ("a.csv", user_csv().replace(",", ";"), {}, "is separated by ';'"),
    ("a.csv", user_csv().replace("Rome", "Rome,x"), {}, "Expected 3 fields in line 3, saw 4"),
    ("a.csv", user_csv().replace("\n", ",9\n").replace("y,9", "y", 1), {}, "a row has more cells than"),
    ("a.csv", user_csv() + '"open', {}, "cannot be read as a table"),
    ("a.csv", b"a,y\n\xff\xfe,1\n", {}, "is not text in UTF-8"),
    ("a.csv", gzip.compress(user_csv().encode(), mtime=0)[:-20], {}, "cannot be read as a table"),
    ("a.parquet", b"PAR1 not really", {}, "cannot be read as a Parquet file"),
]


@pytest.mark.parametrize(("name", "content", "options", "said"), BAD_FILES, ids=[case[3] for case in BAD_FILES])
def test_a_mistake_in_a_user_file_is_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, options: dict[str, Any], said: str
) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(InputError) as error:
        read_user_file(path, **{"label": "y", **options})
    assert said in one_sentence(error)


def test_a_user_file_that_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        read_user_file(tmp_path, "y")
    with pytest.raises(InputError, match="there is no file"):
        read_user_file(tmp_path / "a.csv", "y")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.parquet", b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("pandas.read_parquet", lambda *_, **__: __import__("pyarrow"))
    with pytest.raises(InputError, match="with the extra 'parquet'"):
        read_user_file(path, "y")


def test_parquet_with_dates_or_lists_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": [0, 1] * 15, "day": pd.date_range("2020-01-01", periods=30)})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'day' holds dates"):
        read_user_file(tmp_path / "a.parquet", "y")
    frame.assign(day=[[1, 2]] * 30).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'day' holds lists"):
        read_user_file(tmp_path / "a.parquet", "y")


def test_importing_every_source_imports_neither_pandas_nor_sklearn() -> None:
    code = (
        "import sys; from vflaudit.core.sources import bundled, images, measured, synthetic, tabular, user; "
        "print([name for name in ('pandas', 'sklearn', 'rich', 'torch', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
