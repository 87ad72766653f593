"""Published tables of measurements: physics, songs, superconductors, digits, rice, intensive care."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vflaudit.core.dataset import Array, Column, Table
from vflaudit.core.sources.frames import (
    class_codes,
    from_frame,
    read_arff,
    read_csv,
    read_headless,
    read_label_first,
    sampled,
)
from vflaudit.core.sources.local import fetch_openml_table, find_all, require
from vflaudit.core.sources.names import HIGGS, RICE, SUSY, YEAR_PREDICTION
from vflaudit.core.sources.user import read_user_file
from vflaudit.errors import InputError

UCI = "the UCI repository"
COLLISION = ("background", "signal")


def susy(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI SUSY: 5,000,000 simulated collisions, 18 columns, binary (RAP).

    File SUSY.csv, the label first. Ask for `rows` (RAP draws 1,000,000 at random): the rest is then never
    kept in memory.
    """
    (path,) = require("susy", ("SUSY.csv",), UCI)
    return _collisions("susy", path, SUSY, rows, seed)


def higgs(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI HIGGS: 11,000,000 simulated collisions, 21 low-level and 7 high-level columns, binary (RAP).

    File HIGGS.csv, the label first. Ask for `rows` (RAP draws 1,000,000 at random): the rest is then never
    kept in memory.
    """
    (path,) = require("higgs", ("HIGGS.csv",), UCI)
    return _collisions("higgs", path, HIGGS, rows, seed)


def _collisions(name: str, path: Path, names: tuple[str, ...], rows: int | None, seed: int) -> Table:
    values, labels, chosen = read_label_first(name, path, names, rows, seed, stratify=True)
    columns = tuple(Column(title) for title in names)
    return Table(name, columns, values, _zero_one(name, labels), "classification", COLLISION, ids=chosen)


def _zero_one(name: str, labels: Array) -> Array:
    if not np.isin(labels, (0.0, 1.0)).all():
        raise InputError(f"dataset {name!r}: the first column of the file is not a label of 0 or 1")
    return labels


def higgs_small(*, rows: int | None = None, seed: int = 0) -> Table:
    """A small HIGGS lookalike: 7,500 collisions, 28 columns, binary (stands in for RAP's HI).

    Files binary.train and binary.test of LightGBM's binary classification example, tab-separated, the label
    first.
    """
    import pandas as pd

    paths = require("higgs-small", ("binary.train", "binary.test"), "LightGBM's binary classification example")
    names = ("label", *HIGGS)
    parts = [read_headless("higgs-small", path, names, sep="\t") for path in paths]
    frame = pd.concat(parts, ignore_index=True)
    labels = _zero_one("higgs-small", frame.pop("label").to_numpy())
    notes = "very likely a part of HIGGS, which its publisher does not say"
    table = from_frame("higgs-small", frame, labels, task="classification", classes=COLLISION, notes=notes)
    return sampled(table, rows, seed)


def year_prediction(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI YearPredictionMSD: 515,345 songs, 90 timbre columns, regression of the year (RAP).

    File YearPredictionMSD.txt, the year first.
    """
    (path,) = require("year-prediction", ("YearPredictionMSD.txt",), UCI)
    values, years, chosen = read_label_first("year-prediction", path, YEAR_PREDICTION, rows, seed, stratify=False)
    columns = tuple(Column(title) for title in YEAR_PREDICTION)
    return Table("year-prediction", columns, values, years, "regression", ids=chosen)


def superconduct(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI Superconductivity: 21,263 superconductors, 81 columns, regression (FedOnce).

    File train.csv, the column critical_temp last.
    """
    paths = find_all("superconduct", ("train.csv",))
    frame = (
        read_csv("superconduct", paths[0])
        if paths is not None
        else fetch_openml_table("superconduct", name="superconduct", version=1, files=("train.csv",), where=UCI)
    )
    if "critical_temp" not in frame.columns or frame.shape[1] != 82:
        raise InputError("dataset 'superconduct': expected 81 feature columns and the column 'critical_temp'")
    temperature = frame.pop("critical_temp").to_numpy()
    return sampled(from_frame("superconduct", frame, temperature, task="regression"), rows, seed)


def gisette(*, validation: bool = True, rows: int | None = None, seed: int = 0) -> Table:
    """UCI Gisette: 7,000 handwritten 4s and 9s, 5,000 columns, binary (FedOnce).

    Files gisette_train.data, gisette_train.labels and, unless `validation` is false (FedOnce's 6,000 rows),
    gisette_valid.data and gisette_valid.labels, which the publisher keeps one folder higher.
    """
    import pandas as pd

    files: list[str | tuple[str, ...]] = ["gisette_train.data", "gisette_train.labels"]
    if validation:
        files += ["gisette_valid.data", ("gisette_valid.labels", "../gisette_valid.labels")]
    paths = require("gisette", files, UCI)
    names = [f"feature{k}" for k in range(1, 5001)]
    features = [read_headless("gisette", path, names, sep=r"\s+") for path in paths[::2]]
    answers = [read_headless("gisette", path, ["label"]) for path in paths[1::2]]
    for part, answer, path in zip(features, answers, paths[1::2], strict=True):
        if len(part) != len(answer):
            raise InputError(f"dataset 'gisette': {path} has {len(answer)} labels for {len(part)} rows")
    labels = class_codes("gisette", pd.concat(answers, ignore_index=True)["label"], ("-1", "1"))
    frame = pd.concat(features, ignore_index=True)
    table = from_frame("gisette", frame, labels, task="classification", classes=("-1", "1"))
    return sampled(table, rows, seed)


def rice(*, rows: int | None = None, seed: int = 0) -> Table:
    """UCI Rice (Cammeo and Osmancik): 3,810 grains, 7 columns, binary (a relative of TabVFL's Rice MSC).

    File Rice_Cammeo_Osmancik.arff or .csv, the column Class last. TabVFL's own rice data has 106 columns and
    5 classes (Table II) and is another dataset.
    """
    (path,) = require("rice", (("Rice_Cammeo_Osmancik.arff", "Rice_Cammeo_Osmancik.csv"),), UCI)
    frame = read_arff("rice", path) if ".arff" in path.name else read_csv("rice", path)
    if frame.shape[1] != len(RICE) + 1:
        raise InputError(f"dataset 'rice': the file {path} has {frame.shape[1]} columns, not {len(RICE) + 1}")
    frame.columns = [*RICE, "Class"]
    classes = ("Cammeo", "Osmancik")
    labels = class_codes("rice", frame.pop("Class"), classes)
    return sampled(from_frame("rice", frame, labels, task="classification", classes=classes), rows, seed)


def mimic_iii(*, rows: int | None = None, seed: int = 0) -> Table:
    """MIMIC-III hospital stays, from a CSV that you prepare: 58,976 stays, 15 columns, 4 classes (APC-VFL).

    File mimic3.csv with a header: a column `label` (the class) and any others, which become features. APC-VFL
    (section V) has 15 features, among them Age, NumCallouts, NumDiagnosis, NumProcs and NumCPTevents, and 4
    classes. The data may be had only after training and under an agreement, so no download is offered.
    """
    (path,) = require("mimic-iii", ("mimic3.csv",), "PhysioNet, prepared as in APC-VFL section V,")
    table = read_user_file(path, "label", task="classification")
    return sampled(replace(table, name="mimic-iii"), rows, seed)
