"""The result of one experiment: one JSON object, the same on the terminal, in the store and in the report."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vflaudit import __version__

SCHEMA = 1
DECISIVE = ("vflaudit/core", "vflaudit/accounting", "defenses", "vflaudit/protocols", "attacks", "vflaudit/lab")
PACKAGES = ("numpy", "scipy", "torch", "scikit-learn", "pandas", "safetensors")


class DatasetInfo(BaseModel):
    """Which data, exactly."""

    model_config = ConfigDict(extra="forbid")
    name: str
    rows: int = Field(description="rows that the parties hold")
    fingerprint: str = Field(description="hash of content, order, split and partition")
    notes: str = ""


class Result(BaseModel):
    """One finished experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    schema_version: Literal[1] = Field(1, alias="schema")
    protocol: str
    dataset: DatasetInfo
    adversary: str = Field(description="who is corrupted and what it knows, as one sentence")
    attack: str
    game: str
    party: str | None
    seed: int
    metric: Literal["r2", "auc", "hit_rate", "epsilon_lower"]
    score: float
    baseline: float = Field(description="the best guess without the protocol")
    advantage: float = Field(description="score minus baseline")
    interval: tuple[float, float] = Field(description="95% interval of the advantage")
    metrics: dict[str, Any]
    verified: bool | None = Field(None, description="the attack's own check of itself; null: it has none")
    rows: int = Field(description="rows, candidates or trials that were scored")
    control: Literal["positive", "negative"] | None = None
    experiment: dict[str, Any] = Field(description="the experiment as it was asked for")
    parameters: dict[str, Any] = Field(description="all parameters of protocol and attack, defaults included")
    utility: dict[str, float] = Field(description="how useful the trained model is")
    costs: dict[str, Any] = Field(description="rounds, messages and bytes")
    notes: dict[str, Any] = {}
    versions: dict[str, str]
    key: str = Field(description="hash of everything that decides the result")

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, numbers that JSON cannot say as null."""
        return clean(self.model_dump(mode="json", by_alias=True))


def clean(value: Any) -> Any:
    """Replace infinities and NaN by None, everywhere."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """The one way results are written: sorted keys, readable, no NaN."""
    return json.dumps(clean(value), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


@cache
def versions() -> dict[str, str]:
    """Package versions, and a hash of our own source so that edited code never reuses an old result."""
    found = {"python": platform.python_version(), "vflaudit": f"{__version__}+{_source_hash()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _source_hash() -> str:
    """A hash of the code that decides results: not of claims, reports and the command line, which only use them."""
    home = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for package in DECISIVE:
        for path in sorted((home / package).rglob("*.py")):
            digest.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(experiment: Mapping[str, Any], fingerprint: str, plugins: Mapping[str, str]) -> str:
    """A hash of everything that decides the result: the experiment, the data, the packages."""
    content = {
        "schema": SCHEMA,
        "experiment": experiment,
        "data": fingerprint,
        "versions": versions(),
        "plugins": plugins,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]
