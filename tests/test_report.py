"""Reports from tiny made-up results: the numbers are the means, controls overrule, nothing outside is referred to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import statistics
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vflaudit.core.statistics import t_interval
from vflaudit.errors import InputError
from vflaudit.lab.result import DatasetInfo, Result
from vflaudit.lab.store import Store
from vflaudit.report import gate_failures, write_report
from vflaudit.report.audit import load_audit
from vflaudit.report.schema import report_schema, schema_text
from vflaudit.report.style import wrapped
from vflaudit.report.summary import find_series, summarise
from vflaudit.report.tradeoff import Plane, find_planes
from vflaudit.report.words import duration, number, signed, size

SPREAD = (-0.01, 0.0, 0.01)
HOSTILE = "<script>alert(1)</script>"


def made(advantage: float, *, seed: int = 0, baseline: float = 0.1, data: str = "toy", **changes: Any) -> Result:
    """One result. `knows`, `defenses` and `set` go into the experiment."""
    asked = {"protocol": "splitnn", "attack": "inversion", "data": data, "knows": ["known-samples=10,ids"], "set": {}}
    asked |= {name: changes.pop(name) for name in ("knows", "defenses", "set") if name in changes}
    control = changes.pop("control", None)
    values = {
        "protocol": asked["protocol"],
        "dataset": DatasetInfo(name=data, rows=100, fingerprint="f"),
        "adversary": f"the server, knowing {', '.join(asked['knows'])}",
        "attack": "inversion",
        "game": "reconstruction",
        "party": "client1",
        "seed": seed,
        "metric": "r2",
        "score": baseline + advantage,
        "baseline": baseline,
        "advantage": advantage,
        "interval": (advantage - 0.05, advantage + 0.05),
        "metrics": {"r2": baseline + advantage, "r2_by_column": {"age": advantage, "income": -3.0}},
        "rows": 50,
        "control": control,
        "parameters": {"protocol": {"hidden": 8}, "attack": {"learners": ["ridge"]}, "defenses": {}},
        "utility": {"accuracy": 0.9 + seed / 100},
        "costs": {"rounds": 10, "messages": 40, "bytes": 12_345},
        "versions": {"vflaudit": "0", "python": "3"},
    } | changes
    experiment = asked | {"seed": seed, "control": control}
    content = json.dumps([experiment, advantage, values["metric"]], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    return Result(experiment=experiment, key=key, **values)


def seeds(advantage: float, **changes: Any) -> list[Result]:
    return [made(advantage + step, seed=seed, **changes) for seed, step in enumerate(SPREAD)]


def usual() -> list[Result]:
    found = [r for n, a in ((5, 0.2), (10, 0.5), (100, 0.8)) for r in seeds(a, knows=[f"known-samples={n},ids"])]
    found += seeds(0.0, defenses=["noise:sigma=2"])
    found += seeds(0.88, control="positive", set={"leaky": True}) + seeds(-0.02, control="negative", set={"like": "x"})
    return found


def store(folder: Path, results: list[Result], **extra: Any) -> Path:
    place = Store(folder)
    place.begin("A title", [r.key for r in results], extra)
    for result in results:
        timing = {"cpu_seconds": {"server": 0.25, "client1": 0.5}, "estimated_seconds": {"lan": 1.0, "wan": 200.0}}
        place.write(result, timing)
    return folder


class Page(HTMLParser):
    """References, tags and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.rows: dict[str, str] = {}
        self._row: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.links += [found[name] for name in ("src", "href", "srcset", "action", "data") if name in found]
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "tr":
            self._row = found.get("id")
            self.rows.setdefault(self._row or "", "")

    def handle_data(self, data: str) -> None:
        if self._row:
            self.rows[self._row] += f" {data.strip()}"


def html(folder: Path, **options: Any) -> str:
    (path,) = write_report(folder, **options)
    return path.read_text(encoding="utf-8")


def test_rows_are_means_with_an_interval_over_seeds() -> None:
    results = usual()
    rows = summarise(results)
    assert [row.seeds for row in rows] == [3] * 6
    group = results[:3]
    assert rows[0].score == pytest.approx(statistics.mean(r.score for r in group))
    assert rows[0].advantage == pytest.approx(0.2)
    assert rows[0].interval == t_interval([r.advantage for r in group])
    assert rows[0].utility["accuracy"] == pytest.approx(0.91)
    assert rows[0].columns == {"age": pytest.approx(0.2), "income": pytest.approx(-3.0)}


def test_one_seed_keeps_its_own_interval() -> None:
    (row,) = summarise([made(0.4)])
    assert row.interval == (pytest.approx(0.35), pytest.approx(0.45))
    assert row.score_interval == (pytest.approx(0.45), pytest.approx(0.55))


@pytest.mark.parametrize(
    ("advantage", "baseline", "interval", "metric", "level"),
    [
        (0.9, 0.08, (0.88, 0.92), "r2", "everything"),
        (0.1, 0.9, (-0.01, 0.1), "r2", "none"),
        (0.1, 0.9, (-0.01, 0.2), "r2", "unsettled"),
        (0.6, 0.0, (0.5, 0.7), "r2", "heavy"),
        (0.3, 0.5, (0.25, 0.35), "auc", "heavy"),
        (0.3, 0.0, (0.25, 0.35), "r2", "leak"),
        (0.2, 0.0, (0.01, 0.35), "r2", "little"),
        (0.0, 0.0, (0.0, 0.05), "r2", "none"),
        (-0.5, 0.5, (-0.6, -0.4), "r2", "none"),
        (2.0, 0.0, (1.5, 2.5), "epsilon_lower", "leak"),
    ],
)
def test_finding_follows_from_the_interval(
    advantage: float, baseline: float, interval: tuple[float, float], metric: str, level: str
) -> None:
    (row,) = summarise([made(advantage, baseline=baseline, interval=interval, metric=metric)])
    assert row.level == level
    assert ("no leak found by this attack" in row.finding) == (level in ("none", "unsettled"))


def test_series_differ_in_one_number_only() -> None:
    rows = summarise(usual())
    (series,) = find_series([row for row in rows if not row.control])
    assert [n for n, _ in series.points] == [5, 10, 100]
    assert [round(row.advantage, 3) for _, row in series.points] == [0.2, 0.5, 0.8]
    two = [made(0.1, knows=["known-samples=5", "labels=3"]), made(0.1, knows=["known-samples=6", "labels=4"])]
    assert find_series(summarise(two)) == []


def test_all_formats_are_written_and_the_bytes_repeat(tmp_path: Path) -> None:
    folder = store(tmp_path / "a", usual(), command="vflaudit run quick", gate=0.3)
    formats = ("html", "md", "json", "junit")
    paths = write_report(folder, formats)
    assert [path.name for path in paths] == ["report.html", "report.md", "report.json", "junit.xml"]
    again = write_report(folder, formats, out=tmp_path / "b")
    assert [path.parent.name for path in again] == ["b"] * 4
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    (single,) = write_report(folder, "md", out=tmp_path / "mine.md")
    assert single == tmp_path / "mine.md" and single.read_bytes() == paths[1].read_bytes()


def test_page_stands_alone_and_shows_the_means(tmp_path: Path) -> None:
    folder = store(tmp_path, usual())
    text = html(folder)
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert not re.search(r"url\(|@import|http://|https://", re.sub(r"data:image[^\"]+", "", text))
    for row in summarise(usual()):
        cells = page.rows[row.name]
        for value in (number(row.score), number(row.baseline), signed(row.advantage), row.adversary[4:]):
            assert value in cells
        if not row.control:
            assert row.finding in cells
    assert "FAILED" not in text.split("<main>")[1]
    assert "12.3 kB" in text and "0.75 s" in text and "3.33 min" in text
    assert text.count("<source ") >= 4 and "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("bad", [{"advantage": 0.05, "control": "positive"}, {"advantage": 0.2, "control": "negative"}])
def test_a_failed_control_overrules_the_report(tmp_path: Path, bad: dict[str, Any]) -> None:
    advantage = bad.pop("advantage")
    folder = store(tmp_path, seeds(0.5) + seeds(advantage, set={"kind": 1}, **bad))
    text = html(folder)
    assert 'class="banner red"' in text and "A control FAILED" in text
    assert "so nothing else in this report can be trusted" in text
    (path,) = write_report(folder, "md")
    assert "A control FAILED" in path.read_text(encoding="utf-8")


def test_missing_controls_and_failures_are_said(tmp_path: Path) -> None:
    folder = store(tmp_path, seeds(0.5))
    (folder / "failures.json").write_text(json.dumps({"lira on x": "no such <data>"}))
    text = html(folder)
    assert "This report has no controls" in text
    assert "1 experiment could not be completed" in text and "no such &lt;data&gt;" in text


def test_a_folder_with_failures_only_is_reported(tmp_path: Path) -> None:
    folder = store(tmp_path, [])
    with pytest.raises(InputError, match="no finished results"):
        write_report(folder)
    (folder / "failures.json").write_text(json.dumps({"a": "b"}))
    for path in write_report(folder, ("html", "md", "json", "junit")):
        assert path.stat().st_size > 50
    assert ET.parse(folder / "junit.xml").getroot().get("errors") == "1"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    results = seeds(0.5, data=HOSTILE, adversary=f"the {HOSTILE} & 'co'", party=HOSTILE, attack="$x_{$|y")
    folder = store(tmp_path, results, summary=HOSTILE, command="a`|<b>")
    claim = {"paper": HOSTILE, "id": HOSTILE, "claim": HOSTILE, "verdict": "refuted", "summary": HOSTILE}
    (folder / "claims.json").write_text(json.dumps([claim]))
    text = html(folder)
    assert "script" not in Page(text).tags and "<script" not in text
    assert "&lt;script&gt;" in text
    markdown, junit = (path.read_text(encoding="utf-8") for path in write_report(folder, ("md", "junit")))
    assert "<script" not in markdown
    ET.fromstring(junit.split("\n", 1)[1])


def test_claims_come_first_and_point_to_their_rows(tmp_path: Path) -> None:
    results = usual()
    folder = store(tmp_path, results)
    evidence = {"what": "raw", "measure": "R²", "mean": 0.91234, "interval": [0.9, 0.95], "threshold": 0.5, "seeds": 3}
    claims = [
        {"paper": "P", "id": f"c{n}", "section": "2", "claim": f"Claim {n}", "reading": "literal", "verdict": verdict}
        | {"refuted_if": "x > 0.5", "summary": "s", "measured_on": "toy", "evidence": evidences}
        for n, (verdict, evidences) in enumerate(
            [
                ("upheld", []),
                ("refuted", [evidence | {"keys": [results[0].key]}]),
                ("conditional", []),
                ("inconclusive", []),
            ]
        )
    ]
    (folder / "claims.json").write_text(json.dumps(claims))
    text = html(folder)
    assert text.index('id="claims"') < text.index('id="findings"')
    for verdict in ("upheld", "refuted", "conditional", "inconclusive"):
        assert f'<span class="badge {verdict}">{verdict}</span>' in text
    assert '<a href="#row-1">' in text and "<b>0.912</b> [0.900, 0.950], threshold 0.500, 3 seeds" in text
    (folder / "claims.json").write_text('{"verdict": "maybe"}')
    with pytest.raises(InputError, match=r"claims\.json"):
        write_report(folder)


def test_junit_counts_failures_at_the_gate(tmp_path: Path) -> None:
    results = [
        made(0.3, interval=(0.1, 0.5)),  # exactly at the gate: not above it
        made(0.3, interval=(0.1001, 0.5), knows=["means"]),
        made(0.3, interval=(0.1, 0.5), control="positive", set={"a": 1}),  # does not win by more than 0.1
        made(0.9, interval=(0.8, 1.0), control="positive", set={"a": 2}),
        made(0.0, interval=(0.0, 0.1), control="negative", set={"a": 3}),
        made(0.1, interval=(0.001, 0.2), control="negative", set={"a": 4}),
    ]
    folder = store(tmp_path, results)
    write_report(folder, ["junit"])
    suite = ET.parse(folder / "junit.xml").getroot()[0]
    cases = suite.findall("testcase")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "3", "0")
    assert [case.find("failure") is not None for case in cases] == [False, True, True, False, False, True]
    values = {item.get("name"): item.get("value") for item in cases[1].iter("property")}
    assert values["advantage"] == "0.300000" and values["interval_low"] == "0.100100"
    rows = load_audit(folder).rows
    assert len(gate_failures(rows, 0.1)) == 3 and len(gate_failures(rows, 0.5)) == 2
    assert len(gate_failures(rows, 0.05)) == 4 and gate_failures([], 0.1) == []
    write_report(folder, ["junit"], gate=0.5)
    assert ET.parse(folder / "junit.xml").getroot().get("failures") == "2"


def test_json_validates_against_the_published_schema(tmp_path: Path) -> None:
    committed = Path(__file__).parents[1] / "docs" / "result.schema.json"
    assert committed.read_text(encoding="utf-8") == schema_text(), "run python -m vflaudit.report.schema"
    results = usual()
    folder = store(tmp_path, results)
    claim = {"paper": "P", "id": "c", "claim": "C", "verdict": "upheld", "evidence": [{"mean": 1, "interval": [0, 1]}]}
    (folder / "claims.json").write_text(json.dumps([claim]))
    (path,) = write_report(folder, ("json",))
    content = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(content, report_schema())
    assert content["results"] == [json.loads(json.dumps(r.to_json())) for r in results]
    del content["results"][0]["score"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, report_schema())


def test_figures_are_svg_with_their_marks(tmp_path: Path) -> None:
    import matplotlib

    from vflaudit.report import plots

    before = dict(matplotlib.rcParams)
    folder = store(
        tmp_path, usual() + seeds(0.3, metric="epsilon_lower", game="distinguishing", party=None, metrics={})
    )
    audit = load_audit(folder, gate=0.25)
    for kind, many in ((plots.forest, 2), (plots.curves, 1), (plots.heatmaps, 1), (plots.costs, 1)):
        found = kind(audit)
        assert len(found) == many, kind.__name__
        for plot in found:
            assert plot.alt and plot.caption and plot.light != plot.dark
            for uri in (plot.light, plot.dark):
                svg = base64.b64decode(uri.partition(",")[2])
                tree = ET.fromstring(svg)
                assert tree.tag.endswith("svg") and len(list(tree.iter())) > 60
                assert b"<dc:date>" not in svg
    assert dict(matplotlib.rcParams) == before


def plane_of(folder: Path, results: list[Result]) -> Plane:
    (plane,) = find_planes(load_audit(store(folder, results)))
    return plane


def test_plane_compares_targets_that_faced_the_same_adversaries(tmp_path: Path) -> None:
    low = {"utility": {"accuracy": 0.7}}
    results = seeds(0.5) + seeds(0.6, attack="other", set={"attack.name": "other"}) + seeds(0.9, knows=["means"])
    results += seeds(0.55, defenses=["worse"], **low) + seeds(0.2, defenses=["noise:sigma=2"], **low)
    results += seeds(0.1, knows=["means"], set={"hidden": 4}) + seeds(0.99, control="positive", set={"leaky": 1})
    plane = plane_of(tmp_path, results)
    assert [p.name for p in plane.points] == ["no defense", "noise:sigma=2", "worse"]
    assert [p.row.advantage for p in plane.points] == [pytest.approx(a) for a in (0.6, 0.2, 0.55)]  # not 0.9
    assert [p.utility for p in plane.points] == [pytest.approx(u) for u in (0.91, 0.7, 0.7)]
    assert plane.points[0].utility_interval == t_interval([0.9, 0.91, 0.92])
    assert [p.name for p in plane.frontier] == ["noise:sigma=2", "no defense"]
    assert plane.left_out == ("splitnn (hidden=4)",)
    text = html(tmp_path)
    assert "What survives" in text and "Not drawn" in text and text.count("on the frontier") == 2
    assert "What survives" in write_report(tmp_path, "md")[0].read_text(encoding="utf-8")


def test_plane_of_errors_points_the_other_way_and_one_seed_has_no_interval(tmp_path: Path) -> None:
    results = [made(0.1, defenses=["a"], utility={"rmse": 5.0}), made(0.8, utility={"rmse": 2.0})]
    plane = plane_of(tmp_path / "errors", results)
    assert plane.worth == "minus RMSE" and [p.utility for p in plane.points] == [-2.0, -5.0]
    assert all(p.frontier and p.utility_interval is None for p in plane.points)
    sure = seeds(0.04, attack="sure", set={"attack.name": "sure"})  # less on average, but surely
    wild = [made(0.05 + step, seed=seed) for seed, step in enumerate((-0.4, 0.0, 0.4))]
    point = plane_of(tmp_path / "sure", wild + sure + seeds(0.0, defenses=["a"])).points[0]
    assert (point.row.attack, point.surest.leaks) == ("inversion", True) and not point.row.leaks
    open_ = [made(step, seed=seed, attack="x", set={"attack.x": 1}) for seed, step in enumerate((-0.4, -0.1, 0.2))]
    point = plane_of(tmp_path / "open", seeds(0.0) + open_ + seeds(0.0, defenses=["a"])).points[-2]
    assert (point.row.level, point.surest.level) == ("none", "unsettled")


@pytest.mark.parametrize(
    "results",
    [
        seeds(0.5),
        seeds(0.5) + seeds(0.1, defenses=["a"], data="elsewhere"),
        seeds(0.5) + seeds(0.1, defenses=["a"], knows=["means"]),
        seeds(0.5, utility={}) + seeds(0.1, defenses=["a"]),
        seeds(0.5) + seeds(0.9, defenses=["a"], control="positive"),
    ],
)
def test_no_plane_where_nothing_can_be_compared(tmp_path: Path, results: list[Result]) -> None:
    assert find_planes(load_audit(store(tmp_path, results))) == []
    assert "What survives" not in write_report(tmp_path, "md")[0].read_text(encoding="utf-8")


def test_numbers_of_crowded_points_do_not_cover_each_other() -> None:
    from vflaudit.report.plane import LABEL, spread

    places = spread([(1.0, 1.0)] * 4 + [(1.05, 1.02), (5.0, 3.0), (0.0, 0.0)], (5.0, 3.0))
    for i, (x, y) in enumerate(places):
        assert 0 <= x <= 5 and 0 <= y <= 3
        assert all(abs(x - a) >= LABEL[0] - 1e-9 or abs(y - b) >= LABEL[1] - 1e-9 for a, b in places[:i])


def test_only_svg_files_of_the_folder_become_figures(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", usual())
    place, svg = folder / "figures", f"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>"
    place.mkdir()
    contents = {
        "good.svg": svg, "page.svg": "<html><svg/></html>", "bomb.svg": "<!DOCTYPE svg [<!ENTITY a 'b'>]><svg/>",
        "picture.png": svg, "large.svg": svg + " " * 5_000_000, "../outside.svg": svg,
    }  # fmt: skip
    for name, content in contents.items():
        (place / name).write_text(content)
    (tmp_path / "secret.svg").write_text(svg)
    (place / "link.svg").symlink_to(tmp_path / "secret.svg")
    (place / "folder.svg").mkdir()
    names = [
        "figures/page.svg", "figures/bomb.svg", "figures/picture.png", "figures/large.svg", "figures/link.svg",
        "figures/folder.svg", "figures/missing.svg", "outside.svg", "../secret.svg", "figures/../outside.svg",
        "figures/.hidden.svg", str(tmp_path / "secret.svg"), "figures//good.svg", "figures/good.svg\n", "", 7, None,
    ]  # fmt: skip
    words = {"title": HOSTILE, "caption": HOSTILE}
    entries: list[Any] = [{"file": name, **words} for name in ["figures/good.svg", *names]]
    entries += [{"file": "figures/good.svg", "title": 3}, "figures/good.svg", None]
    (folder / "figures.json").write_text(json.dumps(entries))
    audit = load_audit(folder)
    assert len(audit.figures) == 1 and len(audit.figure_notes) == len(entries) - 1
    text = html(folder)
    page = Page(text)
    assert "<script" not in text and "svg" not in page.tags and "Left out of figures.json" in text
    assert f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" in page.links
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in page.links)
    for content in ("{", "{}", "7", "[" * 100_000):
        (folder / "figures.json").write_text(content)
        assert load_audit(folder).figure_notes == ["figures.json is not a list of figures that can be read"]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no report format named 'htm': did you mean 'html'"):
        write_report(tmp_path, ("htm",))
    with pytest.raises(InputError, match="holds no results"):
        write_report(tmp_path)


def test_words() -> None:
    assert [number(-0.0001), signed(0.0), signed(0.5), signed(-0.25), number(float("nan"))] == [
        "0.000", "0.000", "+0.500", "-0.250", "–",
    ]  # fmt: skip
    assert [size(999), size(12_345), size(29_784_264), size(None)] == ["999 B", "12.3 kB", "29.8 MB", "–"]
    assert [duration(0.0123), duration(1.234), duration(111), duration(7200)] == ["12 ms", "1.23 s", "1.85 min", "2 h"]
    assert wrapped("splitnn (activation_at=server)", 16) == ["splitnn", "(activation_at=", "server)"]
    assert wrapped("x" * 40, 10, 2) == ["x" * 10, "x" * 9 + "…"]
    assert wrapped("", 10) == [""]
