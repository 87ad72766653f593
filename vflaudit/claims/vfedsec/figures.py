"""Pictures of what vFedSec's claims are about: what its sums give away, how many must collude, what masks cost.

`figures(folder)` leaves SVG files in folder/figures and returns what belongs into folder/figures.json. Bank and Adult
are real where their files are under $VFLAUDIT_DATA, otherwise synthetic with the same columns; captions say which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit import Adversary, load_protocol, registry
from vflaudit.claims.drawing import BLUE, GREEN, MUTED, ORANGE, Draw, Drawn, band, draw_all, new_axes
from vflaudit.claims.vfedsec import numbers
from vflaudit.claims.vfedsec.cost_figure import overhead
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.games import Reconstruction, Score
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEDS = 3
ROWS, MORE_ROWS = 800, 1100  # of bank and adult; half of them are trained on
CANCER = "breast-cancer"
VICTIMS = {"bank": "passive3", "adult": "passive1", CANCER: "passive1"}  # age, job, ...; race, ...; 10 numbers
LOOKS = {"bank": (BLUE, "o"), "adult": (ORANGE, "D"), CANCER: (GREEN, "s")}
WIDTHS = (2, 4, 6, 8, 16, 24, 32, 64, 96)
BATCHES = (16, 32, 48, 64, 96, 128, 256, 512)
EPOCHS = (1, 2, 3, 5, 10, 20)
PAPER = {"hidden": 64, "batch": 256}  # A.1


def figures(folder: Path) -> list[dict[str, str]]:
    """Draw all figures into folder/figures; returns the entries of figures.json."""
    return draw_all(folder, DRAWINGS)


def trained(name: str, seed: int, *, rows: int | None = None, **parameters: Any) -> Run:
    """One run of the protocol."""
    return load_protocol("vfedsec", **parameters).run(dataset(name, rows or ROWS, seed), seed=seed)


@cache
def dataset(name: str, rows: int, seed: int) -> VerticalDataset:
    """Breast-cancer by columns in turn, the others as A.1 splits them."""
    if name == CANCER:
        return load_dataset(CANCER, parties=3, seed=seed)
    return load_dataset(numbers.paper_data(name), partition="vfedsec", rows=rows, seed=seed)


def attacked(run: Run, attack: str, party: str, corrupts: Iterable[str] = (), **parameters: Any) -> Score:
    """How well the server, with these clients, reconstructs the party's columns."""
    method = registry.load("attacks", attack)(party=party, **parameters)
    view = run.view(Adversary({"server", *corrupts}))
    return Reconstruction(party=party).score(run, method.run(view, seed=run.seed))


def real_or_not() -> str:
    """What bank and adult are here, for captions."""
    kinds = {name: "real rows" if numbers.real(name) else "synthetic columns of the same widths" for name in VICTIMS
             if name != CANCER}  # fmt: skip
    if len(set(kinds.values())) == 1:
        return f"Bank and adult: {kinds['bank']} in the paper's split; breast-cancer: real."
    return f"Bank: {kinds['bank']}; adult: {kinds['adult']}, in the paper's split; breast-cancer: real."


def r2(scores: Iterable[Score]) -> Array:
    """R2 of each seed, not below zero: a worse guess than the mean is worth no more than the mean."""
    return np.maximum([score.score for score in scores], 0.0)


def powers(axes: Axes, ticks: Sequence[int]) -> None:
    """A logarithmic horizontal axis with these ticks and no others."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()


def marked(axes: Axes, place: float, text: str, *, height: float = 0.02, left: bool = False) -> None:
    """A dashed vertical line with its words at the foot."""
    axes.axvline(place, color=MUTED, linewidth=1, linestyle=(0, (4, 2)), zorder=0)
    side: Any = "right" if left else "left"
    axes.annotate(text, (place, height), xycoords=("data", "axes fraction"), xytext=(-4 if left else 4, 0),
                  textcoords="offset points", ha=side, va="bottom", color=MUTED, fontsize=8)  # fmt: skip


# --- the Secure Layer's output ------------------------------------------------------------------------------


def by_width(folder: Path) -> Drawn:
    """Eq. 1: Z is `hidden` equations about every row, with weights that the server broadcast itself."""
    figure, (left, right) = new_axes(2, (6.6, 3.2))
    first: dict[str, int] = {}
    for name, (colour, mark) in LOOKS.items():
        scores = {width: _at_width(name, width, "secure-layer-forward", epochs=1) for width in WIDTHS}
        band(left, {width: r2(found) for width, found in scores.items()}, name, colour, mark)
        first[name] = next((width for width in WIDTHS if r2(scores[width]).min() > 0.999), 2 * WIDTHS[-1])
        if name != CANCER:
            _categories(right, name, scores)
    for name in ("bank", CANCER):  # where one pass is not enough, training and gradients give more equations
        few = [width for width in WIDTHS if width < first[name]]
        scores = {width: _at_width(name, width, "gradient-algebra", epochs=10) for width in few}
        band(
            left, {width: r2(found) for width, found in scores.items()}, f"{name}, 10 epochs", *LOOKS[name], dashed=True
        )
        if name != CANCER:
            _categories(right, name, scores, dashed=True)
    for axes, what in ((left, "R² of the party's columns"), (right, "share of categories recovered")):
        powers(axes, [width for width in (2, 4, 8, 16, 32, 64) if width in WIDTHS])
        marked(axes, PAPER["hidden"], "A.1", left=True)
        axes.set(title=what, xlabel="outputs h of the Secure Layer (log scale)", ylim=(-0.04, 1.05))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, columnspacing=1.2)
    reached = ", ".join(f"{name} from h = {width}" for name, width in first.items() if width in WIDTHS)
    caption = (
        f"What the server reconstructs alone. Solid: from the sums Z of one pass over the rows; R² exceeds 0.999 for "
        f"{reached} (where bank's line is not seen, it lies under adult's). Breast-cancer has 30 numbers in a row, the "
        f"others few numbers and many one-hot columns, which are few bits. Dashed: from Z and the sums of "
        f"gradients in 10 epochs, where one pass is not enough. Median and range of {SEEDS} seeds; an R² below zero is "
        f"drawn as zero. Dotted: the share that naming the most frequent category gets right. {real_or_not()}"
    )
    return Drawn("Reconstruction against the width of the Secure Layer", caption, figure)


def _at_width(name: str, width: int, attack: str, epochs: int) -> list[Score]:
    runs = (trained(name, seed, hidden=width, epochs=epochs) for seed in range(SEEDS))
    return [attacked(run, attack, VICTIMS[name]) for run in runs]


def _categories(axes: Axes, name: str, scores: dict[int, list[Score]], *, dashed: bool = False) -> None:
    """Category accuracy, and what naming the most frequent category gives."""
    hits = {width: np.array([s.metrics["category_accuracy"] for s in found]) for width, found in scores.items()}
    band(axes, hits, name, *LOOKS[name], dashed=dashed)
    if not dashed:
        chance = float(np.mean([s.metrics["category_accuracy_baseline"] for s in next(iter(scores.values()))]))
        axes.axhline(chance, color=LOOKS[name][0], linewidth=1, linestyle=":")


# --- gradients ----------------------------------------------------------------------------------------------


def by_batch(folder: Path) -> Drawn:
    """4.2: the sum of a cluster's gradients is `hidden` equations about a batch, for each column."""
    figure, (axes,) = new_axes(size=(5.6, 3.1))
    whole: list[float] = []
    for name, (colour, mark) in LOOKS.items():
        found: dict[int, Array] = {}
        for size in BATCHES:
            runs = [trained(name, seed, rows=MORE_ROWS, batch_size=size, epochs=1) for seed in range(SEEDS)]
            if size <= len(runs[0].data.aligned("train")):
                found[size] = r2(attacked(run, "gradient-algebra", VICTIMS[name], forward=False) for run in runs)
        band(axes, found, name, colour, mark)
        last = max(found)
        axes.annotate(name, (last, float(np.median(found[last]))), xytext=(7, 0), textcoords="offset points",
                      va="center", color=colour, fontsize=8)  # fmt: skip
        whole += [float(found[size].min()) for size in found if size <= PAPER["hidden"] // 2]
    powers(axes, BATCHES)
    marked(axes, PAPER["hidden"], "h = 64 equations", height=0.05)
    marked(axes, PAPER["batch"], "A.1", height=0.05)
    axes.set(xlabel="rows in a batch (log scale)", ylabel="R² of the party's columns", ylim=(-0.04, 1.05))
    axes.set_xlim(right=1.6 * BATCHES[-1])
    caption = (
        f"What the server reconstructs alone from the sums of a cluster's gradients in one pass, without the Secure "
        f"Layer's output: median and range of {SEEDS} seeds. Up to {PAPER['hidden'] // 2} rows at most "
        f"{1 - min(whole):.0e} of the variance is missing. Above h rows the equations are too few, and what is left is "
        f"the most likely table. {real_or_not()}"
    )
    return Drawn("Reconstruction from gradients against the batch size", caption, figure)


def by_epochs(folder: Path) -> Drawn:
    """Batches larger than the rank: each epoch adds equations about the same people."""
    figure, (axes,) = new_axes(size=(5.6, 3.1))
    notes = []
    for name in ("bank", CANCER):
        colour, mark = LOOKS[name]
        for batches in ("reshuffled", "fixed"):
            found = {}
            for epochs in EPOCHS:
                runs = [trained(name, seed, epochs=epochs, batches=batches) for seed in range(SEEDS)]
                found[epochs] = r2(attacked(run, "gradient-algebra", VICTIMS[name], forward=False) for run in runs)
            band(axes, found, f"{name}, {batches} batches", colour, mark, dashed=batches == "fixed")
            enough = next((epochs for epochs in EPOCHS if min(found[epochs]) > 0.99), None)
            notes.append(f"{name}, {batches}: {enough}" if enough else f"{name}, {batches}: not within {EPOCHS[-1]}")
    powers(axes, EPOCHS)
    axes.set(xlabel="epochs that the server sees (log scale)", ylabel="R² of the party's columns", ylim=(-0.04, 1.05))
    axes.legend(loc="lower right")
    caption = (
        f"The same for the paper's batches of {PAPER['batch']} rows over several epochs, learning rate 0.01, SGD: "
        f"median and range of {SEEDS} seeds. The Secure Layer's output serves only to tell who is who in the next "
        f"epoch. Epochs after which R² exceeds 0.99: {'; '.join(notes)}. {real_or_not()}"
    )
    return Drawn("Reconstruction from gradients against epochs", caption, figure)


# --- collusion ----------------------------------------------------------------------------------------------


def staircase(folder: Path) -> Drawn:
    """Section 3: 'unless all other clients are corrupted', counted client by client."""
    figure, panels = new_axes(2, (6.4, 3.0))
    sums: list[float] = []
    for axes, per_cluster in zip(panels, (2, 3), strict=True):
        runs = [trained(CANCER, seed, epochs=1, clients_per_cluster=per_cluster) for seed in range(SEEDS)]
        alone = [attacked(run, "secure-layer-forward", "passive1").advantage for run in runs]
        sums += alone
        passive = [f"passive{number}" for number in range(1, 2 * per_cluster + 1)]
        fellows, strangers = passive[1:per_cluster], [*passive[per_cluster:], "active"]
        for words, order, colour, mark in (
            ("fellows last", [*strangers, *fellows], ORANGE, "D"),
            ("fellows first", [*fellows, *strangers], BLUE, "o"),
        ):
            counts = np.arange(len(order) + 1)
            found = np.array([
                np.median([attacked(run, "mask-collusion", "passive1", order[:n]).advantage for run in runs])
                for n in counts
            ])  # fmt: skip
            shift = 0.02 if colour == ORANGE else 0.0  # two lines on top of each other are both seen
            axes.plot(counts, found + shift, color=colour, marker=mark, markersize=4.5, drawstyle="steps-mid")
            opened = np.flatnonzero(found > 0.5)
            if len(opened):
                axes.annotate(words, (opened[0] - 0.5, 0.5 if colour == ORANGE else 0.3), xytext=(-3, 0), ha="right",
                              textcoords="offset points", color=colour, fontsize=7)  # fmt: skip
        level = float(np.median(alone)) + 0.06  # raised, or it would lie on the others
        axes.axhline(level, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate("the sum that the server gets anyway", (0, level), xytext=(0, 2), textcoords="offset points",
                      color=MUTED, fontsize=8)  # fmt: skip
        axes.set_xticks(range(2 * per_cluster + 1))
        axes.set(title=f"{per_cluster} clients per cluster", xlabel="corrupted clients, besides the server",
                 ylim=(-0.06, 1.18))  # fmt: skip
    panels[0].set_ylabel("advantage in R²")
    caption = (
        f"Breast-cancer, median of {SEEDS} seeds: what the server gains about passive1 by removing the masks that "
        "corrupted clients share with it. Masked outputs open when all others are corrupted, and already when all but "
        "its fellows are: each row has one holder in a cluster, so the fellows' sum is each row's value. Gradients are "
        "masked within a cluster only: their sum is what the server gets, and it needs nobody. Dashed: the Secure "
        f"Layer's sum, solved with nobody corrupted ({min(sums):.3f} at least). Orange is raised by 0.02 and dashed by "
        "0.06 so that lines do not hide each other."
    )
    return Drawn("How many must collude to remove the masks", caption, figure)


DRAWINGS: dict[str, Draw] = {
    "hidden-width": by_width,
    "batch-size": by_batch,
    "epochs": by_epochs,
    "collusion": staircase,
    "overhead": overhead,
}
