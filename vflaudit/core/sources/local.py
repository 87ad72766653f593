"""Where published files live on disk, and the download that stands in for them.

A dataset has a folder of its own under `$VFLAUDIT_DATA`, with the files as their publishers name them,
gzipped or not. Downloads need a network and so cannot be exercised by an offline test; the tests replace the
fetching function.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import socket
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from vflaudit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# One entry per file that is needed; a tuple lists names under which the same file is published.
Files = Sequence[str | tuple[str, ...]]

TIMEOUT_SECONDS = 10.0
HASHES = "vflaudit_sha256.json"


def _alternatives(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def find_file(dataset: str, filenames: Sequence[str]) -> Path | None:
    """The first of these names that exists in the dataset's folder, as it is or with .gz, or None."""
    root = os.environ.get("VFLAUDIT_DATA")
    if not root:
        return None
    folders = dict.fromkeys((dataset.replace("-", "_"), dataset.replace("_", "-")))
    for folder in folders:
        for filename in filenames:
            for ending in ("", ".gz"):
                path = Path(root).expanduser() / folder / (filename + ending)
                if path.is_file():
                    return path
    return None


def find_all(dataset: str, files: Files) -> list[Path] | None:
    """A path for every file of the dataset, or None if any is absent."""
    paths = [find_file(dataset, _alternatives(entry)) for entry in files]
    found = [path for path in paths if path is not None]
    return found if len(found) == len(paths) else None


def require(dataset: str, files: Files, where: str) -> list[Path]:
    """A path for every file of the dataset; if any is absent, the error that says what to put where."""
    paths = find_all(dataset, files)
    if paths is None:
        raise missing(dataset, files, where)
    return paths


def missing(dataset: str, files: Files, where: str, reason: str = "") -> InputError:
    """The one sentence for a dataset that is not here: which files, which folder, who publishes them."""
    names = [" or ".join(_alternatives(entry)) for entry in files]
    wanted = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    folder, root = dataset.replace("-", "_"), os.environ.get("VFLAUDIT_DATA")
    if root:
        place = f"the folder {Path(root).expanduser() / folder}"
    else:
        place = f"a folder named {folder} and set VFLAUDIT_DATA to the directory that holds this folder"
    why = reason or "is not on this computer"
    return InputError(f"dataset {dataset!r} {why}: put {wanted} (gzipped or not) from {where} into {place}")


def open_bytes(path: Path) -> BinaryIO:
    """The file's content, gunzipped if it begins like a gzip file, whatever its name."""
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if zipped else open(path, "rb")


def open_text(path: Path) -> TextIO:
    """The same as `open_bytes`, decoded as UTF-8, with or without the mark that spreadsheets put first."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig")


@contextmanager
def reading(dataset: str, path: Path) -> Iterator[None]:
    """Turns whatever goes wrong while reading this file into one sentence that names it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(f"dataset {dataset!r}: the file {path} cannot be read ({reason})") from error


def fetch_openml_table(dataset: str, *, files: Files, where: str, **source: Any) -> pd.DataFrame:
    """Features and target of an OpenML dataset, given by `data_id` or by `name` and `version`.

    scikit-learn caches the download and compares it with the MD5 checksum that OpenML states.
    """

    def fetch() -> pd.DataFrame:
        from sklearn import datasets

        return datasets.fetch_openml(**source, as_frame=True, parser="auto", n_retries=1, delay=0.1).frame

    return download(dataset, fetch, files=files, where=where)


def download(dataset: str, fetch: Callable[[], pd.DataFrame], *, files: Files, where: str) -> pd.DataFrame:
    """What `fetch` brings, checked against its first time; without a network, the `missing` sentence."""
    try:
        with _short_timeout(), _spinner(f"downloading {dataset}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn announces its retries
            frame = fetch()
    except (OSError, HTTPException) as error:
        reason = f"is not on this computer and could not be downloaded ({type(error).__name__})"
        raise missing(dataset, files, where, reason) from error
    except ValueError as error:
        raise missing(dataset, files, where, "came damaged from its download") from error
    _verify(dataset, frame)
    return frame


@contextmanager
def _short_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _spinner(text: str) -> Any:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def content_hash(frame: pd.DataFrame) -> str:
    """SHA-256 over names and values; the file itself may be compressed differently each time."""
    from pandas.api.types import is_numeric_dtype

    digest = hashlib.sha256()
    for name, column in frame.items():
        digest.update(f"{name}\x00".encode())
        if is_numeric_dtype(column.dtype):
            digest.update(column.to_numpy(dtype="float64").tobytes())
        else:
            digest.update("\x1f".join(map(str, column)).encode())
    return digest.hexdigest()


def _verify(dataset: str, frame: pd.DataFrame) -> None:
    """Trust on first use: the first download's hash is kept next to the cache, later ones must equal it."""
    from sklearn.datasets import get_data_home

    record = Path(get_data_home()) / HASHES
    try:
        known = json.loads(record.read_text()) if record.exists() else {}
        before = known.get(dataset)
    except (ValueError, AttributeError) as error:
        raise InputError(f"the record of download hashes {record} is damaged: delete it") from error
    now = content_hash(frame)
    if before is None:
        temporary = record.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps({**known, dataset: now}, indent=2, sort_keys=True))
        os.replace(temporary, record)
    elif before != now:
        raise InputError(
            f"dataset {dataset!r}: the download (SHA-256 {now[:12]}…) is not the one that was recorded first "
            f"({str(before)[:12]}…); if you expect the change, delete its line from {record}"
        )
