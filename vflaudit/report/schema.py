"""The shape of report.json and of claims.json, and the JSON Schema that docs/result.schema.json publishes.

`python -m vflaudit.report.schema > docs/result.schema.json` writes it anew.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vflaudit.lab.result import Result

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Evidence(BaseModel):
    """One measurement that a verdict rests on."""

    model_config = ConfigDict(extra="allow")
    what: str = ""
    adversary: str = ""
    measure: str = ""
    mean: float | None = None
    interval: tuple[float | None, float | None] | None = Field(None, description="95% interval of the mean")
    threshold: float | None = Field(None, description="declared before anything ran")
    seeds: int | list[int] | None = None
    keys: list[str] = Field(default_factory=list, description="keys of the results behind it")


class Verdict(BaseModel):
    """A published claim and what the measurements say about it."""

    model_config = ConfigDict(extra="allow")
    paper: str
    id: str
    section: str = ""
    claim: str
    reading: str = Field("literal", description="literal, or what the words suggest (implied)")
    refuted_if: str = ""
    verdict: Literal["upheld", "refuted", "conditional", "inconclusive"]
    summary: str = ""
    measured_on: str = ""
    evidence: list[Evidence] = Field(default_factory=list)


class ReportFile(BaseModel):
    """report.json: everything that the report shows, apart from timings."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    schema_version: Literal[1] = Field(alias="schema")
    title: str
    results: list[Result]
    claims: list[Verdict] = Field(description="verdicts on published claims; empty if none were judged")
    failures: dict[str, str] = Field(description="experiments that could not be completed, and why")


def report_schema() -> dict[str, Any]:
    """The JSON Schema of report.json; a single result is its definition `Result`."""
    return {"$schema": DIALECT, **ReportFile.model_json_schema(by_alias=True)}


def schema_text() -> str:
    """The published file, byte for byte."""
    return json.dumps(report_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
