"""The user's own table: CSV, TSV or Parquet, with every mistake told in one sentence."""

from __future__ import annotations

import csv
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vflaudit.core.dataset import Array, Column, Table, Task
from vflaudit.core.sources.frames import category_codes
from vflaudit.core.sources.local import open_text
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t"}
MOST_CLASSES = 20
FEWEST_ROWS = 20
# A text column in which this share of values are numbers is a numeric column with mistakes.
MOSTLY_NUMBERS = 0.8


def read_user_file(path: str | Path, label: str, *, task: Task | None = None, id_column: str | None = None) -> Table:
    """The table in a CSV, TSV or Parquet file with a header; `label` names the column to predict.

    Numbers become numeric columns; text, booleans and categories become categorical ones, in which a missing
    value is the category '?'. A label with few distinct values (at most 20), or of text, makes a
    classification unless `task` says otherwise. Row ids come from `id_column`, or else are row numbers.
    """
    path = Path(path)
    if task not in (None, "classification", "regression"):
        raise unknown("task", task, ("classification", "regression"))
    frame = _read(path)
    for name in (label,) if id_column is None else (label, id_column):
        if name not in frame.columns:
            raise unknown(f"column in {path.name}", name, frame.columns)
    if id_column == label:
        raise InputError(f"{path}: the column {label!r} cannot be both the label and the id")
    if len(frame) < FEWEST_ROWS:
        raise InputError(f"{path}: {len(frame)} rows are too few, expected at least {FEWEST_ROWS}")
    ids = None if id_column is None else _ids(path, frame.pop(id_column))
    answers, chosen, classes = _labels(path, frame.pop(label), task)
    if frame.shape[1] == 0:
        raise InputError(f"{path}: there is no feature column besides the label {label!r}")
    columns, values = [], np.empty(frame.shape)
    for position, name in enumerate(frame.columns):
        column, values[:, position] = _feature(path, frame[name])
        columns.append(column)
    return Table(path.name.split(".")[0], tuple(columns), values, answers, chosen, classes=classes, ids=ids)


def _read(path: Path) -> pd.DataFrame:
    if path.is_dir():
        raise InputError(f"{path} is a directory, expected a CSV, TSV or Parquet file")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    ending = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if ending not in SEPARATORS and path.suffix.lower() != ".parquet":
        raise InputError(f"{path} does not end in .csv, .tsv or .parquet, the formats that can be read")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    frame = _parquet(path) if ending == ".parquet" else _text(path, SEPARATORS[ending])
    repeated = [str(name) for name, count in Counter(frame.columns).items() if count > 1]
    if repeated:
        raise InputError(f"{path}: two columns are named {repeated[0]!r}")
    return frame


def _text(path: Path, separator: str) -> pd.DataFrame:
    import pandas as pd

    try:
        with open_text(path) as file:
            header = next(csv.reader(file, delimiter=separator), [])
        _check_header(path, header)
        with open_text(path) as file, warnings.catch_warnings():
            # Rows longer than the header would otherwise lose their last cells with no more than a warning.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                file, sep=separator, header=0, names=range(len(header)), index_col=False, low_memory=False
            ).set_axis([name.strip() for name in header], axis=1)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8") from error
    except pd.errors.ParserWarning as error:
        raise InputError(f"{path}: a row has more cells than the header has names") from error
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path} cannot be read as a table ({reason})") from error


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) == 1 and ";" in header[0]:
        raise InputError(f"{path} is separated by ';', expected ',' in a .csv file and tabs in a .tsv file")
    for position, name in enumerate(header, start=1):
        if not name.strip():
            raise InputError(f"{path}: column {position} has no name in the header: name it or drop it")


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except ImportError as error:
        raise InputError(f"{path}: Parquet files need pyarrow: install vflaudit with the extra 'parquet'") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a Parquet file") from error
    for name in frame.columns:
        present = frame[name].dropna()
        if len(present) and isinstance(present.iloc[0], list | dict | np.ndarray):
            raise InputError(f"{path}: the column {name!r} holds lists, expected one value in each cell")
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def _row(mask: Array) -> str:
    return f"data row {int(np.argmax(mask)) + 1}"


def _ids(path: Path, ids: pd.Series) -> Array:
    if ids.isna().any():
        raise InputError(f"{path}: the id column {ids.name!r} has no value in {_row(ids.isna().to_numpy())}")
    text = ids.astype(str)
    if text.duplicated().any():
        again = text[text.duplicated()].iloc[0]
        raise InputError(f"{path}: the id {again!r} in column {ids.name!r} occurs more than once")
    return text.to_numpy()


def _labels(path: Path, labels: pd.Series, task: Task | None) -> tuple[Array, Task, tuple[str, ...]]:
    name, distinct = labels.name, labels.nunique()
    if labels.isna().any():
        raise InputError(f"{path}: the label column {name!r} has no value in {_row(labels.isna().to_numpy())}")
    if distinct < 2:
        raise InputError(f"{path}: the label column {name!r} has the same value {labels.iloc[0]!r} in every row")
    numeric = _is_number(labels)
    chosen: Task = task or ("regression" if numeric and distinct > MOST_CLASSES else "classification")
    if chosen == "regression":
        if not numeric:
            raise InputError(f"{path}: the label column {name!r} is not numeric, which a regression needs")
        return _finite(path, labels), "regression", ()
    if distinct > len(labels) / 2:
        raise InputError(
            f"{path}: the label column {name!r} has {distinct} distinct values in {len(labels)} rows, "
            "too many to be classes"
        )
    if numeric and (_finite(path, labels) % 1 == 0).all():
        labels = labels.astype("int64")  # so that a class is named 1, not 1.0
    codes, classes = category_codes(labels)
    return codes, "classification", classes


def _is_number(values: pd.Series) -> bool:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    kind = values.dtype
    return is_numeric_dtype(kind) and not is_bool_dtype(kind) and not is_complex_dtype(kind)


def _finite(path: Path, values: pd.Series) -> Array:
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isnan(numbers).any():
        raise InputError(f"{path}: the numeric column {values.name!r} has no value in {_row(np.isnan(numbers))}")
    if np.isinf(numbers).any():
        raise InputError(f"{path}: the numeric column {values.name!r} is infinite in {_row(np.isinf(numbers))}")
    return numbers


def _feature(path: Path, values: pd.Series) -> tuple[Column, Array]:
    """The column and its numbers: values if it is numeric, codes if it is categorical."""
    name = str(values.name)
    if values.isna().all():
        raise InputError(f"{path}: the column {name!r} is empty in every row: drop it")
    if _is_number(values):
        return Column(name), _finite(path, values)
    _check_text(path, values)
    codes, categories = category_codes(values)
    return Column(name, "categorical", categories), codes


def _check_text(path: Path, values: pd.Series) -> None:
    import pandas as pd
    from pandas.api.types import is_datetime64_any_dtype

    name, present = values.name, values.dropna()
    if is_datetime64_any_dtype(values.dtype):
        raise InputError(f"{path}: the column {name!r} holds dates: turn them into numbers or drop it")
    numbers = pd.to_numeric(present.astype(str), errors="coerce")
    if MOSTLY_NUMBERS <= numbers.notna().mean() < 1.0:
        wrong = present[numbers.isna()].iloc[0]
        raise InputError(
            f"{path}: the column {name!r} holds numbers but for {wrong!r} in "
            f"{_row((values == wrong).to_numpy(dtype=bool, na_value=False))}"
        )
    if len(present) == len(values) and values.astype(str).is_unique:
        raise InputError(
            f"{path}: every value of the column {name!r} is different, as in an id: name it with id_column or drop it"
        )
