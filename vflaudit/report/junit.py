"""junit.xml: one test case per row, so that a build server can hold a release that leaks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from vflaudit.report.audit import Audit
from vflaudit.report.summary import DEFAULT_GATE, Row, failure
from vflaudit.report.words import number

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(audit: Audit) -> str:
    """A suite of rows; experiments that could not be completed are errors."""
    gate = DEFAULT_GATE if audit.gate is None else audit.gate
    failed = [failure(row, gate) for row in audit.rows]
    counts = {
        "tests": str(len(audit.rows) + len(audit.failures)),
        "failures": str(sum(text is not None for text in failed)),
        "errors": str(len(audit.failures)),
        "skipped": "0",
    }
    root = ET.Element("testsuites", {"name": "vflaudit", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": _clean(audit.title), **counts})
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", {"name": "gate", "value": f"{gate:g}"})
    for row, text in zip(audit.rows, failed, strict=True):
        _case(suite, row, text)
    for name, reason in audit.failures.items():
        case = ET.SubElement(suite, "testcase", {"classname": "vflaudit.incomplete", "name": _clean(name)})
        ET.SubElement(case, "error", {"message": _clean(reason)})
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, row: Row, text: str | None) -> None:
    kind = f"{row.control}-control" if row.control else row.game
    case = ET.SubElement(suite, "testcase", {"classname": _clean(f"vflaudit.{kind}"), "name": _clean(row.describe())})
    properties = ET.SubElement(case, "properties")
    numbers = {
        "metric": row.metric, "score": number(row.score, 6), "baseline": number(row.baseline, 6),
        "advantage": number(row.advantage, 6), "interval_low": number(row.interval[0], 6),
        "interval_high": number(row.interval[1], 6), "seeds": str(row.seeds), "finding": row.finding,
    }  # fmt: skip
    for name, value in numbers.items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    if text is not None:
        ET.SubElement(case, "failure", {"message": _clean(text), "type": "control" if row.control else "gate"})


def _clean(text: str) -> str:
    """Without the characters that XML cannot say."""
    return _FORBIDDEN.sub("�", text)
