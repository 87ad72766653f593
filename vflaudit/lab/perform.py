"""Carrying out experiments: run the protocol once, attack it as often as asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vflaudit import registry
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run
from vflaudit.errors import InputError, unknown
from vflaudit.lab.experiment import Experiment, Setup, make_game, prepare
from vflaudit.lab.result import DatasetInfo, Result, key_of, versions


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per process: faster here, and sums come out the same whatever the machine has."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def plugin_versions(experiment: Experiment) -> dict[str, str]:
    """Versions of the third-party packages that this experiment's parts come from."""
    found = {}
    wanted = [("protocols", experiment.protocol), ("attacks", experiment.attack)]
    wanted += [("defenses", text.partition(":")[0]) for text in experiment.defenses]
    for kind, name in wanted:
        point = registry.registered(kind).get(name)
        if point is not None and point.dist is not None and point.dist.name != "vflaudit":
            found[point.dist.name] = point.dist.version
    return found


def experiment_key(experiment: Experiment, data: VerticalDataset) -> str:
    """The name under which the result is stored."""
    return key_of(experiment.model_dump(mode="json"), data.fingerprint, plugin_versions(experiment))


def check(experiment: Experiment, data: VerticalDataset) -> None:
    """Everything that can be told before the protocol runs: names, parameters, parties."""
    setup = prepare(experiment)
    prepared = setup.protocol.prepare(data)
    parties = setup.protocol.parties(prepared)
    adversary = setup.adversary(experiment)
    for party in sorted(adversary.corrupts):
        if party not in parties:
            raise unknown(f"party of {experiment.protocol!r}", party, parties)
    make_game(setup, experiment, [party for party in prepared.parties if party not in adversary.corrupts])


def execute(experiment: Experiment, data: VerticalDataset) -> Run:
    """Run the protocol of an experiment."""
    setup = prepare(experiment)
    return setup.protocol.run(data, seed=experiment.seed, defenses=setup.defenses, recording=setup.recording)


def attack_run(experiment: Experiment, run: Run, data: VerticalDataset) -> Result:
    """Attack a finished run and score the guess."""
    setup = prepare(experiment)
    adversary = setup.adversary(experiment)
    game = make_game(setup, experiment, [party for party in run.data.parties if party not in adversary.corrupts])
    view = run.view(adversary, challenge=game.challenge(run))
    score = game.score(run, setup.attack.run(view, seed=experiment.seed))
    return Result(
        protocol=experiment.protocol,
        dataset=DatasetInfo(name=data.name, rows=len(data), fingerprint=data.fingerprint, notes=data.notes),
        adversary=score.adversary,
        attack=experiment.attack,
        game=score.game,
        party=score.party,
        seed=experiment.seed,
        metric=score.metric,
        score=score.score,
        baseline=score.baseline,
        advantage=score.advantage,
        interval=score.interval,
        metrics=dict(score.metrics),
        verified=score.verified,
        rows=score.rows,
        control=experiment.control,
        experiment=experiment.model_dump(mode="json"),
        parameters=parameters(setup),
        utility=dict(run.utility),
        costs=run.costs.summary(),
        notes=dict(score.notes),
        versions=versions(),
        key=experiment_key(experiment, data),
    )


def parameters(setup: Setup) -> dict[str, Any]:
    """Every parameter, so that a report row can be repeated without knowing the defaults of its day."""
    return {
        "protocol": setup.protocol.parameters(),
        "attack": setup.attack.parameters(),
        "defenses": {defense.name: defense.parameters() for defense in setup.defenses},
    }


def perform(experiments: Sequence[Experiment]) -> Iterator[tuple[Experiment, Result | Exception, dict[str, Any]]]:
    """Experiments that share a run: the protocol runs once. Yields result and timing as they come."""
    with one_thread():
        start = time.perf_counter()
        try:
            data = experiments[0].load_data()
            run = execute(experiments[0], data)
        except InputError as error:
            yield from ((experiment, error, {}) for experiment in experiments)
            return
        timing = run.costs.timing() | {"protocol_seconds": time.perf_counter() - start}
        for experiment in experiments:
            start = time.perf_counter()
            try:
                result: Result | Exception = attack_run(experiment, run, data)
            except InputError as error:
                result = error
            yield experiment, result, timing | {"attack_seconds": time.perf_counter() - start}
