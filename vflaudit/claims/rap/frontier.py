"""RAP's candidate remedies on the plane of privacy and utility, measured anew and drawn in the style of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit import Adversary, DistributionSample, KnownSamples, Moments, load_protocol, registry
from vflaudit.claims.drawing import Drawn
from vflaudit.core.adversary import Known
from vflaudit.core.games import Reconstruction
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.lab.experiment import parse_defense

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENT, DATA, SEEDS = "client1", "breast-cancer", 2
LEAK = 0.1  # an advantage in R2 above this is a leak, as in the claims
USEFUL = 0.05  # accuracy that may be lost against RAP as published
REMEDIES: dict[str, tuple[str, ...]] = {
    "as published": (),
    "secure shuffle": ("secure-shuffle",),
    "noise, sigma 1": ("gaussian-noise:sigma=1",),
    "noise, sigma 5": ("gaussian-noise:sigma=5",),
    "local noise, epsilon 100": ("local-noise:epsilon=100",),
    "local noise, epsilon 20": ("local-noise:epsilon=20",),
    "local noise, epsilon 5": ("local-noise:epsilon=5",),
    "half the dimensions": ("fewer-dimensions:share=0.5",),
    "a quarter of the dimensions": ("fewer-dimensions:share=0.25",),
    "random signs": ("random-signs",),
    "random features": ("random-features",),
    "decoy columns": ("decoy-columns:copies=1",),
    "3 decoys per column": ("decoy-columns:copies=3",),
}
GROUPED = "known rows averaged in groups of 5"  # a remedy of whoever publishes rows, not of the clients
ATTACKS = ("known-sample-reconstruction", "representation-inversion", "leverage-matching")
COLOURS = {"survives": "#009e73", "costs too much": "#b8679a", "unsettled": "#0072b2", "leaks": "#d55e00"}


@dataclass(frozen=True)
class Point:
    """One remedy: accuracy and the best attack's advantage, of each seed."""

    name: str
    accuracy: tuple[float, ...]
    advantage: tuple[float, ...]
    attack: str

    def verdict(self, published: float) -> str:
        """Leaks if the best attack gains more than LEAK with every seed; unsettled if only with some."""
        leaky = [gain > LEAK for gain in self.advantage]
        if any(leaky):
            return "leaks" if all(leaky) else "unsettled"
        return "survives" if np.mean(self.accuracy) >= published - USEFUL else "costs too much"


def remedies(folder: Path) -> Drawn:
    """Measured anew: every remedy on the plane of leakage and accuracy."""
    points = measured()
    return Drawn("Remedies: privacy against utility", words(points), drawn(points))


def measured() -> list[Point]:
    """Every remedy against the strongest attacks of a server: known rows with ids, and without ids."""
    found = []
    plain: list[Run] = []
    for name, texts in REMEDIES.items():
        runs = [_run(seed, texts) for seed in range(SEEDS)]
        plain = plain or runs
        found.append(_point(name, runs, {}))
    return [*found, _point(GROUPED, plain, {"k": 5})]


def _run(seed: int, texts: Sequence[str]) -> Run:
    data = load_dataset(DATA, parties=4, seed=seed)
    return load_protocol("rap").run(data, seed=seed, defenses=[parse_defense(text) for text in texts])


def _point(name: str, runs: Sequence[Run], how: dict[str, Any]) -> Point:
    """The attack that gains most on average over the seeds; an attack that cannot be run gains nothing."""
    gains = {attack: tuple(_advantage(run, attack, how) for run in runs) for attack in ATTACKS}
    best = max(gains, key=lambda attack: float(np.mean(gains[attack])))
    return Point(name, tuple(run.utility["accuracy"] for run in runs), gains[best], best)


def _advantage(run: Run, attack: str, how: dict[str, Any]) -> float:
    """Of one attack on one run."""
    ids = attack != "leverage-matching"
    if ids and run.order is not None:
        return 0.0  # after a shuffle ids name nothing
    knows: list[Known] = [KnownSamples(30, with_ids=ids, **how)]
    parameters: dict[str, Any] = {}
    if not ids:
        knows.append(Moments() if how else DistributionSample(140))
        parameters = {"beam": 300, "work": 0.2}
    adversary = Adversary({"server"}, knows)
    guess = registry.load("attacks", attack)(party=CLIENT, **parameters).run(run.view(adversary), seed=run.seed)
    return Reconstruction(party=CLIENT).score(run, guess).advantage


def drawn(points: Sequence[Point]) -> Figure:
    """The plane: leakage to the right, accuracy upwards; the upper left corner is where one would like to be."""
    from matplotlib.figure import Figure

    published = float(np.mean(points[0].accuracy))
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axvline(LEAK, color="#5b6775", linewidth=1, linestyle=(0, (4, 2)))
    axes.axhline(published - USEFUL, color="#5b6775", linewidth=1, linestyle=(0, (4, 2)))
    for verdict, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=verdict)
    for number, point in enumerate(points, start=1):
        x, y = np.clip(np.mean(point.advantage), -0.05, 1), float(np.mean(point.accuracy))
        colour = COLOURS[point.verdict(published)]
        low, high = np.clip([min(point.advantage), max(point.advantage)], -0.05, 1)
        axes.plot([low, high], [y, y], color=colour, linewidth=1, alpha=0.5)
        axes.plot([x, x], [min(point.accuracy), max(point.accuracy)], color=colour, linewidth=1, alpha=0.5)
        axes.plot([x], [y], "o", color=colour, markersize=12)
        axes.annotate(str(number), (x, y), ha="center", va="center", color="white", fontsize=7.5, fontweight="bold")
    axes.set(xlabel="advantage of the best attack (R², 1 is everything)", ylabel="accuracy on held-out rows")
    axes.set_xlim(-0.1, 1.06)
    axes.annotate("leaks", (LEAK, 1), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points",
                  va="top", color="#5b6775", fontsize=8)  # fmt: skip
    axes.legend(loc="lower right")
    lines = [f"{number}  {point.name}: {np.mean(point.advantage):+.2f}" for number, point in enumerate(points, start=1)]
    figure.text(1.01, 0.97, "\n".join(lines), va="top", fontsize=8, linespacing=1.5)
    return figure


def words(points: Sequence[Point]) -> str:
    """The caption: what survives, with numbers."""
    published = float(np.mean(points[0].accuracy))
    by = {verdict: [p for p in points if p.verdict(published) == verdict] for verdict in COLOURS}
    survivors = ", ".join(f"{p.name} ({np.mean(p.advantage):+.2f})" for p in by["survives"]) or "none"
    costly = ", ".join(f"{p.name} (accuracy {np.mean(p.accuracy):.2f})" for p in by["costs too much"]) or "none"
    open_ = ", ".join(f"{p.name} ({np.mean(p.advantage):+.2f})" for p in by["unsettled"]) or "none"
    return (
        f"Breast-cancer, four clients, {SEEDS} seeds (dots are means, lines the range): accuracy, and what the best of "
        f"{len(ATTACKS)} attacks gains about {CLIENT}'s columns for a server that knows 30 people. Labels are not in "
        f"this picture. A remedy leaks if that is more than {LEAK} with every seed, and is unsettled if with some; it "
        f"costs too much below the horizontal line ({USEFUL:.0%} of accuracy). Hides the columns and keeps accuracy: "
        f"{survivors}. Hides them but costs accuracy: {costly}. Unsettled: {open_}. All others leak."
    )
