"""Everything a report says, gathered once from a folder: rows, series, targets, controls, claims, failures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vflaudit.errors import InputError
from vflaudit.lab.result import Result, dumps
from vflaudit.lab.store import Store
from vflaudit.report.figures import Figure, load_figures
from vflaudit.report.published import Beside, find_published
from vflaudit.report.schema import Verdict
from vflaudit.report.summary import (
    Row,
    Series,
    averages,
    dataset_label,
    find_series,
    strongest_first,
    summarise,
    target_label,
    varying,
)

UTILITY = ("accuracy", "auc", "r2", "rmse", "mae")  # the first that a target has is its utility
NOT_THE_RUN = {"attack", "game", "party", "corrupts", "knows", "control", "seed"}


@dataclass(frozen=True)
class Target:
    """A protocol with its parameters and defenses on one dataset: what it is worth and what it costs."""

    target: str
    dataset: str
    control: str | None
    seeds: int
    utility: dict[str, float]
    costs: dict[str, float]
    cpu: float | None
    estimated: dict[str, float]
    parameters: dict[str, Any]

    @property
    def measure(self) -> str | None:
        """Which utility to show."""
        return next((name for name in UTILITY if name in self.utility), None)


@dataclass(frozen=True)
class Audit:
    """What a report is written from."""

    title: str
    index: Mapping[str, Any]
    results: list[Result]
    rows: list[Row]
    series: list[Series]
    targets: list[Target]
    claims: list[Verdict]
    failures: dict[str, str]
    gate: float | None
    missing: int
    figures: list[Figure] = field(default_factory=list)
    figure_notes: list[str] = field(default_factory=list)
    published: list[Beside] = field(default_factory=list)

    @property
    def findings(self) -> list[Row]:
        """What was attacked in earnest, the strongest leak first."""
        return strongest_first(row for row in self.rows if not row.control)

    @property
    def controls(self) -> list[Row]:
        """Positive controls, then negative ones."""
        return [row for kind in ("positive", "negative") for row in self.rows if row.control == kind]

    @property
    def broken(self) -> list[str]:
        """What is wrong with the controls: if anything, the report proves nothing."""
        return [row.problem for row in self.controls if row.problem]

    @property
    def uncontrolled(self) -> dict[str, list[str]]:
        """Attacks without a positive or a negative control here."""
        attacks = sorted({row.experiment.get("attack", row.attack) for row in self.rows if not row.control})
        covered = {(row.experiment.get("attack", row.attack), row.control) for row in self.controls}
        return {kind: [a for a in attacks if (a, kind) not in covered] for kind in ("positive", "negative")}

    @property
    def versions(self) -> dict[str, list[str]]:
        """Every version that produced a result: more than one of a package deserves attention."""
        found: dict[str, set[str]] = {}
        for result in self.results:
            for package, version in result.versions.items():
                found.setdefault(package, set()).add(version)
        first = [name for name in ("vflaudit", "python") if name in found]
        return {name: sorted(found[name]) for name in [*first, *sorted(set(found) - set(first))]}

    @property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """Name, rows and notes of the data."""
        found: dict[str, dict[str, Any]] = {}
        for result in self.results:
            entry = found.setdefault(result.dataset.name, {"rows": set(), "notes": result.dataset.notes})
            entry["rows"].add(result.dataset.rows)
        return {name: {**entry, "rows": sorted(entry["rows"])} for name, entry in found.items()}

    @property
    def seeds(self) -> list[int]:
        """How many seeds stand behind a row: the least and the most."""
        counts = [row.seeds for row in self.rows]
        return sorted({min(counts), max(counts)}) if counts else []

    @property
    def fingerprint(self) -> str:
        """A hash of all results, to tell whether two reports show the same numbers."""
        return hashlib.sha256(dumps([r.to_json() for r in self.results]).encode()).hexdigest()[:16]

    def strongest_by_target(self) -> list[Row]:
        """The strongest reconstruction of each target, dataset and party that knows its columns."""
        best: dict[tuple[str, str, str | None], Row] = {}
        for row in self.findings:
            if row.columns:
                best.setdefault((row.target, row.dataset, row.party), row)
        chosen = {row.name for row in best.values()}
        return [row for row in self.rows if row.name in chosen]


def load_audit(folder: str | Path, gate: float | None = None) -> Audit:
    """Read a folder that `vflaudit run` or `vflaudit claims` made. A gate given here replaces that of the suite."""
    store = Store(folder)
    index, results = store.index(), store.results()
    claims = _claims(store.folder / "claims.json")
    failures = _failures(store.folder / "failures.json")
    if not results and not failures and not claims:
        raise InputError(f"{str(folder)!r} holds no finished results yet: run it again with --resume")
    try:
        timings = store.timings()
    except (OSError, ValueError):  # timings are extras: a damaged one never costs the report
        timings = {}
    rows, stored = summarise(results), index.get("gate")
    figures, notes = load_figures(store.folder)
    return Audit(
        title=str(index.get("title", store.folder.name)),
        index=index,
        results=results,
        rows=rows,
        series=find_series([row for row in rows if not row.control]),
        targets=find_targets(results, timings),
        claims=claims,
        failures=failures,
        gate=gate if gate is not None else float(stored) if isinstance(stored, int | float) else None,
        missing=max(len(index["keys"]) - len(results), 0),
        figures=figures,
        figure_notes=notes,
        published=find_published(index, results),
    )


def find_targets(results: Sequence[Result], timings: Mapping[str, Any]) -> list[Target]:
    """Each protocol run once per seed, however many attacks it served."""
    runs: dict[str, dict[int, Result]] = {}
    purposes: dict[str, set[str | None]] = {}
    for result in results:
        run = {key: value for key, value in result.experiment.items() if key not in NOT_THE_RUN}
        key = json.dumps([result.protocol, result.dataset.name, run], sort_keys=True, default=str)
        runs.setdefault(key, {}).setdefault(result.seed, result)
        purposes.setdefault(key, set()).add(result.control)
    differs, found = varying(results), []
    for key, by_seed in runs.items():
        group = list(by_seed.values())
        measured = [timings[r.key] for r in group if isinstance(timings.get(r.key), dict)]
        cpu = averages({"cpu": sum((t.get("cpu_seconds") or {}).values())} for t in measured if "cpu_seconds" in t)
        found.append(
            Target(
                target=target_label(group[0]),
                dataset=dataset_label(group[0], differs),
                control=None if None in purposes[key] else group[0].control,
                seeds=len(group),
                utility=averages(r.utility for r in group),
                costs=averages({k: r.costs.get(k) for k in ("rounds", "messages", "bytes")} for r in group),
                cpu=cpu.get("cpu"),
                estimated=averages(t.get("estimated_seconds") or {} for t in measured),
                parameters=group[0].parameters,
            )
        )
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{str(path)!r} is not JSON that can be read") from None


def _claims(path: Path) -> list[Verdict]:
    content = _read(path)
    try:
        return [Verdict(**item) for item in content or []]
    except (TypeError, ValidationError):
        raise InputError(f"{str(path)!r} is not a list of verdicts on claims") from None


def _failures(path: Path) -> dict[str, str]:
    content = _read(path) or {}
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} is not a table of failed experiments")
    return {str(name): str(reason) for name, reason in content.items()}
