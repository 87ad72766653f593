"""Finished experiments on disk: one file each, written atomically, so that a crash loses only what was unfinished."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vflaudit.errors import InputError
from vflaudit.lab.result import Result, dumps


def write_atomically(path: Path, text: str) -> None:
    """Either the old file or the whole new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Store:
    """A folder: index.json (what was asked), results/KEY.json, timing/KEY.json, results.json (all of them)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{str(folder)!r} is a file: expected a folder for results")

    def begin(self, title: str, keys: Sequence[str], extra: dict[str, Any] | None = None) -> None:
        """Say what this folder is going to hold."""
        try:
            write_atomically(
                self.folder / "index.json", dumps({"schema": 1, "title": title, "keys": list(keys), **(extra or {})})
            )
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from None

    def path(self, key: str) -> Path:
        """Where a result lives."""
        return self.folder / "results" / f"{key}.json"

    def has(self, key: str) -> bool:
        """True if a whole, readable result is there."""
        try:
            return self.read(key).key == key
        except InputError:
            return False

    def read(self, key: str) -> Result:
        """One result, checked against the schema."""
        path = self.path(key)
        try:
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"no result {key} in {str(self.folder)!r}") from None
        except (OSError, ValueError, TypeError, ValidationError, RecursionError):
            raise InputError(f"{str(path)!r} is not a result of vflaudit") from None

    def write(self, result: Result, timing: dict[str, Any]) -> None:
        """Timing first: a result that exists is complete."""
        write_atomically(self.folder / "timing" / f"{result.key}.json", dumps(timing))
        write_atomically(self.path(result.key), dumps(result.to_json()))

    def index(self) -> dict[str, Any]:
        """What the folder was asked to hold."""
        path = self.folder / "index.json"
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            if index["schema"] != 1 or not all(isinstance(key, str) and key.isalnum() for key in index["keys"]):
                raise ValueError
            return index
        except FileNotFoundError:
            raise InputError(
                f"{str(self.folder)!r} holds no results: expected a folder made by 'vflaudit run --out'"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"{str(path)!r} is not an index of results") from None

    def results(self) -> list[Result]:
        """All finished results, in the order they were asked for."""
        return [self.read(key) for key in self.index()["keys"] if self.path(key).exists()]

    def timings(self) -> dict[str, Any]:
        """Timings by key; measured, so never part of a result."""
        found = {}
        for key in self.index()["keys"]:
            path = self.folder / "timing" / f"{key}.json"
            if path.exists():
                found[key] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def finish(self) -> list[Result]:
        """Write results.json (the same bytes for any number of workers) and timing.json beside it."""
        results = self.results()
        write_atomically(self.folder / "results.json", dumps([result.to_json() for result in results]))
        write_atomically(self.folder / "timing.json", dumps(self.timings()))
        return results
