"""From a pandas frame to a `Table`, and from a table to a smaller one: what all file loaders share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit.core.dataset import Array, Column, Table, Task
from vflaudit.core.randomness import stream
from vflaudit.core.sources.local import open_bytes, open_text, reading
from vflaudit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MISSING = "?"
CHUNK_ROWS = 250_000


def choose_rows(name: str, labels: Array, rows: int | None, seed: int, *, stratify: bool) -> Array:
    """Positions of a random subsample, in file order; stratified keeps class shares to within one row."""
    total = len(labels)
    if rows is None:
        return np.arange(total)
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= total:
        raise InputError(f"dataset {name!r}: rows={rows!r} is not a whole number from 1 to {total}")
    rng = stream(seed, "subsample", name)
    if not stratify:
        return np.sort(rng.choice(total, size=rows, replace=False))
    order = rng.permutation(total)
    _, codes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    shares = counts * rows / total
    quota = np.floor(shares).astype(int)
    # Largest remainders get the rows that rounding down left over.
    quota[np.argsort(quota - shares, kind="stable")[: rows - quota.sum()]] += 1
    by_class = np.argsort(codes, kind="stable")
    rank = np.empty(total, dtype=int)
    rank[by_class] = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < quota[codes]])


def sampled(table: Table, rows: int | None, seed: int) -> Table:
    """The table, or a random part of it with `rows` rows: stratified by class, uniform in a regression."""
    if rows is None:
        return table
    stratify = table.task == "classification"
    return table.take(choose_rows(table.name, table.labels, rows, seed, stratify=stratify))


def category_codes(values: pd.Series) -> tuple[Array, tuple[str, ...]]:
    """Integer codes and sorted names; a missing value is a category of its own, numbers sort as such."""
    import pandas as pd

    text = values.astype(object).where(values.notna(), MISSING).astype(str)
    names = sorted(text.unique(), key=_natural)
    return np.asarray(pd.Categorical(text, categories=names).codes, dtype=np.int64), tuple(names)


def _natural(name: str) -> tuple[int, float, str]:
    digits = name.removeprefix("-")
    return (0, float(name), name) if digits.isascii() and digits.isdigit() else (1, 0.0, name)


def from_frame(
    name: str,
    features: pd.DataFrame,
    labels: Array,
    *,
    task: Task,
    classes: Sequence[str] = (),
    categorical: Collection[str] = (),
    groups: dict[str, str] | None = None,
    notes: str = "",
) -> Table:
    """A table: `categorical` columns as codes, `groups` as one-hot cells, all others as numbers."""
    import pandas as pd

    columns, values = [], np.empty(features.shape)
    for position, title in enumerate(map(str, features.columns)):
        series = features.iloc[:, position]
        if title in categorical:
            values[:, position], names = category_codes(series)
            columns.append(Column(title, "categorical", names))
        else:
            # What is not a number becomes NaN, which the table reports with its column and row.
            values[:, position] = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
            group = (groups or {}).get(title)
            columns.append(Column(title, "indicator", group=group) if group else Column(title))
    return Table(name, tuple(columns), values, labels, task, classes=tuple(classes), notes=notes)


def class_codes(name: str, values: pd.Series, classes: Sequence[str]) -> Array:
    """Positions of the labels in `classes`; an unknown label is an error that names it."""
    import pandas as pd

    codes = pd.Index(list(classes)).get_indexer(pd.Index(values.astype(str)))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise InputError(
            f"dataset {name!r}: label {values.iloc[row]!r} in row {row} is not one of {', '.join(classes)}"
        )
    return codes


def read_csv(dataset: str, path: Path, **options: Any) -> pd.DataFrame:
    """A CSV file, gunzipped where needed, with errors as one sentence."""
    import pandas as pd

    with reading(dataset, path), open_bytes(path) as file:
        return pd.read_csv(file, **{"low_memory": False, **options})


def read_headless(dataset: str, path: Path, names: Sequence[str], **options: Any) -> pd.DataFrame:
    """A CSV file without a header line, whose columns get these names; their number must agree."""
    frame = read_csv(dataset, path, header=None, **options)
    _check_width(dataset, path, frame.shape[1], len(names))
    frame.columns = list(names)
    return frame


def _check_width(dataset: str, path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise InputError(f"dataset {dataset!r}: the file {path} has {found} columns, not {expected}")


def read_arff(dataset: str, path: Path) -> pd.DataFrame:
    """A dense ARFF file without quoted names: attribute names, then comma-separated rows."""
    import pandas as pd

    names: list[str] = []
    with reading(dataset, path), open_text(path) as file:
        for line in file:
            word, _, rest = line.strip().partition(" ")
            if word.lower() == "@attribute":
                names.append(rest.split()[0])
            elif word.lower() == "@data":
                frame = pd.read_csv(file, header=None, skipinitialspace=True, comment="%")
                _check_width(dataset, path, frame.shape[1], len(names))
                frame.columns = names
                return frame
    raise InputError(f"dataset {dataset!r}: the file {path} is not an ARFF file: it has no @data line")


def read_label_first(
    dataset: str, path: Path, names: Sequence[str], rows: int | None, seed: int, *, stratify: bool
) -> tuple[Array, Array, Array]:
    """Values, labels and row numbers of a large headless file of numbers whose first column is the label.

    With `rows`, the file is read twice: once for its labels, which decide the sample, and once in chunks of
    which only the sampled rows are kept. The 11 million rows of HIGGS then never stand in memory at once.
    """
    import pandas as pd

    labels = read_csv(dataset, path, header=None, usecols=[0], dtype=np.float64).to_numpy()[:, 0]
    chosen = choose_rows(dataset, labels, rows, seed, stratify=stratify)
    parts = []
    with reading(dataset, path), open_bytes(path) as file:
        for chunk in pd.read_csv(file, header=None, dtype=np.float32, chunksize=CHUNK_ROWS):
            _check_width(dataset, path, chunk.shape[1], 1 + len(names))
            first = int(chunk.index[0])
            start, stop = np.searchsorted(chosen, [first, first + len(chunk)])
            parts.append(chunk.to_numpy()[chosen[start:stop] - first, 1:])
    return np.concatenate(parts), labels[chosen], chosen
