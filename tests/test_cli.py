"""The command line as a user meets it: JSON, exit codes, one sentence for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FIELDS = {
    *("schema", "protocol", "dataset", "adversary", "attack", "game", "party", "seed", "metric", "score", "baseline"),
    *("advantage", "interval", "metrics", "verified", "versions"),
}
FAST = ["--data", "iris", "--parties", "2", "--set", "max_epochs=2"]


def vflaudit(*arguments: str, cwd: Path | None = None, module: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vflaudit", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VFLAUDIT_DATA": "/nonexistent"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)


def test_version_help_and_list_are_fast():
    for arguments in (["--version"], ["--help"], ["list", "protocols"]):
        start = time.perf_counter()
        done = vflaudit(*arguments)
        assert done.returncode == 0 and done.stdout
        assert "torch" not in done.stderr
        assert time.perf_counter() - start < 3, "heavy imports must wait"


def test_help_and_list_import_nothing_heavy():
    code = (
        "import sys; sys.argv = ['vflaudit', 'list', 'attacks', '--json']\n"
        "from vflaudit.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'sklearn', 'scipy', 'matplotlib', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("kind", ["protocols", "attacks", "defenses", "datasets", "suites", "claims"])
def test_list_gives_name_and_summary(kind):
    rows = json.loads(vflaudit("list", kind, "--json").stdout)
    assert rows and all(row["name"] and len(row["summary"]) > 10 for row in rows)


def test_the_acceptance_attack_beats_its_baseline():
    arguments = ["attack", "splitnn", "representation-inversion", "--data", "breast-cancer", "--party", "client1"]
    arguments += ["--knows", "known-samples=50,ids", "--seed", "0", "--json"]
    first, second = vflaudit(*arguments), vflaudit(*arguments)
    result = json.loads(first.stdout)
    assert first.stdout == second.stdout and first.stderr == ""
    assert result.keys() >= FIELDS
    assert result["interval"][0] > 0 and result["interval"][0] <= result["advantage"] <= result["interval"][1]
    assert result["advantage"] == pytest.approx(result["score"] - result["baseline"])
    assert (result["schema"], result["metric"], result["game"]) == (1, "r2", "reconstruction")


def test_the_acceptance_negative_control_shows_nothing():
    arguments = ["attack", "ideal", "representation-inversion", "--set", "like=splitnn", "--data", "breast-cancer"]
    result = json.loads(vflaudit(*arguments, "--party", "client1", "--knows", "known-samples=50,ids", "--json").stdout)
    low, high = result["interval"]
    assert low <= 0 <= high


CSV = "age,income,city,label\n" + "".join(f"{20 + i},{i * 7 % 50},{'ab'[i % 2]},{i % 2}\n" for i in range(60))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["attack", "splitnx", "representation-inversion"], "splitnn"),
        (["attack", "splitnn", "representation-inversionx"], "representation-inversion"),
        (["attack", "splitnn", "representation-inversion", "--data", "nope.csv", "--label", "y"], "does not exist"),
        (["attack", "splitnn", "representation-inversion", "--data", "breast-cancr"], "breast-cancer"),
        (["attack", "splitnn", "representation-inversion", "--data", "synthetic:rowz=5"], "rows"),
        (["attack", "splitnn", "representation-inversion", "--data", "synthetic:rows=five"], "rows"),
        (["attack", "splitnn", "representation-inversion", "--party", "nobody"], "client1"),
        (["attack", "splitnn", "representation-inversion", "--corrupts", "servr"], "server"),
        (["attack", "splitnn", "representation-inversion", "--knows", "magic"], "known-samples"),
        (["attack", "splitnn", "representation-inversion", "--knows", "known-samples=0"], "1 or more"),
        (
            ["attack", "splitnn", "representation-inversion", "--knows", "known-samples=9999,ids", *FAST],
            "training rows",
        ),
        (["attack", "splitnn", "representation-inversion", "--set", "no_such_parameter=1"], "no_such_parameter"),
        (["attack", "splitnn", "representation-inversion", "--set", "hidden"], "NAME=VALUE"),
        (["attack", "splitnn", "representation-inversion", "--set", "hidden=-3"], "hidden"),
        (["attack", "splitnn", "representation-inversion", "--defense", "gaussian-noize"], "gaussian-noise"),
        (["attack", "splitnn", "representation-inversion", "--defense", "gaussian-noise:sigma=-1"], "sigma"),
        (["attack", "splitnn", "representation-inversion", "--game", "chess"], "chess"),
        (["attack", "splitnn", "representation-inversion", "--game", "membership"], "does not play"),
        (["attack", "splitnn", "representation-inversion", "--parties", "1000"], "parties"),
        (["attack", "splitnn", "representation-inversion", "--partition", "roundrobin"], "round-robin"),
        (["attack", "splitnn", "representation-inversion", "--aux", "1.5"], "aux"),
        (["attack", "splitnn", "representation-inversion", "--record", "everything"], "record"),
        (["attack", "splitnn", "representation-inversion", "--seed", "-1"], "seed"),
        (["attack", "splitnn", "representation-inversion", "--bogus"], "bogus"),
        (["attack", "splitnn", "representation-inversion", *FAST], "known samples"),
        (["attack", "splitnn", "representation-inversion", "--data", "adult"], "adult.data"),
        (["attack", "splitnn", "representation-inversion", "--data", "data.csv"], "--label"),
        (["attack", "splitnn", "representation-inversion", "--data", "data.csv", "--label", "lable"], "label"),
        (
            [
                "attack",
                "splitnn",
                "representation-inversion",
                "--data",
                "data.csv",
                "--label",
                "label",
                "--split",
                "no.toml",
            ],
            "no.toml",
        ),
        (
            [
                "attack",
                "splitnn",
                "representation-inversion",
                "--data",
                "data.csv",
                "--label",
                "label",
                "--split",
                "bad.toml",
            ],
            "incme",
        ),
        (
            [
                "attack",
                "splitnn",
                "representation-inversion",
                "--data",
                "data.csv",
                "--label",
                "label",
                "--task",
                "guessing",
            ],
            "task",
        ),
        (["attack", "ideal", "representation-inversion", "--set", "like=ideal"], "itself"),
        (["attack", "ideal", "representation-inversion", "--set", "like=splitnn", "--set", "hiden=3"], "hidden"),
        (["run", "no-such-suite"], "quick"),
        (["run", "no.toml"], "does not exist"),
        (["run", "quick", "--fast", "--full"], "exclude"),
        (["claims", "no-such-paper"], "splitnn"),
        (["report", "."], "holds no results"),
        (["list", "unicorns"], "protocols"),
        (["account", "--parties", "many"], "parties"),
        (["account", "--batch", "0"], "batch"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(tmp_path, arguments, word):
    (tmp_path / "data.csv").write_text(CSV)
    (tmp_path / "bad.toml").write_text('[parties]\nbank = ["age", "incme"]\n')
    done = vflaudit(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert word in done.stderr and "Traceback" not in done.stderr


def test_own_csv_with_a_split_file(tmp_path):
    (tmp_path / "data.csv").write_text(CSV)
    (tmp_path / "split.toml").write_text('label_owner = "bank"\n[parties]\nbank = ["age"]\nshop = ["income", "city"]\n')
    arguments = ["attack", "splitnn", "representation-inversion", "--data", "data.csv", "--label", "label"]
    arguments += ["--split", "split.toml", "--knows", "known-samples=15,ids", "--set", "max_epochs=3", "--json"]
    result = json.loads(vflaudit(*arguments, cwd=tmp_path).stdout)
    assert result["party"] == "bank"
    assert set(json.loads(vflaudit(*arguments, "--party", "shop", cwd=tmp_path).stdout)["metrics"]["r2_by_column"]) == {
        "income",
        "city=a",
        "city=b",
    }


def test_a_saved_transcript_loads_again(tmp_path):
    import vflaudit as va

    arguments = ["attack", "splitnn", "random-guess", *FAST, "--transcript", str(tmp_path / "t"), "--json"]
    assert vflaudit(*arguments).returncode == 0
    loaded = va.Transcript.load(tmp_path / "t")
    assert set(loaded.kinds()) == {"activation", "gradient", "output", "output_gradient"}


SUITE = """
summary = "small"
seeds = 2
[[experiment]]
protocol = "centralized"
attack = "known-sample-reconstruction"
data = "iris"
parties = 2
knows = ["known-samples=20,ids"]
set = { max_epochs = 1 }
"""


def test_run_writes_reports_and_gates(tmp_path):
    (tmp_path / "s.toml").write_text(SUITE)
    done = vflaudit("run", "s.toml", "--out", "out", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"report.html", "report.md", "report.json", "junit.xml", "results.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    gated = vflaudit("run", "s.toml", "--out", "out", "--resume", "--gate", "0.5", "--json", cwd=tmp_path)
    assert gated.returncode == 1 and "gate" in gated.stderr
    assert len(json.loads(gated.stdout)) == 2
    assert vflaudit("report", "out", "--format", "md", cwd=tmp_path).returncode == 0
    assert vflaudit("report", "out", "--format", "pdf", cwd=tmp_path).returncode == 2
    assert vflaudit("report", "out", "--format", "junit", "--gate", "0.5", cwd=tmp_path).returncode == 1


def test_a_folder_that_hides_ours_is_told(tmp_path):
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "__init__.py").write_text("")
    done = vflaudit("list", "attacks", cwd=tmp_path)
    assert done.returncode == 2 and "attacks" in done.stderr and "hidden" in done.stderr


def test_account_reproduces_the_reduction_of_fedonce():
    arguments = ["account", "--n", "60000", "--batch", "128", "--epochs", "50", "--sigma", "1", "--delta", "1e-5"]
    rows = json.loads(vflaudit(*arguments, "--parties", "100", "--json").stdout)["rows"]
    classic = next(row for row in rows if row["accountant"] == "rdp-classic")
    assert classic["simple"] == pytest.approx(268.88, abs=0.1)
    assert classic["reduction"] == pytest.approx(0.889, abs=0.001)
