"""A paper's own numbers beside the measured ones: a suite's `published` entries, which its folder keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vflaudit.core.statistics import t_interval
from vflaudit.lab.result import Result
from vflaudit.lab.suite import Published
from vflaudit.report.summary import target_label


@dataclass(frozen=True)
class Beside:
    """One number of a paper and what was measured of it here."""

    source: str
    target: str
    dataset: str
    metric: str
    rows: int
    seeds: int
    here: float
    interval: tuple[float, float]
    paper: float


def find_published(index: Mapping[str, Any], results: Sequence[Result]) -> list[Beside]:
    """Every published number with the results of its protocol, data and settings; without results it is left out."""
    found = []
    for item in index.get("published") or []:
        try:
            number = Published(**item)
        except (TypeError, ValidationError):  # an extra: a damaged one never costs the report
            continue
        runs = {result.seed: result for result in results if _about(number, result)}
        values = [result.utility[number.metric] for result in runs.values()]
        if values:
            one = next(iter(runs.values()))
            mean = math.fsum(values) / len(values)
            found.append(
                Beside(
                    number.source, target_label(one), one.dataset.name, number.metric, one.dataset.rows,
                    len(values), mean, t_interval(values), number.value,
                )
            )  # fmt: skip
    return found


def _about(number: Published, result: Result) -> bool:
    asked = result.experiment
    same = asked.get("protocol") == number.protocol and asked.get("data") == number.data
    settings = asked.get("set") or {}
    return same and number.metric in result.utility and all(settings.get(k) == v for k, v in number.set.items())
