"""report.md: the same tables, compact, without figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vflaudit.report.audit import Audit
from vflaudit.report.membership import Attacked, find_membership, resolution
from vflaudit.report.narrative import paragraph
from vflaudit.report.summary import Row
from vflaudit.report.tradeoff import Plane, find_planes
from vflaudit.report.words import METRICS, NETWORKS, capital, duration, interval, number, signed, size

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def escape(text: object) -> str:
    """Nothing in a name may become markup, a link or a new cell."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """Lines of a table; the columns of `right` are numbers."""
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    lines = [head, rule, *([escape(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def render_markdown(audit: Audit) -> str:
    """The whole text."""
    lines = [f"# {escape(audit.title)}: privacy audit", ""]
    if audit.index.get("summary"):
        lines += [escape(audit.index["summary"]), ""]
    if audit.index.get("command"):
        lines += [f"Repeat it: {escape(audit.index['command'])}", ""]
    if audit.broken:
        lines += ["> **A control FAILED: nothing else in this report can be trusted.**", ">"]
        lines += [f"> - {escape(text)}" for text in audit.broken] + [""]
    lines += [escape(" ".join(paragraph(audit))), ""]
    if audit.claims:
        lines += ["## Claims", ""]
        lines += table(
            ("Claim", "Paper", "Reading", "Verdict", "Measured"),
            [(c.claim, f"{c.paper} {c.section}", c.reading, c.verdict, c.summary) for c in audit.claims],
        )
    if audit.failures:
        lines += ["## Not completed", ""]
        lines += [f"- {escape(name)}: {escape(why)}" for name, why in audit.failures.items()] + [""]
    if audit.findings:
        lines += ["## Findings", "", *_rows(audit.findings, "Finding")]
    lines += _membership(find_membership(audit))
    for plane in find_planes(audit):
        lines += [f"## What survives: {escape(plane.title)}", ""]
        lines += _survivors(plane)
    if audit.published:
        lines += ["## Beside the paper's numbers", "", *_published(audit)]
    if audit.targets:
        lines += ["## Utility and cost", "", *_costs(audit)]
    if audit.controls:
        lines += ["## Controls", "", *_rows(audit.controls, "Control")]
    lines += ["## How to read this", "", READING, ""]
    packages = [f"{name} {' and '.join(found)}" for name, found in audit.versions.items()]
    lines += [f"Versions: {escape(', '.join(packages))}. Fingerprint of the results: {audit.fingerprint}.", ""]
    return "\n".join(lines)


def _rows(rows: Sequence[Row], last: str) -> list[str]:
    head = ("Target", "Dataset", "Adversary", "Attack", "Party", "Metric", "Score", "Baseline", "Advantage")
    return table(
        (*head, "95% interval", "Seeds", last),
        [
            (
                row.target, row.dataset, row.adversary, row.attack, row.party or "–", METRICS[row.metric],
                number(row.score), number(row.baseline), signed(row.advantage), interval(row.interval), row.seeds,
                row.finding if not row.control else f"{row.control}: {'FAILED' if row.problem else 'passed'}",
            )
            for row in rows
        ],
        right=(6, 7, 8, 9, 10),
    )  # fmt: skip


def _membership(attacked: Sequence[Attacked]) -> list[str]:
    if not attacked:
        return []
    head = ("Target", "Dataset", "Attack", "AUC", "Balanced accuracy", "TPR at 1% FPR", "TPR at 0.1% FPR", "Shadows")
    rows = [
        (
            one.row.target, one.row.dataset, ", ".join([one.row.attack, *filter(None, [one.row.control])]),
            f"{number(one.row.score)} {interval(one.row.score_interval, sign=False)}", one.accuracy,
            *one.rates.values(), "–" if one.shadows is None else one.shadows, one.people,
        )
        for one in attacked
    ]  # fmt: skip
    lines = table((*head, "Most exposed candidates"), rows, right=(3, 4, 5, 6, 7))
    return ["## Membership", "", escape(resolution(attacked)), "", *lines]


def _survivors(plane: Plane) -> list[str]:
    rows = [
        (
            point.name, f"{number(point.utility)} {interval(point.utility_interval, sign=False)}", point.row.attack,
            f"{signed(point.row.advantage)} {interval(point.row.interval)}", point.surest.finding,
            "yes" if point.frontier else "",
        )
        for point in plane.points
    ]  # fmt: skip
    head = ("Target", f"Utility ({plane.worth})", "Strongest attack", "Advantage", "Finding", "On the frontier")
    note = "The frontier has the targets that no other beats in both utility and advantage."
    return [*table(head, rows, right=(1, 3)), note, ""]


def _published(audit: Audit) -> list[str]:
    rows = [
        (b.target, b.dataset, f"{b.rows:,}", b.metric, number(b.here), interval(b.interval, sign=False), b.seeds,
         number(b.paper), b.source)
        for b in audit.published
    ]  # fmt: skip
    head = ("Target", "Dataset", "Rows", "Measure", "Here", "95% interval", "Seeds", "Paper", "Where")
    return table(head, rows, right=(2, 4, 5, 6, 7))


def _costs(audit: Audit) -> list[str]:
    head = ("Target", "Dataset", "Utility", "Sent", "Rounds", "CPU", *map(capital, NETWORKS.values()))
    rows = []
    for t in audit.targets:
        utility = f"{t.measure} {number(t.utility[t.measure])}" if t.measure else "–"
        rounds = f"{t.costs['rounds']:,.0f}" if "rounds" in t.costs else "–"
        estimates = [duration(t.estimated.get(name)) for name in NETWORKS]
        rows.append((t.target, t.dataset, utility, size(t.costs.get("bytes")), rounds, duration(t.cpu), *estimates))
    note = "CPU time was measured on the machine that ran the audit; times on a network are estimated from it."
    return [*table(head, rows, right=range(3, 9)), note, ""]


READING = (
    "Advantage is score minus baseline; the baseline is the best guess of the same adversary without the protocol. "
    "The interval is the 95% interval of the mean advantage over seeds (over people where there is one seed). "
    "“No leak found” means that this attack did not beat the baseline, not that there is no leak."
)
