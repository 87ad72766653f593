"""Checking claims: run what they need, judge, write the verdicts down."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vflaudit import registry
from vflaudit.claims.base import Claim, Measured, Rule, Ruling, row_json
from vflaudit.errors import unknown
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.perform import one_thread
from vflaudit.lab.result import Result, dumps
from vflaudit.lab.runner import Outcome, Progress, run_experiments
from vflaudit.lab.store import write_atomically

SEEDS = {"fast": 3, "default": 5, "full": 20}
FIRST_SEED = 5000  # attacks are developed, tested and tried on smaller seeds; claims are judged on others


def claims_of(paper: str | None = None) -> list[Claim]:
    """All registered claims, or one paper's."""
    papers = registry.registered("claims")
    if paper is not None and paper not in papers:
        raise unknown("paper with claims", paper, papers)
    return [claim for name in papers if paper in (None, name) for claim in registry.load("claims", name)]


def listing() -> list[dict[str, str]]:
    """Rows of name and statement."""
    return [{"name": claim.name, "summary": claim.statement, "section": claim.section} for claim in claims_of()]


def check_claims(
    claims: Sequence[Claim],
    out: str | Path,
    *,
    seeds: int,
    jobs: int = 1,
    backend: str = "local",
    resume: bool = False,
    progress: Progress | None = None,
    extra: dict[str, Any] | None = None,
) -> tuple[list[dict[str, Any]], Outcome]:
    """Run every experiment for every seed, judge every claim, and leave claims.json in the folder."""
    papers = sorted({claim.paper for claim in claims})
    needed = [
        experiment.model_copy(update={"seed": seed})
        for claim in claims
        for evidence in claim.evidence
        for experiment in evidence.experiments
        for seed in seeds_of(claim, seeds)
    ]
    outcome = run_experiments(
        needed,
        out,
        title=f"Claims: {', '.join(papers)}",
        jobs=jobs,
        backend=backend,
        resume=resume,
        progress=progress,
        extra={"seeds": seeds, **(extra or {})},
    )
    by_experiment = {dumps(result.experiment): result for result in outcome.results}
    with one_thread():
        verdicts = [judge(claim, by_experiment, seeds_of(claim, seeds)) for claim in claims]
        figures = [figure for paper in papers for figure in draw(paper, Path(out))]
    write_atomically(Path(out) / "claims.json", dumps(verdicts))
    write_atomically(Path(out) / "figures.json", dumps(figures))
    return verdicts, outcome


def draw(paper: str, folder: Path) -> list[dict[str, Any]]:
    """A paper's own figures: the function `figures` of the module that holds its claims, if it has one."""
    point = registry.registered("claims").get(paper)
    function = getattr(importlib.import_module(point.module), "figures", None) if point is not None else None
    return function(folder) if function is not None else []


def seeds_of(claim: Claim, wanted: int) -> range:
    """The seeds on which a claim is judged."""
    return range(FIRST_SEED, FIRST_SEED + max(wanted, claim.least_seeds))


def judge(claim: Claim, results: dict[str, Result], seeds: Sequence[int]) -> dict[str, Any]:
    """The verdict on one claim. Without all its results nothing can be said."""

    def find(experiment: Experiment, seed: int) -> Result:
        return results[dumps(experiment.model_copy(update={"seed": seed}).model_dump(mode="json"))]

    rows: list[Measured] = []
    try:
        rows = [evidence.measured(find, seeds) for evidence in claim.evidence]
        ruling: Ruling = claim.rule.ruling(rows)
        summary = sentence(rows)
    except KeyError:
        ruling, rows, summary = "inconclusive", [], "Some of its experiments could not be completed."
    return {
        "paper": claim.paper,
        "id": claim.id,
        "section": claim.section,
        "claim": claim.statement,
        "reading": claim.reading,
        "refuted_if": claim.refuted_if,
        "measured_on": claim.measured_on,
        "verdict": ruling,
        "summary": summary,
        "weakest_adversary": weakest(rows, claim.rule),
        "evidence": [row_json(row, claim.rule) for row in rows],
    }


def sentence(rows: Sequence[Measured]) -> str:
    """The numbers behind a verdict."""
    parts = []
    for row in rows:
        low, high = row.interval
        parts.append(f"{row.what}: {row.measure} {_short(float(np.mean(row.values)))} [{_short(low)}, {_short(high)}]")
    return f"{'; '.join(parts)} over {len(rows[0].values)} seeds." if rows else "Nothing was measured."


def _short(value: float) -> str:
    """Three digits; what is left of a difference of equal numbers is zero."""
    if abs(value) < 1e-12:
        return "0"
    return f"{float(f'{value:.3g}'):,.0f}" if 1000 <= abs(value) < np.inf else f"{value:.3g}"


def weakest(rows: Sequence[Measured], rule: Rule) -> str | None:
    """The first adversary, in the claim's order from weak to strong, that surely gains more than the threshold."""
    found = (row.adversary for row in rows if row.adversary != "nobody" and row.interval[0] > rule.threshold)
    return next(found, None)
