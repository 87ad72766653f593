"""Published tables about people, places and networks, from local files or a download.

Every loader returns the rows in file order; with `rows` it returns a random part of them, stratified by class
in a classification and uniform in a regression, drawn with `seed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from vflaudit.core.dataset import Array, Table
from vflaudit.core.sources.frames import (
    choose_rows,
    class_codes,
    from_frame,
    read_csv,
    read_headless,
    sampled,
)
from vflaudit.core.sources.local import (
    download,
    fetch_openml_table,
    find_all,
    open_bytes,
    reading,
    require,
)
from vflaudit.core.sources.names import (
    ADULT,
    ADULT_NUMERIC,
    BANK,
    BANK_NUMERIC,
    COVER_TYPES,
    COVTYPE_NUMERIC,
    KDD,
    KDD_FAMILIES,
    PHISHING,
    TAOBAO,
    WILDERNESS,
)
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

UCI = "the UCI repository"


def adult(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI Adult income: 48,842 people, 14 columns, binary (vFedSec).

    Files adult.data and adult.test. A missing value, '?', stays a category of its own.
    """
    import pandas as pd

    files = ("adult.data", "adult.test")
    paths = find_all("adult", files)
    if paths is None:
        frame = fetch_openml_table("adult", data_id=1590, files=files, where=UCI)
        frame = _expected("adult", frame.rename(columns={"class": "income"}), (*ADULT, "income"))
    else:
        # The test file opens with a comment line that starts with '|'.
        parts = [
            read_headless("adult", path, (*ADULT, "income"), skipinitialspace=True, comment="|", keep_default_na=False)
            for path in paths
        ]
        frame = pd.concat(parts, ignore_index=True)
    labels = class_codes("adult", frame.pop("income").astype(str).str.rstrip("."), ("<=50K", ">50K"))
    categorical = set(ADULT) - set(ADULT_NUMERIC)
    table = from_frame(
        "adult", frame, labels, task="classification", classes=("<=50K", ">50K"), categorical=categorical
    )
    return sampled(table, rows, seed)


def bank(*, day: Literal["number", "category"] = "number", rows: int | None = None, seed: int = 0) -> Table:
    """UCI Bank Marketing: 45,211 clients, 16 columns, binary (vFedSec, TabVFL).

    File bank-full.csv, separated by semicolons. The OpenML copy has the same columns in the same order, but
    calls them V1 to V16 and the label 1 or 2. `day=category` makes the day of the month 31 categories: only so
    has vFedSec's active party the 57 inputs of its appendix A.1.
    """
    paths = find_all("bank", ("bank-full.csv",))
    if paths is None:
        frame = fetch_openml_table("bank", data_id=1461, files=("bank-full.csv",), where=UCI)
        frame = _expected("bank", frame, (*(f"V{k}" for k in range(1, 17)), "Class"))
        frame.columns = [*BANK, "y"]
        frame["y"] = frame["y"].astype(str).replace({"1": "no", "2": "yes"})
    else:
        frame = _expected("bank", read_csv("bank", paths[0], sep=";"), (*BANK, "y"))
    labels = class_codes("bank", frame.pop("y"), ("no", "yes"))
    categorical = set(BANK) - set(BANK_NUMERIC) | ({"day"} if day == "category" else set())
    table = from_frame("bank", frame, labels, task="classification", classes=("no", "yes"), categorical=categorical)
    return sampled(table, rows, seed)


def _expected(dataset: str, frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """Exactly these columns, in this order; a column that is not there is an error that names it."""
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise InputError(f"dataset {dataset!r}: the column {absent[0]!r} is not among the columns that were read")
    return frame[list(names)].copy()


def covtype(*, binary: bool = False, one_hot: bool = False, rows: int | None = None, seed: int = 0) -> Table:
    """UCI Covertype: 581,012 forest cells, 10 numeric and 2 categorical columns, 7 classes (RAP).

    File covtype.csv (with a header) or covtype.data (without). `one_hot` keeps the published 54 columns;
    `binary` is FedOnce's task, the second class against the rest.
    """
    wilderness = [f"Wilderness_Area{k}" for k in range(1, 5)]
    soil = [f"Soil_Type{k}" for k in range(1, 41)]
    names = (*COVTYPE_NUMERIC, *wilderness, *soil, "Cover_Type")
    frame = _covtype_frame(names)
    labels = class_codes("covtype", frame.pop("Cover_Type").astype(int), [str(k) for k in range(1, 8)])
    classes = COVER_TYPES
    if binary:
        labels, classes = (labels == 1).astype(int), ("another", COVER_TYPES[1])
    groups = {name: name.rstrip("0123456789") for name in (*wilderness, *soil)}
    if not one_hot:
        area, kind = _undo_one_hot(frame[wilderness]), _undo_one_hot(frame[soil])
        frame = frame[list(COVTYPE_NUMERIC)].assign(
            Wilderness_Area=np.array(WILDERNESS, dtype=object)[area], Soil_Type=kind + 1
        )
    table = from_frame(
        "covtype",
        frame,
        labels,
        task="classification",
        classes=classes,
        categorical=() if one_hot else ("Wilderness_Area", "Soil_Type"),
        groups=groups,
    )
    return sampled(table, rows, seed)


def _covtype_frame(names: tuple[str, ...]) -> pd.DataFrame:
    files = (("covtype.csv", "covtype.data"),)
    paths = find_all("covtype", files)
    if paths is not None and paths[0].name.startswith("covtype.data"):
        return read_headless("covtype", paths[0], names, dtype=np.int16)
    if paths is not None:
        return _expected("covtype", read_csv("covtype", paths[0], dtype=np.int16), names)

    def fetch() -> pd.DataFrame:
        from sklearn import datasets

        return datasets.fetch_covtype(as_frame=True, n_retries=1, delay=0.1).frame

    frame = download("covtype", fetch, files=files, where=UCI)
    if frame.shape[1] != len(names):
        raise InputError(f"dataset 'covtype': the download has {frame.shape[1]} columns, not {len(names)}")
    frame.columns = list(names)
    return frame


def _undo_one_hot(cells: pd.DataFrame) -> Array:
    matrix = cells.to_numpy()
    if not (matrix.sum(1) == 1).all():
        row = int(np.argmax(matrix.sum(1) != 1))
        raise InputError(f"dataset 'covtype': row {row} has not exactly one of {', '.join(cells.columns[:4])}, …")
    return matrix.argmax(1)


def phishing(*, raw: bool = False, rows: int | None = None, seed: int = 0) -> Table:
    """Phishing websites: 11,055 sites, 68 one-hot cells of 30 columns, binary (FedOnce).

    File phishing.libsvm, the LIBSVM form, in which a set cell is 1/sqrt(30). With `raw`, the 30 columns
    themselves as categories: phishing_websites.csv (no header, the label last), or the OpenML copy.
    """
    classes = ("phishing", "legitimate")
    if raw:
        frame = _phishing_frame()
        labels = class_codes("phishing", frame.pop("Result"), ("-1", "1"))
        table = from_frame("phishing", frame, labels, task="classification", classes=classes, categorical=PHISHING)
        return sampled(table, rows, seed)
    from sklearn.datasets import load_svmlight_file

    (path,) = require("phishing", (("phishing.libsvm", "phishing", "phishing.txt"),), "the LIBSVM collection")
    with reading("phishing", path), open_bytes(path) as file:
        matrix, labels = load_svmlight_file(file, n_features=68)
    import pandas as pd

    cells = pd.DataFrame(matrix.toarray(), columns=[f"cell{k}" for k in range(1, 69)])
    groups = dict(zip(cells.columns, _phishing_groups(cells.to_numpy() > 0), strict=True))
    table = from_frame("phishing", cells, labels > 0, task="classification", classes=classes, groups=groups)
    return sampled(table, rows, seed)


def _phishing_frame() -> pd.DataFrame:
    names, files = (*PHISHING, "Result"), ("phishing_websites.csv",)
    paths = find_all("phishing", files)
    if paths is None:
        return _expected("phishing", fetch_openml_table("phishing", data_id=4534, files=files, where=UCI), names)
    return read_headless("phishing", paths[0], names)


def _phishing_groups(cells: Array) -> list[str]:
    """Which of the 30 columns each one-hot cell belongs to.

    The LIBSVM file numbers the cells by first appearance, row by row and column by column. So in any row the
    cells that are new stand, in order, for the columns of which no known cell is set.
    """
    owner = np.full(cells.shape[1], -1)
    for row in cells:
        new = np.flatnonzero(row & (owner < 0))
        if len(new):
            free = np.setdiff1d(np.arange(len(PHISHING)), owner[row & (owner >= 0)])
            if len(free) != len(new):
                raise InputError("dataset 'phishing': the LIBSVM file does not set one cell for each of 30 columns")
            owner[new] = free
        if (owner >= 0).all():
            break
    return [PHISHING[column] if column >= 0 else "unused" for column in owner]


def ujiindoorloc(*, target: str = "longitude", rows: int | None = None, seed: int = 0) -> Table:
    """UCI UJIIndoorLoc: 21,048 phones, signal of 520 WiFi stations, regression (FedOnce).

    Files trainingData.csv and validationData.csv. A station that was not heard is published as +100 dBm,
    louder than all others; it becomes -105, just below the faintest signal. `target` is longitude, latitude
    (regressions, in metres) or floor (5 classes); FedOnce (Table 1) says regression without naming its
    target.
    """
    import pandas as pd

    if target not in ("longitude", "latitude", "floor"):
        raise unknown("target of ujiindoorloc", target, ("longitude", "latitude", "floor"))
    stations = [f"WAP{k:03d}" for k in range(1, 521)]
    paths = require("ujiindoorloc", ("trainingData.csv", "validationData.csv"), UCI)
    names = (*stations, target.upper())
    frame = pd.concat([_expected("ujiindoorloc", read_csv("ujiindoorloc", path), names) for path in paths])
    labels = frame.pop(target.upper())
    heard = frame.where(frame != 100, -105)
    if target == "floor":
        floors = [str(k) for k in range(5)]
        codes = class_codes("ujiindoorloc", labels, floors)
        table = from_frame("ujiindoorloc", heard, codes, task="classification", classes=floors)
    else:
        table = from_frame("ujiindoorloc", heard, labels.to_numpy(), task="regression")
    return sampled(table, rows, seed)


def nsl_kdd(*, families: bool = False, rows: int | None = None, seed: int = 0) -> Table:
    """NSL-KDD network intrusions: 41 columns, normal or attack (a relative of TabVFL's intrusion).

    Files KDDTrain+.txt, or else its published 20% KDDTrain+_20Percent.txt, and KDDTest+.txt; the difficulty
    column is dropped. `families` gives five classes: normal, dos, probe, r2l, u2r.
    """
    import pandas as pd

    train = ("KDDTrain+.txt", "KDDTrain+_20Percent.txt")
    paths = require("nsl-kdd", (train, "KDDTest+.txt"), "the Canadian Institute for Cybersecurity")
    names = (*KDD, "attack", "difficulty")
    frame = pd.concat([read_headless("nsl-kdd", path, names) for path in paths], ignore_index=True)
    family = frame["attack"].map(KDD_FAMILIES).fillna(frame["attack"])
    classes = tuple(dict.fromkeys(KDD_FAMILIES.values()))
    labels = class_codes("nsl-kdd", family, classes)
    if not families:
        labels, classes = (labels > 0).astype(int), ("normal", "attack")
    table = from_frame(
        "nsl-kdd",
        frame[list(KDD)],
        labels,
        task="classification",
        classes=classes,
        categorical=("protocol_type", "service", "flag"),
        notes=f"training part: {paths[0].name}",
    )
    return sampled(table, rows, seed)


def taobao(*, top: int = 80, rows: int | None = None, seed: int = 0) -> Table:
    """Taobao ad clicks: 26 million displays, the 11 columns of vFedSec, binary (vFedSec).

    Files raw_sample.csv, ad_feature.csv and user_profile.csv, joined on user and adgroup_id; the label is
    clk. Of cate_id and brand, which have thousands of values, the `top` most frequent stay and the others
    become 'other': the paper's first layer (appendix A.1, 197 inputs at the active party) shows that it too
    reduced them, not how. A value that is missing, or a user without a profile, is the category '?'.
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError(f"dataset 'taobao': top={top!r} is not a whole number from 1 on")
    paths = require("taobao", ("raw_sample.csv", "ad_feature.csv", "user_profile.csv"), "Alibaba's Tianchi platform")
    types = {"user": str, "adgroup_id": str, "pid": str, "clk": np.int8}
    shown = read_csv("taobao", paths[0], usecols=list(types), dtype=types)
    # The sample is drawn before the join, so that only its rows are widened.
    chosen = choose_rows("taobao", shown["clk"].to_numpy(), rows, seed, stratify=True)
    shown = shown.iloc[chosen].reset_index(drop=True)
    ads, users = (read_csv("taobao", path, dtype=str).rename(columns=str.strip) for path in paths[1:])
    profile = ("user", *(name for name in TAOBAO if name not in ("pid", "cate_id", "brand", "price")))
    ads = _expected("taobao", ads, ("adgroup_id", "cate_id", "brand", "price")).drop_duplicates("adgroup_id")
    users = _expected("taobao", users.rename(columns={"userid": "user"}), profile).drop_duplicates("user")
    frame = shown.merge(ads, on="adgroup_id", how="left").merge(users, on="user", how="left")
    for name in ("cate_id", "brand"):
        common = frame[name].value_counts().index[:top]
        frame[name] = frame[name].where(frame[name].isin(common) | frame[name].isna(), "other")
    table = from_frame(
        "taobao",
        frame[list(TAOBAO)],
        frame["clk"].to_numpy(),
        task="classification",
        classes=("no click", "click"),
        categorical=set(TAOBAO) - {"price"},
    )
    return replace(table, ids=chosen)
