"""Pictures of what RAP's claims are about, small enough to be drawn anew with every run.

`figures(folder)` leaves SVG files in folder/figures and returns what belongs into folder/figures.json. The same
installation gives the same bytes every time. Attacks that are not registered are left out, and the caption says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit import Adversary, DistributionSample, KnownSamples, load_protocol, registry
from vflaudit.claims.drawing import BLUE, GREEN, INK, MUTED, ORANGE, Drawn, draw_all, new_axes
from vflaudit.claims.rap.frontier import remedies
from vflaudit.claims.rap.numbers import CLIENT, rap_run
from vflaudit.claims.rap.tuning import METHODS, tuned
from vflaudit.claims.rap.utility_figures import by_clients, label_matrix, speed
from vflaudit.core.dataset import Array
from vflaudit.core.games import Guess, Reconstruction
from vflaudit.core.loading import load_dataset
from vflaudit.core.randomness import stream
from vflaudit.core.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVERAGE, SHUFFLE = "leverage-matching", "secure-shuffle"
DATA, OTHERS = "breast-cancer", 170  # real data; people of the reserved pool that the adversary knows without ids
SEEDS = 5
FLOOR = 1e-14  # where errors end that double precision can no longer tell from zero
BEAM = 500  # of the search without ids: small, so that failing takes a second and not a minute


def figures(folder: Path) -> list[dict[str, str]]:
    """Draw all figures into folder/figures; returns the entries of figures.json."""
    return draw_all(folder, DRAWINGS)


def has(kind: str, name: str) -> bool:
    """Whether something of this name is installed."""
    return name in registry.registered(kind)


def attacked(run: Run, attack: str, adversary: Adversary, seed: int, **parameters: Any) -> Guess:
    """The guess about the first client."""
    guess: Guess = registry.load("attacks", attack)(party=CLIENT, **parameters).run(run.view(adversary), seed=seed)
    return guess


def server(people: int, *, ids: bool, others: int = 0) -> Adversary:
    """A server that knows some rows, with or without their ids, and other people of the population."""
    more = [DistributionSample(others)] if others else []
    return Adversary(corrupts={"server"}, knows=[KnownSamples(people, with_ids=ids), *more])


# --- singular values ----------------------------------------------------------------------------------------


def singular_values(folder: Path) -> Drawn:
    """The remark after corollary 2: A / sqrt(F) keeps lengths if its singular values are near 1."""
    figure, panels = new_axes(4, (5.6, 3.7), rows=2)
    edges = np.linspace(0, 2.6, 40).tolist()
    shares = []
    for axes, width in zip(panels, (2, 8, 30, 100), strict=True):
        rng = stream(0, "figures", "singular-values", width)
        matrices = rng.standard_normal((max(20, 4000 // width), width, width)) / np.sqrt(width)
        values = np.linalg.svd(matrices, compute_uv=False).ravel()
        near = float(np.mean((values >= 0.8) & (values <= 1.2)))
        shares.append(f"{near:.0%} (F = {width})")
        axes.axvspan(0.8, 1.2, color=GREEN, alpha=0.22, linewidth=0)
        axes.hist(values, edges, density=True, color=BLUE)
        theory = np.linspace(0, 2, 100)
        axes.plot(theory, np.sqrt(4 - theory**2) / np.pi, color=ORANGE, linewidth=1.3)
        axes.set(title=f"F = {width}: {near:.0%} near 1", xlabel="singular value", xlim=(0, 2.6))
    for axes in panels[::2]:
        axes.set_ylabel("density")
    caption = (
        "Singular values of random Gaussian matrices divided by the root of F; the band is 0.8 to 1.2. They spread "
        "over 0 to 2 whatever F is, towards the quarter circle (orange), and do not gather near 1. Within the band: "
        f"{', '.join(shares)}. Single vectors keep their length; the worst directions do not."
    )
    return Drawn("Singular values of RAP's matrix", caption, figure)


# --- error against known rows -------------------------------------------------------------------------------


def known_rows(folder: Path) -> Drawn:
    """Cases 3a and 3b: the error of the reconstruction against the number of known rows."""
    runs = [rap_run(DATA, seed) for seed in range(SEEDS)]
    width = len(runs[0].data.block(CLIENT).columns)
    figure, (axes,) = new_axes(size=(5.6, 3.4))
    with_ids = _errors(runs, "known-sample-reconstruction", range(1, width + 6), ids=True)
    _band(axes, with_ids, "known rows with ids", BLUE, "o")
    notes = []
    # below F + 2 rows the search has nothing to verify itself with, and gives the mean
    if has("attacks", LEVERAGE):
        options: dict[str, Any] = {"ids": False, "others": OTHERS, "beam": BEAM}
        counts = range(width + 2, width + 6)
        _band(axes, _errors(runs, LEVERAGE, counts, **options), f"no ids, {OTHERS} other people", ORANGE, "D")
        if has("defenses", SHUFFLE):
            shuffled = [_shuffled(seed) for seed in range(SEEDS)]
            _band(axes, _errors(shuffled, LEVERAGE, counts, **options), "the same after a secure shuffle", GREEN, "x")
        else:
            notes.append(f"{SHUFFLE} is not installed here: rows after a shuffle are not shown.")
    else:
        notes.append(f"{LEVERAGE} is not installed here: the attack without ids is not shown.")
    axes.axvline(width, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(f"F = {width} columns", (width, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
                  textcoords="offset points", va="top", color=MUTED, fontsize=8)  # fmt: skip
    axes.set_yscale("log")
    axes.set(xlabel=f"people whose rows the server knows ({CLIENT})", ylabel="1 − R² (log scale)", ylim=(FLOOR / 3, 30))
    axes.set_xticks(range(1, width + 6))
    axes.legend(loc="lower left")
    half, solved = np.median(with_ids[width // 2]), max(with_ids[n].max() for n in with_ids if n >= width)
    caption = (
        f"Breast-cancer, four clients, {SEEDS} seeds: the median and the range over seeds of the unexplained part of "
        f"{CLIENT}'s columns. Half as many known rows as columns leave {half:.2g} unexplained; from F = {width} rows "
        f"on it is at most {solved:.0e}, which is rounding on the wire. {' '.join(notes)}"
    )
    return Drawn("Known rows are equations", caption.strip(), figure)


def _shuffled(seed: int) -> Run:
    data = load_dataset(DATA, parties=4, seed=seed)
    return load_protocol("rap").run(data, seed=seed, defenses=[registry.load("defenses", SHUFFLE)()])


def _errors(
    runs: Sequence[Run], attack: str, counts: Sequence[int], *, ids: bool, others: int = 0, **parameters: Any
) -> dict[int, Array]:
    """1 - R2 of each run, for each number of known rows."""
    game, found = Reconstruction(party=CLIENT), {}
    for count in counts:
        adversary = server(count, ids=ids, others=others)
        scores = [game.score(run, attacked(run, attack, adversary, run.seed, **parameters)).score for run in runs]
        found[count] = np.maximum(1 - np.array(scores), FLOOR)
    return found


def _band(axes: Axes, errors: Mapping[int, Array], label: str, colour: str, mark: str) -> None:
    counts = list(errors)
    axes.fill_between(counts, [errors[n].min() for n in counts], [errors[n].max() for n in counts], color=colour,
                      alpha=0.16, linewidth=0)  # fmt: skip
    axes.plot(counts, [np.median(errors[n]) for n in counts], color=colour, marker=mark, markersize=4.5, label=label)


# --- without ids --------------------------------------------------------------------------------------------


def solved_without_ids(folder: Path) -> Drawn | None:
    """How much the server must know of the population to find known people without ids."""
    if not has("attacks", LEVERAGE):
        return None
    sizes, others, tries, known = (1000, 2000, 6000), (50, 100, 200, 400), 8, 12
    figure, (axes,) = new_axes(size=(5.6, 3.0))
    for rows, colour, mark in zip(sizes, (BLUE, ORANGE, GREEN), "oDs", strict=True):
        runs = []
        for seed in range(tries):
            data = load_dataset(f"synthetic:rows={rows},features=8", parties=1, aux=0.5, seed=seed)
            runs.append(load_protocol("rap", max_epochs=1).run(data, seed=seed))
        solved = [
            np.mean(
                [
                    attacked(run, LEVERAGE, server(known, ids=False, others=aux), run.seed, beam=BEAM).verified
                    for run in runs
                ]
            )
            for aux in others
        ]
        axes.plot(others, solved, color=colour, marker=mark, label=f"{len(runs[0].data.aligned('train')):,} rows")
    axes.set_xscale("log")
    axes.set_xticks(others, [str(n) for n in others])
    axes.minorticks_off()
    axes.set(xlabel="other people whom the server knows (log scale)", ylabel="share of tables solved")
    axes.set_ylim(-0.05, 1.05)
    axes.legend(title="table sent by the client", title_fontsize=8)
    caption = (
        f"Synthetic Gaussian columns, F = 8, {known} known rows without ids, {tries} seeds each: how often {LEVERAGE} "
        f"finds all of them by an invariant of the projection, confirms itself, and solves the table. The search "
        f"is small (beam {BEAM}); a larger one may do with fewer other people."
    )
    return Drawn("Known rows without ids", caption, figure)


# --- one column ---------------------------------------------------------------------------------------------


def recovered(folder: Path) -> Drawn:
    """One column of made-up people, as the server recovers it."""
    data = load_dataset("synthetic:rows=800,features=32", parties=4, seed=0)
    run = load_protocol("rap", max_epochs=1).run(data, seed=0)
    truth, width = run.data.block(CLIENT).values[:, 0], len(run.data.block(CLIENT).columns)
    figure, panels = new_axes(3, (5.6, 2.3))
    for axes, count in zip(panels, (width // 2, width - 1, width), strict=True):
        adversary = server(count, ids=True)
        guess = attacked(run, "known-sample-reconstruction", adversary, 0).features[CLIENT]
        unknown = np.isin(guess.rows, run.score_rows(adversary))
        axes.plot([-3.5, 3.5], [-3.5, 3.5], color=MUTED, linewidth=0.8)
        axes.plot(truth[guess.rows[unknown]], guess.values[unknown, 0], ".", color=BLUE, markersize=2.5, alpha=0.6,
                  markeredgewidth=0)  # fmt: skip
        axes.set(title=f"{count} known rows", xlabel="true value", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5), aspect="equal")
    panels[0].set_ylabel("recovered value")
    caption = (
        f"One of {CLIENT}'s {width} columns as the server recovers it from RAP's messages, with known rows and ids; "
        "each dot is a person whom it did not know. The people are synthetic, on purpose: reports hold nobody's values."
    )
    return Drawn("Recovered against true values (synthetic people)", caption, figure)


# --- utility and traffic ------------------------------------------------------------------------------------


def utility_and_traffic(folder: Path) -> Drawn:
    """What RAP is worth and what it sends, beside the alternatives."""
    tested = len(rap_run(DATA, 0).data.aligned("test"))
    names = [n for n in ("rap", "splitnn", "centralized", "ldp", "he-enclave") if has("protocols", n)]
    figure, (left, right) = new_axes(2, (5.6, 0.6 + 0.36 * len(names)))
    for place, name in enumerate(names):
        settings = tuned(DATA, name) if name in METHODS["mlp"] else {}
        runs = [rap_run(DATA, seed, name, **settings) for seed in range(3)]
        accuracy = [run.utility["accuracy"] for run in runs]
        sent = float(np.mean([run.costs.total.bytes for run in runs]))
        left.barh([place], [np.mean(accuracy)], 0.55, color=BLUE)
        left.plot(accuracy, [place] * len(runs), "o", color=INK, markersize=3)
        right.barh([place], [sent], 0.55, color=ORANGE)
        right.annotate(_bytes(sent), (sent, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    left.set(xlabel="accuracy on held-out rows", xlim=(0.5, 1.0))
    right.set_xscale("log")
    right.set(xlabel="bytes sent, all parties (log scale)", xlim=(1e4, 2e9))
    for axes in (left, right):
        axes.yaxis.grid(False)
    caption = (
        "Breast-cancer, four clients, 3 seeds (dots; the bar is their mean, and begins at 0.5). Bytes are of training "
        f"and of serving the held-out rows. Learning rates of {', '.join(METHODS['mlp'])} are tuned. "
        f"{1 / tested:.4f} of accuracy is one of {tested} people."
    )
    return Drawn("Accuracy and traffic", caption, figure)


def _bytes(value: float) -> str:
    return f"{value / 1e6:.3g} MB" if value >= 1e6 else f"{value / 1e3:.3g} kB"


DRAWINGS: dict[str, Callable[[Path], Drawn | None]] = {
    "known-rows": known_rows,
    "without-ids": solved_without_ids,
    "recovered": recovered,
    "singular-values": singular_values,
    "utility-and-traffic": utility_and_traffic,
    "clients": by_clients,
    "label-matrix": label_matrix,
    "speed-up": speed,
    "remedies": remedies,
}
