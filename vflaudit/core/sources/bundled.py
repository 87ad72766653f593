"""Small real datasets that come with scikit-learn: no file and no network needed."""

from __future__ import annotations

from typing import Any

from vflaudit.core.dataset import Column, Table, Task
from vflaudit.core.sources.frames import sampled


def _table(name: str, bunch: Any, task: Task, rows: int | None, seed: int, **more: Any) -> Table:
    columns = tuple(Column(str(title)) for title in bunch.feature_names)
    classes = tuple(str(title) for title in bunch.target_names) if task == "classification" else ()
    return sampled(Table(name, columns, bunch.data, bunch.target, task, classes=classes, **more), rows, seed)


def breast_cancer(*, rows: int | None = None, seed: int = 0) -> Table:
    """Breast Cancer Wisconsin: 569 tumours, 30 columns, binary (APC-VFL)."""
    from sklearn.datasets import load_breast_cancer

    return _table("breast-cancer", load_breast_cancer(), "classification", rows, seed)


def wine(*, rows: int | None = None, seed: int = 0) -> Table:
    """Wine recognition: 178 wines, 13 columns, 3 classes."""
    from sklearn.datasets import load_wine

    return _table("wine", load_wine(), "classification", rows, seed)


def digits(*, rows: int | None = None, seed: int = 0) -> Table:
    """Handwritten digits: 1,797 images of 8 by 8 pixels from 0 to 16, 10 classes."""
    from sklearn.datasets import load_digits

    return _table("digits", load_digits(), "classification", rows, seed, image=(8, 8))


def diabetes(*, rows: int | None = None, seed: int = 0) -> Table:
    """Diabetes progression: 442 patients, 10 columns in their own units, regression."""
    from sklearn.datasets import load_diabetes

    # Raw units: the scaled form divides by statistics of all patients, those held out for testing included.
    return _table("diabetes", load_diabetes(scaled=False), "regression", rows, seed)


def iris(*, rows: int | None = None, seed: int = 0) -> Table:
    """Iris flowers: 150 flowers, 4 columns, 3 classes."""
    from sklearn.datasets import load_iris

    return _table("iris", load_iris(), "classification", rows, seed)
