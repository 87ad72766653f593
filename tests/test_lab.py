"""Suites, runner and store: nothing is lost, nothing is recomputed, nothing is reused wrongly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vflaudit.errors import InputError
from vflaudit.lab import result as result_module
from vflaudit.lab.experiment import Experiment, prepare
from vflaudit.lab.perform import experiment_key
from vflaudit.lab.runner import grouped, plan, run_experiments
from vflaudit.lab.store import Store, write_atomically
from vflaudit.lab.suite import load_suite

CHEAP = {
    "protocol": "splitnn",
    "attack": "representation-inversion",
    "data": "iris",
    "parties": 2,
    "knows": ("known-samples=10,ids",),
    "set": {"max_epochs": 2, "learners": ["ridge"]},
}


def cheap(**changes: object) -> Experiment:
    return Experiment(**{**CHEAP, **changes})


def suite(tmp_path: Path, text: str) -> str:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return str(path)


GOOD = """
summary = "two by two"
seeds = 2
[defaults]
data = "iris"
parties = 2
set = { max_epochs = 1 }
[[experiment]]
protocol = "splitnn"
attack = "representation-inversion"
[experiment.vary]
knows = [["known-samples=5,ids"], ["known-samples=9,ids"]]
"set.hidden" = [4, 8]
"""


def test_suite_multiplies_out_and_repeats_per_seed(tmp_path):
    loaded = load_suite(suite(tmp_path, GOOD))
    assert len(loaded.experiments) == 2 * 2 * 2
    assert {(e.knows[0], e.set["hidden"], e.seed) for e in loaded.experiments} == {
        (f"known-samples={n},ids", h, s) for n in (5, 9) for h in (4, 8) for s in (0, 1)
    }
    assert all(e.set["max_epochs"] == 1 for e in loaded.experiments)


@pytest.mark.parametrize("name", ["quick", "full"])
def test_built_in_suites_are_valid(name):
    assert plan(load_suite(name, seeds=1).experiments)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.replace("summary", "sumary"), "sumary"),
        (lambda t: t.replace("protocol =", "protocoll ="), "protocol"),
        (lambda t: t.replace('"splitnn"', '"splitnm"'), "splitnn"),
        (lambda t: t.replace("representation-inversion", "representation-invasion"), "representation-inversion"),
        (lambda t: t.replace("seeds = 2", "seeds = 0"), "seeds"),
        (lambda t: t.replace("seeds = 2", 'seeds = "many"'), "seeds"),
        (lambda t: t.replace("max_epochs", "max_epoch"), "max_epochs"),
        (lambda t: t.replace("parties = 2", "parties = 99"), "parties"),
        (lambda t: t.replace("[defaults]", "[defaults"), "TOML"),
        (lambda t: t.replace('"set.hidden" = [4, 8]', '"set.hidden" = 4'), "vary"),
        (lambda t: t.replace('"set.hidden" = [4, 8]', "hiden = [4, 8]"), "hiden"),
        (lambda t: t.replace("known-samples=5", "known-samples=x"), "known-samples"),
        (lambda t: t.replace("known-samples=5", "known-sample=5"), "known-samples"),
        (lambda t: t + "seed = 3\n", "vary"),
        (lambda t: t.split("[[experiment]]")[0], "experiment"),
        (lambda t: t.replace('data = "iris"', 'data = "irish"'), "iris"),
        (lambda t: t.replace("parties = 2", 'parties = 2\ncorrupts = ["sever"]'), "server"),
        (lambda t: t.replace("parties = 2", 'parties = 2\nparty = "client7"'), "client"),
    ],
)
def test_malformed_suites_are_told_in_one_sentence(tmp_path, change, word):
    with pytest.raises(InputError, match=word) as caught:
        plan(load_suite(suite(tmp_path, change(GOOD))).experiments)
    assert "\n" not in str(caught.value)


def test_key_depends_on_everything_that_decides_the_result(monkeypatch):
    base = cheap()
    data = base.load_data()
    key = experiment_key(base, data)
    assert key == experiment_key(cheap(), cheap().load_data())
    others = [
        cheap(seed=1),
        cheap(knows=("known-samples=11,ids",)),
        cheap(set={"max_epochs": 3, "learners": ["ridge"]}),
        cheap(attack="random-guess"),
        cheap(defenses=("gaussian-noise:sigma=1",)),
        cheap(corrupts=("server", "client2")),
        cheap(party="client2"),
    ]
    keys = [experiment_key(other, data) for other in others]
    assert len({key, *keys}) == len(keys) + 1
    assert experiment_key(base, cheap(seed=1).load_data()) != key, "the order of the rows must matter"
    newer = {**result_module.versions(), "torch": "99"}
    monkeypatch.setattr(result_module, "versions", lambda: newer)
    assert experiment_key(base, data) != key, "package versions must matter"


def test_experiments_that_share_a_run_are_grouped():
    groups = grouped([("a", cheap()), ("b", cheap(knows=("known-samples=12,ids",))), ("c", cheap(seed=1))])
    assert [len(group) for group in groups] == [2, 1]


def read_all(folder: Path) -> dict[str, bytes]:
    files = [folder / "results.json", *sorted((folder / "results").iterdir())]
    return {path.name: path.read_bytes() for path in files}


def test_one_and_two_workers_write_the_same_bytes(tmp_path):
    experiments = [cheap(seed=seed, party=party) for seed in (0, 1) for party in ("client1", "client2")]
    run_experiments(experiments, tmp_path / "one", title="t", jobs=1)
    run_experiments(experiments, tmp_path / "two", title="t", jobs=2)
    assert read_all(tmp_path / "one") == read_all(tmp_path / "two")
    assert len(read_all(tmp_path / "one")) == 5


def test_resume_never_recomputes_and_never_reuses_wrongly(tmp_path, monkeypatch):
    done: list[Experiment] = []
    from vflaudit.lab import runner

    original = runner.perform

    def counting(experiments):
        done.extend(experiments)
        return original(experiments)

    monkeypatch.setattr(runner, "perform", counting)
    first = run_experiments([cheap(), cheap(seed=1)], tmp_path, title="t")
    assert len(done) == 2 and first.reused == 0
    done.clear()
    again = run_experiments([cheap(), cheap(seed=1), cheap(seed=2)], tmp_path, title="t", resume=True)
    assert [e.seed for e in done] == [2] and again.reused == 2
    done.clear()
    changed = run_experiments([cheap(set={"max_epochs": 3, "learners": ["ridge"]})], tmp_path, title="t", resume=True)
    assert len(done) == 1 and changed.reused == 0
    assert changed.results[0].score != first.results[0].score
    done.clear()
    run_experiments([cheap()], tmp_path, title="t", resume=False)
    assert len(done) == 1, "without --resume everything is computed again"


def test_a_damaged_result_is_computed_again(tmp_path):
    outcome = run_experiments([cheap()], tmp_path, title="t")
    path = Store(tmp_path).path(outcome.results[0].key)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"{}", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(damaged)
        assert run_experiments([cheap()], tmp_path, title="t", resume=True).reused == 0
        assert path.read_bytes() == whole


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interruption_loses_only_what_was_unfinished(tmp_path, how):
    text = GOOD.replace("seeds = 2", "seeds = 30").replace("max_epochs = 1", "max_epochs = 20")
    command = [
        sys.executable,
        "-m",
        "vflaudit",
        "run",
        suite(tmp_path, text),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    results = tmp_path / "out" / "results"
    deadline = time.time() + 240
    while time.time() < deadline and (not results.exists() or len(list(results.glob("[!.]*.json"))) < 3):
        time.sleep(0.02)
    os.killpg(process.pid, how)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    kept = sorted(path for path in results.glob("[!.]*.json"))
    assert 3 <= len(kept) < 120
    for path in kept:
        assert json.loads(path.read_text())["key"] == path.stem, "every file that is there is whole"
    if how == signal.SIGINT:
        assert process.returncode == 130 and "--resume" in err and "Traceback" not in err


def test_failures_are_reported_and_the_rest_goes_on(tmp_path):
    outcome = run_experiments([cheap(knows=()), cheap()], tmp_path, title="t")
    assert len(outcome.results) == 1
    assert "known samples" in next(iter(outcome.failures.values()))


def test_settings_go_to_whoever_has_the_parameter():
    setup = prepare(cheap(set={"max_epochs": 2, "attack.learners": ["ridge"], "protocol.hidden": 6}))
    assert setup.protocol.hidden == 6 and setup.attack.learners == ("ridge",)
    with pytest.raises(InputError, match=r"protocol\.NAME"):
        prepare(cheap(set={"server.hidden": 6}))


def test_store_refuses_foreign_folders(tmp_path):
    with pytest.raises(InputError, match="holds no results"):
        Store(tmp_path).results()
    (tmp_path / "index.json").write_text('{"schema": 1, "title": "x", "keys": ["../../etc/passwd"]}')
    with pytest.raises(InputError, match="not an index"):
        Store(tmp_path).results()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        Store(tmp_path / "file")


def test_unknown_backend_and_missing_extra(tmp_path):
    with pytest.raises(InputError, match="local"):
        run_experiments([cheap()], tmp_path, title="t", backend="locl")
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="extra"):
            run_experiments([cheap()], tmp_path, title="t", backend="ray")
    else:
        assert len(run_experiments([cheap()], tmp_path, title="t", backend="ray").results) == 1


def test_code_that_changes_during_a_run_is_noticed(tmp_path, monkeypatch):
    from vflaudit.lab import perform

    monkeypatch.setattr(perform, "experiment_key", lambda *_: "another")
    outcome = run_experiments([cheap()], tmp_path, title="t")
    assert not outcome.results and "changed while" in next(iter(outcome.failures.values()))
