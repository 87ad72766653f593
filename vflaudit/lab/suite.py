"""Suites: many experiments in one TOML file, checked before anything runs."""

from __future__ import annotations

import itertools
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vflaudit import registry
from vflaudit.core.config import sentence
from vflaudit.core.loading import load_table, looks_like_file, parse_data
from vflaudit.errors import InputError, unknown
from vflaudit.lab.experiment import Experiment


class Published(BaseModel):
    """A number that a paper prints about a run: its measure of utility on the same data with the same settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    protocol: str
    data: str
    set: dict[str, Any] = Field(default_factory=dict, description="settings that the experiment has too")
    metric: str = Field(description="a name in the utility of a result")
    value: float


class SuiteFile(BaseModel):
    """The top level of a suite file."""

    model_config = ConfigDict(extra="forbid")
    summary: str
    seeds: int = Field(3, ge=1, le=10_000)
    gate: float | None = Field(None, description="the largest advantage that is still acceptable")
    defaults: dict[str, Any] = Field(default_factory=dict, description="values for every experiment")
    fast: dict[str, Any] = Field(default_factory=dict, description="what --fast puts in place of experiments' own")
    published: list[Published] = Field(default_factory=list, description="the paper's numbers, for the report")
    experiment: list[dict[str, Any]] = Field(min_length=1)


class Suite(BaseModel):
    """A checked suite: every experiment spelled out, once per seed."""

    model_config = ConfigDict(frozen=True)
    name: str
    summary: str
    seeds: int
    gate: float | None
    experiments: tuple[Experiment, ...]
    published: tuple[Published, ...] = ()


def find_suite(name_or_path: str) -> Path:
    """A registered suite or a TOML file of the user's."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        if not path.is_file():
            raise InputError(f"suite file {name_or_path!r} does not exist")
        return path
    return Path(registry.load("suites", name_or_path))


def read_file(path: Path) -> SuiteFile:
    """Parse and check the top level."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return SuiteFile(**content)
    except OSError as error:
        raise InputError(f"suite file {str(path)!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"suite file {str(path)!r} is not TOML: {error}") from None
    except ValidationError as error:
        raise sentence(error, SuiteFile, f"suite {path.name!r}") from None


def load_suite(name_or_path: str, seeds: int | None = None, *, fast: bool = False) -> Suite:
    """Every experiment of a suite, for seeds 0..K-1; `fast` takes what the file has in its `fast` table."""
    path = find_suite(name_or_path)
    file = read_file(path)
    count = file.seeds if seeds is None else seeds
    if count < 1:
        raise InputError(f"seeds={count}: expected a whole number of 1 or more")
    experiments = [
        expanded.model_copy(update={"seed": seed})
        for number, entry in enumerate(file.experiment, start=1)
        for expanded in expand(
            entry, file.defaults, f"suite {path.name!r}, experiment {number}", file.fast if fast else {}
        )
        for seed in range(count)
    ]
    return Suite(
        name=path.stem,
        summary=file.summary,
        seeds=count,
        gate=file.gate,
        experiments=tuple(experiments),
        published=tuple(file.published),
    )


def expand(
    entry: dict[str, Any], defaults: dict[str, Any], where: str, instead: dict[str, Any] | None = None
) -> list[Experiment]:
    """One entry, multiplied out over the lists in its `vary` table (`vary = {data = ["wine", "iris"]}`).

    `instead` replaces fields, and single settings of `set`. With `optional`, data that is not here is left out.
    """
    values = {**defaults, **entry}
    if instead:
        values |= instead | {"set": values.get("set", {}) | instead.get("set", {})}
    vary, optional = values.pop("vary", {}), values.pop("optional", False)
    if not isinstance(optional, bool):
        raise InputError(f"{where}: optional={optional!r}, expected true or false")
    if not isinstance(vary, dict) or not all(isinstance(options, list) and options for options in vary.values()):
        raise InputError(f"{where}: 'vary' is a table of non-empty lists, as in vary = {{data = ['wine', 'iris']}}")
    if "seed" in values or "seed" in vary:
        raise InputError(f"{where}: seeds are set for the whole suite, by 'seeds' or --seeds")
    for key in vary:
        if key.partition(".")[0] not in Experiment.model_fields:
            raise unknown(f"experiment field to vary ({where})", key, Experiment.model_fields)
    found = []
    for choice in itertools.product(*vary.values()):
        one = {**values, "set": dict(values.get("set", {}))}
        for key, value in zip(vary, choice, strict=True):
            if key.startswith("set."):
                one["set"][key.removeprefix("set.")] = value
            else:
                one[key] = value
        try:
            found.append(Experiment(**one))
        except ValidationError as error:
            raise sentence(error, Experiment, where) from None
    return [one for one in found if not optional or _present(one.data)]


@cache
def _present(data: str) -> bool:
    """True if the data can be loaded here: an optional experiment is left out otherwise."""
    if looks_like_file(data):
        return Path(data).is_file()
    registry.load("datasets", parse_data(data)[0])  # a name that nobody knows is a mistake, wherever it stands
    try:
        load_table(data)
    except InputError:
        return False
    return True


def listing() -> list[dict[str, str]]:
    """Registered suites with their summaries."""
    return [
        {"name": name, "summary": read_file(Path(registry.load("suites", name))).summary}
        for name in registry.registered("suites")
    ]
