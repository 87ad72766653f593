"""Documentation that runs: Python blocks are executed, outputs compared, suites parsed, commands and links checked."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from vflaudit import cli, registry
from vflaudit.core.loading import read_split
from vflaudit.lab.runner import plan
from vflaudit.lab.suite import load_suite

HOME = Path(__file__).resolve().parent.parent
PAGES = sorted((HOME / "docs").glob("*.md"))
ALL = [HOME / "README.md", *PAGES]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
LATER = {"docs/report.png"}  # pictures that are made from a finished audit
CHEAP = ("list", "account", "--version")


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(HOME))


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ vflaudit")]


def assert_alike(printed: str, shown: str) -> None:
    """The same words, and numbers that are close: other machines round differently."""
    assert NUMBER.sub("#", printed.strip()) == NUMBER.sub("#", shown.strip())
    for found, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(found) == pytest.approx(float(expected), rel=0.03, abs=0.03)


def test_the_comparison_of_outputs_can_fail() -> None:
    assert_alike("r2 0.921 of client1", "r2 0.922 of client1\n")
    for other in ("r2 0.7 of client1", "r2 0.922 of client2", "auc 0.922 of client1"):
        with pytest.raises(AssertionError):
            assert_alike("r2 0.922 of client1", other)


@pytest.mark.parametrize("page", ALL, ids=name)
def test_python_blocks_run_and_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    module = type(sys)(namespace["__name__"])
    module.__dict__.update(namespace)
    monkeypatch.setitem(sys.modules, namespace["__name__"], module)  # classes look their module up
    printed = None
    for number, block in enumerate(blocks(page)):
        if block.language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block.text, f"{name(page)}, block {number}", "exec"), module.__dict__)
            printed = output.getvalue()
        elif block.language == "output":
            assert printed is not None, "an output without a block before it"
            assert_alike(printed, block.text)
            printed = None


@pytest.mark.parametrize("page", ALL, ids=name)
def test_toml_blocks_are_valid(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page)):
        if block.language != "toml":
            continue
        content, path = tomllib.loads(block.text), tmp_path / f"block{number}.toml"
        path.write_text(block.text, encoding="utf-8")
        if "experiment" in content:
            assert plan(load_suite(str(path)).experiments)
        elif "parties" in content:
            assert read_split(path).parties
        else:
            assert "project" in content, f"a TOML block of an unknown kind in {name(page)}"


@pytest.mark.parametrize("page", ALL, ids=name)
def test_commands_exist_with_their_options(page: Path) -> None:
    group: Any = typer.main.get_command(cli.app)
    for line in commands(page):
        _, first, *rest = shlex.split(line, comments=True)
        if first == "--version":
            continue
        assert first in group.commands, line
        group.commands[first].make_context(first, list(rest))  # parses everything, runs nothing
        if first == "attack":
            assert rest[0] in registry.registered("protocols") and rest[1] in registry.registered("attacks"), line


def test_cheap_commands_of_the_readme_run(tmp_path: Path) -> None:
    cheap = [line for line in commands(HOME / "README.md") if line.split()[1] in CHEAP]
    assert cheap
    for line in cheap:
        arguments = shlex.split(line, comments=True)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "vflaudit", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0 and done.stdout, f"{line}: {done.stderr}"


@pytest.mark.parametrize("page", ALL, ids=name)
def test_relative_links_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() or str(file.relative_to(HOME)) in LATER, f"{name(page)} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_field_of_a_suite_is_documented() -> None:
    from vflaudit.core.adversary import ITEMS
    from vflaudit.lab.experiment import Experiment
    from vflaudit.lab.suite import SuiteFile

    text = (HOME / "docs" / "suites.md").read_text(encoding="utf-8")
    for field in (set(Experiment.model_fields) - {"seed"}) | set(SuiteFile.model_fields):
        assert f"`{field}`" in text, field
    for item in ITEMS:
        assert f"`{item.option}" in text, item.option


def test_every_finding_and_format_is_documented() -> None:
    from vflaudit.lab.result import Result
    from vflaudit.report import FILES
    from vflaudit.report.summary import LEVELS

    text = (HOME / "docs" / "results.md").read_text(encoding="utf-8")
    for words in (*LEVELS.values(), *FILES.values()):
        assert words in text, words
    for field in set(Result.model_fields) - {"schema_version"}:
        assert f"`{field}`" in text, field


def test_the_published_schema_is_current() -> None:
    from vflaudit.report.schema import schema_text

    assert (HOME / "docs" / "result.schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_readme_names_everything_that_is_registered() -> None:
    from vflaudit.core.games import GAMES

    text = (HOME / "README.md").read_text(encoding="utf-8")
    names = [n for kind in ("protocols", "attacks", "defenses", "suites") for n in registry.registered(kind)]
    for thing in [*names, *GAMES]:
        assert f"`{thing}`" in text, thing


def test_the_plug_in_of_the_docs_works_through_its_entry_points(tmp_path: Path) -> None:
    found = blocks(HOME / "docs" / "extending.md")
    for block in found:
        if block.text.startswith("# myaudit/"):
            path = tmp_path / block.text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            assert len(block.text.splitlines()) < 60
    (project,) = (tomllib.loads(block.text)["project"] for block in found if block.language == "toml")
    points = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items()))
    ]
    (tmp_path / "myaudit" / "__init__.py").touch()
    info = tmp_path / "myaudit-0.1.dist-info"  # what pip would leave behind
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from vflaudit.cli import main; "
        "sys.argv[0] = 'vflaudit'; main()"
    )
    arguments = ["attack", "sketch", "nearest-known", "--data", "wine", "--knows", "known-samples=20,ids"]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *arguments, "--set", "width=4", "--set", "k=5", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"attack": "nearest-known"' in done.stdout and '"width": 4' in done.stdout


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=HOME, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    loaded = re.compile(r"""<(?:script|link|img)[^>]*\b(?:src|href)=["'](?:https?:)?//""")
    for page in (tmp_path / "site").rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), f"{page.name} needs something from elsewhere"
