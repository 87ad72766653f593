"""Running many experiments: plan, skip what is done, share runs, spread over processes, survive interruption."""

from __future__ import annotations

import json
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vflaudit.core.dataset import VerticalDataset
from vflaudit.errors import InputError, unknown
from vflaudit.lab.experiment import Experiment
from vflaudit.lab.perform import check, experiment_key, perform
from vflaudit.lab.result import Result
from vflaudit.lab.store import Store

BACKENDS = ("local", "ray")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a suite."""

    results: list[Result]
    failures: dict[str, str]
    reused: int = 0
    store: Store | None = field(default=None, compare=False)


def plan(experiments: Sequence[Experiment]) -> list[tuple[str, Experiment]]:
    """Check every experiment before the first one runs, and give each its key."""
    loaded: dict[str, VerticalDataset] = {}
    planned: dict[str, Experiment] = {}
    for experiment in experiments:
        identity = json.dumps(
            experiment.model_dump(
                mode="json",
                exclude={"protocol", "attack", "game", "party", "corrupts", "knows", "set", "record", "control"},
            ),
            sort_keys=True,
        )
        if identity not in loaded:
            loaded[identity] = experiment.load_data()
        data = loaded[identity]
        check(experiment, data)
        planned.setdefault(experiment_key(experiment, data), experiment)
    return list(planned.items())


def grouped(todo: Sequence[tuple[str, Experiment]]) -> list[list[tuple[str, Experiment]]]:
    """Experiments that share a protocol run, together."""
    groups: dict[str, list[tuple[str, Experiment]]] = {}
    for key, experiment in todo:
        groups.setdefault(json.dumps(experiment.run_part(), sort_keys=True), []).append((key, experiment))
    return list(groups.values())


def work(group: list[tuple[str, dict[str, Any]]], folder: str) -> list[tuple[str, str | None]]:
    """One worker's job: every result is on disk before the next is begun. Returns (description, failure)."""
    store = Store(folder)
    done: list[tuple[str, str | None]] = []
    finished = perform([Experiment(**item) for _, item in group])
    for (key, _), (experiment, result, timing) in zip(group, finished, strict=True):
        failure = None
        if isinstance(result, Exception):
            failure = str(result)
        elif result.key != key:
            failure = "the data or the code changed while the suite was running: run it again"
        else:
            store.write(result, timing)
        done.append((describe(experiment), failure))
    return done


def describe(experiment: Experiment) -> str:
    """A short name for messages."""
    return f"{experiment.attack} on {experiment.protocol}, {experiment.data}, seed {experiment.seed}"


def run_experiments(
    experiments: Sequence[Experiment],
    out: str | Path,
    *,
    title: str,
    jobs: int = 1,
    backend: str = "local",
    resume: bool = False,
    progress: Progress | None = None,
    extra: dict[str, Any] | None = None,
) -> Outcome:
    """Run them all into a folder. With `resume`, results whose key is already there are kept and not computed again."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if jobs < 1:
        raise InputError(f"jobs={jobs}: expected a whole number of 1 or more")
    store = Store(out)
    planned = plan(experiments)
    store.begin(title, [key for key, _ in planned], extra)
    kept = {key for key, _ in planned if resume and store.has(key)}
    if not resume:
        for key, _ in planned:
            store.path(key).unlink(missing_ok=True)
    todo = grouped([(key, experiment) for key, experiment in planned if key not in kept])
    done, failures = len(kept), {}
    if progress:
        progress(done, len(planned))
    with _interruptible() as interrupted:
        for finished in _parallel(todo, str(store.folder), jobs, backend):
            for name, failure in finished:
                done += 1
                if failure is not None:
                    failures[name] = failure
            if progress:
                progress(done, len(planned))
            if interrupted.is_set():
                raise KeyboardInterrupt
    return Outcome(store.finish(), failures, len(kept), store)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Remembers Ctrl-C: Python drops the exception where it happens to fall into a library's callback."""
    interrupted = threading.Event()

    def stop(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, stop) if mine else None
    try:
        yield interrupted
    finally:
        if mine:
            signal.signal(signal.SIGINT, before)


def _parallel(todo: list[list[tuple[str, Experiment]]], folder: str, jobs: int, backend: str) -> Any:
    """Jobs over processes, results as they come. Interrupting kills the workers; what they finished is on disk."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor

    if backend == "ray":
        start_ray(jobs)
    tasks = [delayed(work)([(key, item.model_dump(mode="json")) for key, item in group], folder) for group in todo]
    options: dict[str, Any] = {"inner_max_num_threads": 1} if backend == "local" and jobs > 1 else {}
    name = "ray" if backend == "ray" else "loky" if jobs > 1 else "sequential"
    try:
        with parallel_config(backend=name, n_jobs=jobs, **options), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A worker stopped")
            yield from Parallel(return_as="generator_unordered" if name != "ray" else "list", batch_size=1)(tasks)
    except KeyboardInterrupt:
        if name == "loky":
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
        raise


def start_ray(jobs: int) -> None:
    """Register Ray with joblib (extra 'ray'); nothing is reported to anybody."""
    import os

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise InputError("backend 'ray' needs the extra: pip install 'vflaudit[ray]'") from None
    if not ray.is_initialized():
        ray.init(num_cpus=jobs, include_dashboard=False, configure_logging=False, log_to_driver=False)
    register_ray()
