"""Pictures of what APC-VFL's claims are about: how many known people undo an encoder, Table III, remedies.

`figures(folder)` leaves SVG files in folder/figures and returns what belongs into folder/figures.json. They are drawn
from seeds of their own, not from those that claims are judged on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vflaudit import Adversary, DistributionSample, KnownSamples, load_protocol, registry
from vflaudit.claims.apcvfl.numbers import CANCER, eq_10
from vflaudit.claims.drawing import BLUE, GREEN, MUTED, ORANGE, PINK, Draw, Drawn, band, draw_all, new_axes
from vflaudit.claims.vfedsec.numbers import paper_data, real
from vflaudit.core.adversary import Known
from vflaudit.core.dataset import Array
from vflaudit.core.games import Reconstruction, Score
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.core.statistics import t_interval
from vflaudit.lab.experiment import parse_defense
from vflaudit.lab.store import Store

SEEDS = 3
PARTY = "passive1"
PAIRS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200)
WANTED = 0.9
TABLE = {250: (100.0, 100.0, 380.0), 200: (98.0, 97.6, 311.6), 150: (95.2, 96.4, 156.0), 100: (91.2, 95.6, 84.0)}
TESTED = 50  # of the aligned rows
LEAK, USEFUL = 0.1, 0.05  # as in the claims; accuracy that may be lost
REMEDIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "as published": ((), {}),
    "random rotation": (("random-rotation",), {}),
    "3 bits per number": (("quantisation:bits=3",), {}),
    "1 bit per number": (("quantisation:bits=1",), {}),
    "noise, sigma 1": (("gaussian-noise:sigma=1",), {}),
    "noise for epsilon 100": (("representation-noise:epsilon=100",), {}),
    "noise for epsilon 20": (("representation-noise:epsilon=20",), {}),
    "width 8": ((), {"passive_layers": (128, 8)}),
    "width 4": ((), {"passive_layers": (128, 4)}),
    "width 2": ((), {"passive_layers": (128, 2)}),
    "width 1": ((), {"passive_layers": (128, 1)}),
    "width 2, noise for epsilon 20": (("representation-noise:epsilon=20",), {"passive_layers": (128, 2)}),
    "width 2, noise for epsilon 10": (("representation-noise:epsilon=10",), {"passive_layers": (128, 2)}),
    "width 1, noise for epsilon 20": (("representation-noise:epsilon=20",), {"passive_layers": (128, 1)}),
    "decorrelation 1": ((), {"decorrelation": 1.0}),
    "decorrelation 10": ((), {"decorrelation": 10.0}),
}
COLOURS = {"hides": GREEN, "costs too much": PINK, "unsettled": BLUE, "leaks": ORANGE}


def figures(folder: Path) -> list[dict[str, str]]:
    """Draw all figures into folder/figures; returns the entries of figures.json."""
    return draw_all(folder, DRAWINGS)


def attacked(run: Run, attack: str, *knows: Known) -> Score:
    """How well the active party reconstructs the passive party's columns."""
    few: dict[str, Any] = {"learners": ("ridge", "kernel")} if attack == "representation-inversion" else {}
    guess = registry.load("attacks", attack)(party=PARTY, **few).run(
        run.view(Adversary({"active"}, knows)), seed=run.seed
    )
    return Reconstruction(party=PARTY).score(run, guess)


# --- pairs needed -------------------------------------------------------------------------------------------


def pair_runs(name: str) -> list[Run]:
    """One run per seed, all rows shared."""
    found = []
    for seed in range(SEEDS):
        split: dict[str, Any] = {"partition": "vfedsec", "rows": 1100} if name == "adult" else {"parties": 2}
        if name == CANCER:
            split = {"partition": "apc-vfl"}
        data = load_dataset(paper_data("adult") if name == "adult" else name, seed=seed, **split)
        target = load_protocol("apc-vfl", folds=None, epochs=30 if name == "adult" else 100)
        found.append(target.run(data, seed=seed))
    return found


def pairs_needed(folder: Path) -> Drawn:
    """R2, or the share of right categories, against the number of known people."""
    figure, panels = new_axes(3, (8.4, 3.2))
    needed = {}
    for axes, name in zip(panels, (CANCER, "wine", "adult"), strict=True):
        runs = pair_runs(name)
        counts = [n for n in PAIRS if n < min(len(run.data.aligned("train")) for run in runs) - 2]
        scores = {n: [attacked(run, "known-sample-reconstruction", KnownSamples(n, True)) for run in runs]
                  for n in counts}  # fmt: skip
        both = [read(scores, name == "adult", baseline=side) for side in (False, True)]
        band(axes, both[0], "representations, n known people", BLUE, "o")
        band(axes, both[1], "own columns, n known people", MUTED, "s", dashed=True)
        pool = [attacked(run, "isometric-alignment", DistributionSample(min(400, len(run.data.aux or ()))))
                for run in runs]  # fmt: skip
        level = float(np.median(read({0: pool}, name == "adult", baseline=False)[0]))
        axes.axhline(level, color=ORANGE, linewidth=1.4, linestyle=(0, (1, 1)), label="representations, nobody known")
        needed[name] = next((n for n in counts if np.median(both[0][n]) > WANTED), None)
        axes.axhline(WANTED, color=MUTED, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axes.minorticks_off()
        what = "share of right categories" if name == "adult" else "R² of the columns"
        axes.set(title=f"{name}: {what}", xlabel="known people (log scale)", ylim=(-0.04, 1.05))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    told = "; ".join(f"{name}: {n if n is not None else f'more than {PAIRS[-1]}'}" for name, n in needed.items())
    return Drawn(
        "How many known people undo an encoder",
        f"What the active party says about {PARTY}'s columns from representations and n people whose columns it knows "
        f"(median of {SEEDS} seeds, bands are the range), the best it can say from its own columns and the same "
        f"people, and what it says if it knows nobody but other people of the population (dotted). People needed for "
        f"more than {WANTED}: {told}. R² of Adult's indicator cells, rare countries included, is "
        f"{np.median([score.score for score in scores[counts[-1]]]):.2f} with {counts[-1]} people. Adult is "
        f"{'1100 real rows' if real('adult') else 'synthetic, of the same columns'}.",
        figure,
    )


def read(scores: dict[int, list[Score]], categories: bool, *, baseline: bool) -> dict[int, Array]:
    """One number per seed, not below zero: R2, or the share of right categories."""
    found = {}
    for n, each in scores.items():
        if categories:
            key = "category_accuracy_baseline" if baseline else "category_accuracy"
            found[n] = np.array([score.metrics[key] for score in each])
        else:
            found[n] = np.maximum([score.baseline if baseline else score.score for score in each], 0.0)
    return found


# --- Table III ----------------------------------------------------------------------------------------------


def table_three(folder: Path) -> Drawn | None:
    """Accuracy of both methods by the number of aligned rows, next to the paper's numbers: what the claims measured."""
    ours: dict[str, dict[int, list[float]]] = {name: {n: [] for n in TABLE} for name in ("SplitNN", "APC-VFL")}
    epochs: dict[int, list[float]] = {n: [] for n in TABLE}
    for result in Store(folder).results():
        asked = result.experiment
        name = {"splitnn": "SplitNN", "apc-vfl": "APC-VFL"}.get(result.protocol)
        if name is None or asked["rows"] not in TABLE or asked["data"] != CANCER:
            continue
        ours[name][asked["rows"]].append(100 * result.utility["accuracy"])
        if name == "SplitNN":
            epochs[asked["rows"]].append(result.utility["epochs"])
    seeds = min(len(values) for rows in ours.values() for values in rows.values())
    if seeds < 2:
        return None
    figure, (axes,) = new_axes(1, (6.4, 3.2))
    places = np.arange(len(TABLE))
    for shift, (name, colour) in zip((-0.15, 0.15), (("SplitNN", ORANGE), ("APC-VFL", BLUE)), strict=True):
        means = np.array([np.mean(ours[name][n]) for n in TABLE])
        ends = np.array([t_interval(ours[name][n]) for n in TABLE])
        axes.errorbar(places + shift, means, np.abs(ends.T - means), fmt="o", color=colour, label=f"{name}, here")
        paper = [row[0 if name == "SplitNN" else 1] for row in TABLE.values()]
        axes.plot(places + shift, paper, "D", color=colour, markerfacecolor="white", label=f"{name}, paper")
    axes.set_xticks(places, [str(n) for n in TABLE])
    axes.set(xlabel="aligned rows (50 of them to test on)", ylabel="accuracy in %")
    axes.legend(loc="lower left", ncols=2)
    rows = "; ".join(
        f"{n}: SplitNN {np.mean(ours['SplitNN'][n]):.1f} (paper {s:g}), APC-VFL {np.mean(ours['APC-VFL'][n]):.1f} "
        f"(paper {a:g}), SplitNN's rounds by eq. 10 {eq_10(float(np.mean(epochs[n])), n - TESTED):.0f} (paper {r:g})"
        for n, (s, a, r) in TABLE.items()
    )
    return Drawn(
        "Table III again",
        f"Accuracy over {seeds} seeds with 95% intervals (dots); the paper's means over 5 repetitions (diamonds). "
        f"Seeds draw other rows; the paper does not say whether its repetitions do. SplitNN trains for up to 100 "
        f"epochs here, which decides its rounds. {rows}.",
        figure,
    )


# --- remedies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One remedy: accuracy and the best attack's advantage, of each seed."""

    name: str
    accuracy: tuple[float, ...]
    advantage: tuple[float, ...]

    def verdict(self, published: float) -> str:
        """Leaks if the best attack gains more than LEAK with every seed; unsettled if only with some."""
        leaky = [gain > LEAK for gain in self.advantage]
        if any(leaky):
            return "leaks" if all(leaky) else "unsettled"
        return "hides" if np.mean(self.accuracy) >= published - USEFUL else "costs too much"


def measured() -> list[Point]:
    """Every remedy against three attacks; accuracy where it depends on the representation, in the variant of Fig. 5."""
    points = []
    attacks: tuple[tuple[str, Known], ...] = (
        ("known-sample-reconstruction", KnownSamples(30, True)),
        ("representation-inversion", KnownSamples(30, True)),
        ("isometric-alignment", DistributionSample(170)),
    )
    for name, (texts, settings) in REMEDIES.items():
        runs = [
            load_protocol("apc-vfl", variant="collaborative", folds=None, **settings).run(
                load_dataset(CANCER, partition="apc-vfl", seed=seed),
                seed=seed,
                defenses=[parse_defense(text) for text in texts],
            )
            for seed in range(SEEDS)
        ]
        gains = [tuple(attacked(run, attack, known).advantage for run in runs) for attack, known in attacks]
        points.append(Point(name, tuple(run.utility["accuracy"] for run in runs), max(gains, key=np.mean)))
    return points


def remedies(folder: Path) -> Drawn:
    """The plane: leakage to the right, accuracy upwards; the upper left corner is where one would like to be."""
    points = measured()
    published = float(np.mean(points[0].accuracy))
    figure, (axes,) = new_axes(1, (7.0, 4.0))
    axes.axvline(LEAK, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.axhline(published - USEFUL, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    for verdict, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=verdict)
    for number, point in enumerate(points, start=1):
        x, y = float(np.clip(np.mean(point.advantage), -0.05, 1)), float(np.mean(point.accuracy))
        colour = COLOURS[point.verdict(published)]
        low, high = np.clip([min(point.advantage), max(point.advantage)], -0.05, 1)
        axes.plot([low, high], [y, y], color=colour, linewidth=1, alpha=0.5)
        axes.plot([x], [y], "o", color=colour, markersize=12)
        axes.annotate(str(number), (x, y), ha="center", va="center", color="white", fontsize=7.5, fontweight="bold")
    axes.set(xlabel="advantage of the best attack (R²)", ylabel="accuracy on held-out rows")
    axes.legend(loc="lower right")
    lines = [f"{number}  {point.name}: {np.mean(point.advantage):+.2f}" for number, point in enumerate(points, start=1)]
    figure.text(1.01, 0.97, "\n".join(lines), va="top", fontsize=8, linespacing=1.5)
    return Drawn("Remedies: privacy against utility", words(points, published), figure)


def words(points: Sequence[Point], published: float) -> str:
    """The caption: what hides the columns, with numbers."""
    by = {
        verdict: ", ".join(f"{p.name} ({np.mean(p.advantage):+.2f}, accuracy {np.mean(p.accuracy):.2f})"
                           for p in points if p.verdict(published) == verdict) or "none"
        for verdict in COLOURS
    }  # fmt: skip
    return (
        f"Breast-cancer, {SEEDS} seeds (dots are means, lines the range): accuracy of the collaborative variant, which "
        f"depends on the representations, and what the best of three attacks gains for an active party that knows 30 "
        f"people, or 170 of the population. A remedy leaks above {LEAK} with every seed, and is unsettled with some. "
        f"Hides and keeps accuracy: {by['hides']}. Hides but costs more than {USEFUL:.0%}: {by['costs too much']}. "
        f"Unsettled: {by['unsettled']}. All others leak."
    )


DRAWINGS: dict[str, Draw] = {"pairs-needed": pairs_needed, "table-3": table_three, "remedies": remedies}
