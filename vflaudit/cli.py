"""The command line. Bad input exits with 2 and one sentence, a failed gate with 1. Heavy imports wait until needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vflaudit import __version__
from vflaudit.account_cli import account
from vflaudit.errors import InputError, unknown
from vflaudit.terminal import print_json, progress_bar, show, working

# Typer may bring its own copy of Click: take the base of usage errors from where Typer has it.
UsageProblem: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

app = typer.Typer(
    name="vflaudit",
    help="A privacy attack-and-audit lab for vertical federated learning: run published protocols, attack them, "
    "and report what leaks, with baselines and intervals.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for results and report.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Worker processes, one thread each.")]
Backend = Annotated[str, typer.Option("--backend", help="local or ray (extra 'ray').")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep what is finished.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Repeat every experiment with seeds 0..K-1.")]
Fast = Annotated[bool, typer.Option("--fast", help="Fewer seeds.")]
Full = Annotated[bool, typer.Option("--full", help="More seeds.")]
GATE_HELP = "Exit with 1 if an advantage surely exceeds this, or a control fails."
KNOWS_HELP = (
    "What the adversary knows: known-samples=30[,ids][,noise=0.01][,k=5], means, moments, distribution=2000, "
    "class-priors, labels=40, model=white-box; may be repeated."
)
INTERRUPTED = 130  # as shells report Ctrl-C; Typer gives this code, or raises
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(fast: bool, full: bool) -> str:
    if fast and full:
        raise InputError("--fast and --full exclude each other")
    return "fast" if fast else "full" if full else "default"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"vflaudit {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See `vflaudit list protocols` for targets and `vflaudit COMMAND --help` for examples."""


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="protocols, attacks, defenses, datasets, suites or claims")],
    as_json: Json = False,
) -> None:
    """Show what is registered, built in or by plug-ins.

    Example: `vflaudit list attacks`
    """
    from vflaudit import registry

    if kind not in registry.KINDS:
        raise unknown("kind to list", kind, registry.KINDS)
    if kind == "suites":
        from vflaudit.lab.suite import listing as suites

        rows = suites()
    elif kind == "claims":
        from vflaudit.claims.check import listing as claims

        rows = claims()
    else:
        rows = list(registry.listing(kind))
    if as_json:
        print_json(rows)
    else:
        show(kind, ("name", "what it is"), [(row["name"], row["summary"]) for row in rows])


@app.command()
def attack(
    protocol: Annotated[str, typer.Argument(help="The target: see `vflaudit list protocols`.")],
    attack: Annotated[str, typer.Argument(help="The attack: see `vflaudit list attacks`.")],
    data: Annotated[
        str, typer.Option(help="A dataset's name (NAME:OPTION=VALUE,...) or a CSV/Parquet file.")
    ] = "breast-cancer",
    party: Annotated[
        str | None, typer.Option(help="Whom to attack; by default the first honest party with columns.")
    ] = None,
    knows: Annotated[list[str] | None, typer.Option(help=KNOWS_HELP)] = None,
    corrupts: Annotated[list[str] | None, typer.Option(help="A corrupted party; repeat it for collusion.")] = None,
    defense: Annotated[list[str] | None, typer.Option(help="A defense, as gaussian-noise:sigma=0.5.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A protocol or attack parameter, as batch_size=32.")
    ] = None,
    game: Annotated[str | None, typer.Option(help="The game, if the attack plays several.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides split, training, knowledge and attack.")] = 0,
    parties: Annotated[int | None, typer.Option(min=1, help="How many clients hold columns (4).")] = None,
    partition: Annotated[
        str, typer.Option(help="round-robin, equal-blocks, slices, ... or a paper's own: vfedsec, apc-vfl.")
    ] = "round-robin",
    split: Annotated[str | None, typer.Option(help="A TOML file that says which party holds which columns.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of your own file.")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression, for your own file.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="The id column of your own file.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Use only so many rows.")] = None,
    aux: Annotated[float, typer.Option(help="Share of rows that no party holds.")] = 0.3,
    overlap: Annotated[float, typer.Option(help="Share of rows that each party holds.")] = 1.0,
    aligned: Annotated[int | None, typer.Option(min=1, help="Training rows that every party holds.")] = None,
    record: Annotated[str, typer.Option(help="What to record: all, rows=200, epochs=5 or none.")] = "all",
    transcript: Annotated[Path | None, typer.Option(help="Save the transcript into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Run a protocol once, attack it, and score the attack.

    Example: `vflaudit attack splitnn representation-inversion --knows known-samples=50,ids`
    """
    from vflaudit.core.config import configure, parse_settings
    from vflaudit.lab.experiment import Experiment
    from vflaudit.lab.perform import attack_run, check, execute, one_thread

    experiment = configure(
        Experiment,
        {
            "protocol": protocol,
            "attack": attack,
            "data": data,
            "party": party,
            "knows": tuple(knows or ()),
            "corrupts": tuple(corrupts) if corrupts else None,
            "defenses": tuple(defense or ()),
            "set": parse_settings(settings or []),
            "game": game,
            "seed": seed,
            "parties": parties,
            "partition": partition,
            "split": split,
            "label": label,
            "task": task,
            "id_column": id_column,
            "rows": rows,
            "aux": aux,
            "overlap": overlap,
            "aligned": aligned,
            "record": record,
        },
        "experiment",
    )
    with one_thread(), working(f"{attack} on {protocol}, {data}"):
        loaded = experiment.load_data()
        check(experiment, loaded)
        run = execute(experiment, loaded)
        if transcript is not None:
            run.transcript.save(transcript)
        result = attack_run(experiment, run, loaded)
    if as_json:
        print_json(result.to_json())
        return
    low, high = result.interval
    rows_ = [
        ("adversary", result.adversary),
        ("target", f"{result.protocol} on {result.dataset.name}" + (f", {result.party}" if result.party else "")),
        (
            "attack",
            f"{result.attack}, scored on {result.rows} {'rows' if result.game != 'membership' else 'candidates'}",
        ),
        (result.metric, f"{result.score:.3f}   (best guess without the protocol: {result.baseline:.3f})"),
        ("advantage", f"{result.advantage:+.3f}   95% interval {low:+.3f} to {high:+.3f}"),
        ("utility", ", ".join(f"{name} {value:.4g}" for name, value in result.utility.items()) or "none"),
    ]
    if result.verified is not None:
        rows_.insert(5, ("verified", "yes: known rows confirm it" if result.verified else "no: merely proposed"))
    show(result.game, ("", ""), rows_)


@app.command("run")
def run_(
    suite: Annotated[str, typer.Argument(help="A suite's name (`vflaudit list suites`) or a TOML file.")] = "quick",
    out: Out = Path("audit"),
    jobs: Jobs = CORES,
    backend: Backend = "local",
    seeds: Seeds = None,
    resume: Resume = False,
    fast: Fast = False,
    full: Full = False,
    gate: Annotated[float | None, typer.Option(help=GATE_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Run a suite of experiments and write report.html.

    Example: `vflaudit run quick --out audit --jobs 2`
    """
    from vflaudit.lab.runner import run_experiments
    from vflaudit.lab.suite import load_suite

    size = _size(fast, full)
    loaded = load_suite(suite, seeds, fast=fast)
    if seeds is None and size != "default":
        loaded = load_suite(suite, max(2, loaded.seeds // 2) if fast else 2 * loaded.seeds, fast=fast)
    gate = loaded.gate if gate is None else gate
    command = f"vflaudit run {suite} --seeds {loaded.seeds}{' --fast' if fast else ''} --out {out}"
    published = [number.model_dump() for number in loaded.published]
    extra: dict[str, Any] = {"suite": loaded.name, "summary": loaded.summary, "gate": gate, "seeds": loaded.seeds}
    extra |= {"command": command, "published": published}
    with progress_bar(loaded.name) as progress:
        outcome = run_experiments(
            loaded.experiments,
            out,
            title=f"Audit: {loaded.name}",
            jobs=jobs,
            backend=backend,
            resume=resume,
            progress=progress,
            extra=extra,
        )
    _finish(outcome, out, gate, as_json, [result.to_json() for result in outcome.results])


def _finish(outcome: Any, out: Path, gate: float | None, as_json: bool, payload: Any, *, bad: bool = False) -> None:
    """Write the report, show the findings, and exit with 1 where something failed that was asked to hold."""
    from vflaudit.lab.result import dumps
    from vflaudit.lab.store import write_atomically
    from vflaudit.report import gate_failures, write_report
    from vflaudit.report.audit import load_audit

    write_atomically(out / "failures.json", dumps(outcome.failures))
    paths = write_report(out, ("html", "md", "json", "junit"), gate=gate)
    rows = load_audit(out, gate).rows
    if as_json:
        print_json(payload)
    else:
        header = ("target", "data", "attack", "adversary", "score", "baseline", "advantage (95%)", "finding")
        show("Findings", header, [_cells(row) for row in rows])
        if outcome.reused:
            print(f"{outcome.reused} of {len(outcome.results)} results were already there.")
        print(f"report: {paths[0]}")
    failed = gate_failures(rows, gate) if gate is not None else []
    for name, reason in outcome.failures.items():
        print(f"not completed: {name}: {reason}", file=sys.stderr)
    for reason in failed:
        print(f"gate: {reason}", file=sys.stderr)
    if failed or outcome.failures or bad:
        raise typer.Exit(1)


def _cells(row: Any) -> tuple[str, ...]:
    """A finding as a line of the terminal's table."""
    low, high = row.interval
    finding = f"{row.control} control: {'FAILED' if row.problem else 'fine'}" if row.control else row.finding
    advantage = f"{row.advantage:+.3f} [{low:+.3f}, {high:+.3f}]"
    where = f"{row.dataset}, {row.party}" if row.party else row.dataset
    return (row.target, where, row.attack, row.adversary, f"{row.score:.3f}", f"{row.baseline:.3f}", advantage, finding)


@app.command()
def claims(
    paper: Annotated[str | None, typer.Argument(help="One paper's claims; by default all.")] = None,
    out: Out = Path("claims"),
    jobs: Jobs = CORES,
    backend: Backend = "local",
    seeds: Seeds = None,
    resume: Resume = False,
    fast: Fast = False,
    full: Full = False,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with 1 if a claim is refuted.")] = False,
    as_json: Json = False,
) -> None:
    """Check what papers claim: print a verdict on each claim, write report.html.

    Example: `vflaudit claims splitnn --out claims`
    """
    from vflaudit.claims.check import SEEDS, check_claims, claims_of

    wanted = claims_of(paper)
    count = seeds or SEEDS[_size(fast, full)]
    command = " ".join(filter(None, ["vflaudit claims", paper, f"--seeds {count} --out {out}"]))
    with progress_bar("claims") as progress:
        verdicts, outcome = check_claims(
            wanted,
            out,
            seeds=count,
            jobs=jobs,
            backend=backend,
            resume=resume,
            progress=progress,
            extra={"command": command},
        )
    if not as_json:
        header = ("claim", "says", "verdict", "measured")
        rows = [(f"{v['paper']}/{v['id']}\n{v['section']}", v["claim"], v["verdict"], v["summary"]) for v in verdicts]
        show("Verdicts", header, rows)
    refuted = gate and any(verdict["verdict"] == "refuted" for verdict in verdicts)
    _finish(outcome, out, None, as_json, verdicts, bad=refuted)


app.command()(account)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder made by `vflaudit run` or `vflaudit claims`.")],
    format: Annotated[list[str] | None, typer.Option(help="html, md, json or junit; may be repeated.")] = None,
    gate: Annotated[float | None, typer.Option(help=GATE_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Write the report again, in other formats or with another gate.

    Example: `vflaudit report audit --format junit --gate 0.2`
    """
    from vflaudit.report import gate_failures, write_report
    from vflaudit.report.audit import load_audit

    paths = write_report(folder, tuple(format or ("html",)), gate=gate)
    failed = gate_failures(load_audit(folder, gate).rows, gate) if gate is not None else []
    if as_json:
        print_json({"written": [str(path) for path in paths], "gate_failures": failed})
    else:
        for path in paths:
            print(path)
    for reason in failed:
        print(f"gate: {reason}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: every expected error becomes one sentence and an exit code."""
    try:
        code = app(standalone_mode=False) or 0
    except InputError as error:
        print(f"vflaudit: {error}", file=sys.stderr)
        code = 2
    except UsageProblem as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message)
        else:
            print(f"vflaudit: {message.rstrip('.')}; see --help", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if code == INTERRUPTED:
        print("vflaudit: stopped; what was finished is kept, go on with --resume", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
