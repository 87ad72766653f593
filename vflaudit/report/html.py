"""report.html: one file that needs nothing else, neither a network nor scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vflaudit.core.costs import Network
from vflaudit.report import membership, membership_bound, plots, summary, words
from vflaudit.report.audit import Audit
from vflaudit.report.narrative import paragraph
from vflaudit.report.plane import planes
from vflaudit.report.schema import Evidence
from vflaudit.report.summary import Row
from vflaudit.report.tradeoff import find_planes

TEMPLATE = "report.html.jinja"
NARROWEST = -0.25  # where the inline bars begin; what is lower is cut off


def render_html(audit: Audit) -> str:
    """The page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number, signed=words.signed, interval=words.interval, size=words.size,
        duration=words.duration, plain=_plain,
    )  # fmt: skip
    compared, attacked = find_planes(audit), membership.find_membership(audit)
    return environment.get_template(TEMPLATE).render(
        audit=audit,
        paragraph=paragraph(audit),
        forests=plots.forest(audit),
        curves=plots.curves(audit),
        costs=plots.costs(audit),
        planes=list(zip(compared, planes(compared), strict=True)),
        heatmaps=plots.heatmaps(audit),
        members=attacked,
        rocs=[*membership.curves(attacked), *membership_bound.bounds(audit)],
        resolution=membership.resolution(attacked),
        bar=bar,
        behind=lambda evidence: rows_behind(audit, evidence),
        ran=ran(audit),
        count=words.count,
        listed=words.listed,
        metrics=words.METRICS,
        networks={name: _network(network) for name, network in Network.PRESETS.items()},
        labels=words.NETWORKS,
        limits=summary,
        attacks=attacks(audit),
        css=(Path(__file__).parent / "report.css").read_text(encoding="utf-8"),
    )


def bar(row: Row) -> dict[str, str]:
    """Where the parts of the small bar are, in percent of its width."""
    scale = max(1.0, row.interval[1]) if row.metric == "epsilon_lower" else 1.0

    def place(value: float) -> float:
        return 100 * (min(max(value / scale, NARROWEST), 1.0) - NARROWEST) / (1.0 - NARROWEST)

    zero, middle = place(0.0), place(row.advantage)
    low, high = (place(end) for end in row.interval)
    return {
        "zero": f"{zero:.1f}",
        "left": f"{min(zero, middle):.1f}",
        "width": f"{abs(middle - zero):.1f}",
        "low": f"{low:.1f}",
        "span": f"{max(high - low, 0.8):.1f}",
    }


def rows_behind(audit: Audit, evidence: Evidence) -> list[Row]:
    """The rows of this report that a piece of evidence rests on."""
    keys = set(evidence.keys)
    return [row for row in audit.rows if keys & set(row.keys)]


def ran(audit: Audit) -> str:
    """How much was run, in words."""
    text = words.count(len(audit.results), "experiment")
    if audit.seeds:
        text += f" in {words.count(len(audit.rows), 'group')}, "
        low, high = audit.seeds[0], audit.seeds[-1]
        text += f"{words.count(high, 'seed')} each" if low == high else f"{low} to {high} seeds each"
    return text


def attacks(audit: Audit) -> dict[str, dict[str, Any]]:
    """Each attack with its parameters, and how often it could verify its own guess."""
    found: dict[str, dict[str, Any]] = {}
    for row in audit.rows:
        entry = found.setdefault(row.attack, {"parameters": row.parameters.get("attack") or {}, "yes": 0, "of": 0})
        entry["yes"] += row.verified[0]
        entry["of"] += row.verified[1]
    return found


def _network(network: Network) -> str:
    megabits = network.bandwidth_bits_per_s / 1e6
    speed = f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
    return f"{network.latency_s * 1000:g} ms, {speed}"


def _plain(value: Any) -> str:
    """A parameter as text."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
