"""Reports: what an audit found, for people (HTML, Markdown) and for machines (JSON, JUnit)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    from vflaudit.report.audit import Audit
    from vflaudit.report.summary import Row

FILES = {"html": "report.html", "md": "report.md", "json": "report.json", "junit": "junit.xml"}


def write_report(
    folder: str | Path,
    formats: str | Sequence[str] = ("html",),
    *,
    gate: float | None = None,
    out: str | Path | None = None,
) -> list[Path]:
    """Write the reports of a folder of results and return their paths.

    They go into the folder itself, or into the folder `out` (with one format, `out` may be a file).
    """
    wanted = list(dict.fromkeys([formats] if isinstance(formats, str) else formats))
    for name in wanted:
        if name not in FILES:
            raise unknown("report format", name, FILES)
    from vflaudit.lab.store import write_atomically
    from vflaudit.report.audit import load_audit

    audit = load_audit(folder, gate)
    paths = []
    for name in wanted:
        path = _destination(Path(folder), name, None if out is None else Path(out), alone=len(wanted) == 1)
        try:
            write_atomically(path, _renderer(name)(audit))
            path.chmod(0o644)  # a report is meant to be shown
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from None
        paths.append(path)
    return paths


def gate_failures(rows: Sequence[Row], gate: float | None = None) -> list[str]:
    """One sentence for every row that fails the gate and every control that misbehaves."""
    from vflaudit.report import summary

    return summary.gate_failures(rows, gate)


def _destination(folder: Path, name: str, out: Path | None, *, alone: bool) -> Path:
    if out is None:
        return folder / FILES[name]
    return out if alone and out.suffix and not out.is_dir() else out / FILES[name]


def _renderer(name: str) -> Callable[[Audit], str]:
    if name == "html":
        from vflaudit.report.html import render_html

        return render_html
    if name == "md":
        from vflaudit.report.markdown import render_markdown

        return render_markdown
    if name == "junit":
        from vflaudit.report.junit import render_junit

        return render_junit
    return _json


def _json(audit: Audit) -> str:
    from vflaudit.lab.result import dumps

    return dumps(
        {
            "schema": 1,
            "title": audit.title,
            "results": [result.to_json() for result in audit.results],
            "claims": [claim.model_dump(mode="json") for claim in audit.claims],
            "failures": audit.failures,
        }
    )
