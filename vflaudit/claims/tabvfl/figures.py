"""Pictures of what TabVFL's claims are about: epochs observed, remedies, failures (Fig. 6), latent quality (Fig. 5).

`figures(folder)` leaves SVG files in folder/figures and returns what belongs into folder/figures.json. The first two
are measured on seeds of their own; the others show what the claims measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacks.decoder_gradients import DecoderGradients
from attacks.kept_cells import KeptCells
from attacks.unmixing import BlindUnmixing
from vflaudit import Adversary, DistributionSample, KnownSamples, load_protocol, registry
from vflaudit.claims.drawing import BLUE, GREEN, MUTED, ORANGE, PINK, Draw, Drawn, band, draw_all, new_axes
from vflaudit.claims.tabvfl.numbers import PARTY, correlations
from vflaudit.claims.tabvfl.targets import CANCER, GUESTS, OBSERVED, SHARES, SHORT
from vflaudit.core.adversary import Known
from vflaudit.core.dataset import Array
from vflaudit.core.games import Reconstruction
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.core.statistics import t_interval
from vflaudit.errors import InputError
from vflaudit.lab.experiment import parse_defense
from vflaudit.lab.result import Result
from vflaudit.lab.store import Store

SEEDS = 3
EPOCHS = (1, 2, 3, 5, 10, 20, 50)
METHODS = {"bilinear": ("all rows and maps at once", BLUE, "o"), "per-sample": ("row by row", ORANGE, "D")}
LEAK, USEFUL = 0.1, 0.05  # as in the claims; F1 that may be lost
NOTHING: tuple[str, ...] = ()
REMEDIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "as published": (NOTHING, {}),
    "no FC layer": (NOTHING, {"fc": False}),
    "masks withheld": (NOTHING, {"masks": "withheld"}),
    "masked cells filled by others' values": (NOTHING, {"fill": "marginal"}),
    "masks withheld, cells filled": (NOTHING, {"masks": "withheld", "fill": "marginal"}),
    "fresh rotation each epoch": (NOTHING, {"rekey": True}),
    "rows that cannot be linked": (NOTHING, {"order": "unlinkable"}),
    "FC layer to 2 numbers": (NOTHING, {"fc_width": 2}),
    "noise, sigma 1": (("gaussian-noise:sigma=1",), {}),
    "noise, sigma 1, cells filled": (("gaussian-noise:sigma=1",), {"fill": "marginal"}),
}
COLOURS = {"hides": GREEN, "costs too much": PINK, "unsettled": BLUE, "leaks": ORANGE}
SHEET = {  # F1 of Fig. 5 by the authors' published result sheet; the paper has bars without numbers
    "covtype": {"lt": 0.555, "tabvfl": 0.740, "ct": 0.735},
    "bank": {"lt": 0.880, "tabvfl": 0.885, "ct": 0.892},
}
DESIGNS = {"lt": ("Local TabNets", ORANGE), "tabvfl": ("TabVFL", BLUE), "ct": ("Central TabNet", GREEN)}


def figures(folder: Path) -> list[dict[str, str]]:
    """Draw all figures into folder/figures; returns the entries of figures.json."""
    return draw_all(folder, DRAWINGS)


def trained(seed: int, protocol: str = "tabvfl", defenses: Sequence[str] = (), **settings: Any) -> Run:
    """A run on breast-cancer with five guests and a pool of others."""
    data = load_dataset(CANCER, parties=GUESTS, partition="equal-blocks", shares=SHARES, seed=seed)
    return load_protocol(protocol, **settings).run(data, seed=seed, defenses=[parse_defense(d) for d in defenses])


# --- epochs observed ----------------------------------------------------------------------------------------


def by_column(run: Run, method: str, epochs: int) -> Array:
    """|correlation| of each column with what the masks of so many epochs tell, nothing else used or known."""
    attack = registry.load("attacks", "mask-regression")
    attack = attack(party=PARTY, method=method, epochs=epochs, served=False, signs="arbitrary")
    said = attack.run(run.view(Adversary({"host"})), seed=run.seed).features[PARTY]
    trained_on = np.isin(said.rows, run.data.aligned("train"))
    truth = run.data.block(PARTY).values[said.rows[trained_on]]
    return np.diag(correlations(said.values[trained_on], truth))


def epochs_observed(folder: Path) -> Drawn:
    """One thin line per column, a thick one for their mean: with the FC layer, without it, and for other people."""
    panels: dict[str, dict[str, Any]] = {
        "TabVFL": {},
        "without the FC layer": {"fc": False},
        "control: messages about others": {"protocol": "ideal", "like": "tabvfl"},
    }
    figure, axes = new_axes(len(panels), (8.4, 3.2))
    told = []
    for place, (title, settings) in zip(axes, panels.items(), strict=True):
        runs = [trained(seed, **{**settings, **OBSERVED}) for seed in range(SEEDS)]
        for method, (label, colour, mark) in METHODS.items():
            found = {k: np.array([by_column(run, method, k) for run in runs]) for k in EPOCHS}
            for column in range(found[EPOCHS[0]].shape[1]):
                lines = [np.median(found[k][:, column]) for k in EPOCHS]
                place.plot(EPOCHS, lines, color=colour, linewidth=0.7, alpha=0.4)
            band(place, {k: found[k].mean(axis=1) for k in EPOCHS}, label, colour, mark)
            told.append(f"{title}, {label}: {found[EPOCHS[0]].mean():.2f} to {found[EPOCHS[-1]].mean():.2f}")
        place.set_xscale("log")
        place.set_xticks(EPOCHS, [str(k) for k in EPOCHS])
        place.minorticks_off()
        place.set(title=title, xlabel="epochs observed (log scale)", ylim=(0, 1.04))
    axes[0].set_ylabel("|correlation| with the column")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return Drawn(
        "What masks tell, by the epochs that the host observes",
        f"{PARTY}'s columns as the host solves them from intermediate results and masks of the last epochs of "
        f"pretraining alone, knowing nothing (breast-cancer, {SEEDS} seeds). Thin lines are columns (medians), thick "
        f"ones their mean with its range over seeds. From {EPOCHS[0]} to {EPOCHS[-1]} epochs, mean |correlation|: "
        f"{'; '.join(told)}.",
        figure,
    )


# --- remedies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One remedy: latent F1, and the best attack's advantage by what the host knows, of each seed."""

    name: str
    f1: tuple[float, ...]
    gains: dict[str, tuple[float, ...]]

    def verdict(self, knows: str, published: float) -> str:
        """Leaks if the best attack gains more than LEAK with every seed; unsettled if only with some."""
        leaky = [gain > LEAK for gain in self.gains[knows]]
        if any(leaky):
            return "leaks" if all(leaky) else "unsettled"
        return "hides" if np.mean(self.f1) >= published - USEFUL else "costs too much"


ADVERSARIES: dict[str, tuple[Known, ...]] = {
    "the host knows 100 other people": (DistributionSample(100),),
    "the host knows 30 of the guest's people": (KnownSamples(30, with_ids=True),),
}


def best_gain(run: Run, knows: tuple[Known, ...]) -> float:
    """The advantage of the best of the attacks that are possible."""
    view = run.view(Adversary({"host"}, knows))
    found: list[float] = []
    attacks: list[Any] = [registry.load("attacks", "mask-regression")(party=PARTY)]
    attacks += [KeptCells(party=PARTY), DecoderGradients(party=PARTY, epochs=10), BlindUnmixing(party=PARTY)]
    if any(isinstance(item, KnownSamples) for item in knows):
        attacks.append(registry.load("attacks", "known-sample-reconstruction")(party=PARTY))
    attacks.append(BlindUnmixing(party=PARTY, method="fastica"))  # slow: only where all others fail
    for attack in attacks:
        if attack is attacks[-1] and max(found, default=0.0) > LEAK:
            break
        try:
            found.append(Reconstruction(party=PARTY).score(run, attack.run(view, seed=run.seed)).advantage)
        except InputError:  # no masks, or too few numbers per row
            continue
    return max(found, default=0.0)


def measured() -> list[Point]:
    """Every remedy with every adversary."""
    points = []
    for name, (defenses, settings) in REMEDIES.items():
        runs = [trained(seed, "tabvfl", defenses, **SHORT, evaluate=True, **settings) for seed in range(SEEDS)]
        gains = {who: tuple(best_gain(run, knows) for run in runs) for who, knows in ADVERSARIES.items()}
        points.append(Point(name, tuple(run.utility["latent_f1"] for run in runs), gains))
    return points


def remedies(folder: Path) -> Drawn:
    """The plane: leakage to the right, latent quality upwards; the upper left corner is where one would like to be."""
    points = measured()
    published = float(np.mean(points[0].f1))
    figure, panels = new_axes(len(ADVERSARIES), (8.2, 3.8))
    for axes, who in zip(panels, ADVERSARIES, strict=True):
        axes.axvline(LEAK, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.axhline(published - USEFUL, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        for number, point in enumerate(points, start=1):
            gains = np.clip(point.gains[who], -0.05, 1)
            x, y, colour = gains.mean(), float(np.mean(point.f1)), COLOURS[point.verdict(who, published)]
            axes.plot([gains.min(), gains.max()], [y, y], color=colour, linewidth=1, alpha=0.5)
            axes.plot([x], [y], "o", color=colour, markersize=12)
            axes.annotate(str(number), (x, y), ha="center", va="center", color="white", fontsize=7.5, weight="bold")
        axes.set(title=who, xlabel="advantage of the best attack (R²)", xlim=(-0.1, 1.05))
    panels[0].set_ylabel("latent F1")
    for verdict, colour in COLOURS.items():
        panels[0].plot([], [], "o", color=colour, label=verdict)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    lines = [f"{number}  {point.name}" for number, point in enumerate(points, start=1)]
    figure.text(1.01, 0.95, "\n".join(lines), va="top", fontsize=8, linespacing=1.5)
    return Drawn("Remedies: privacy against utility", words(points, published), figure)


def words(points: Sequence[Point], published: float) -> str:
    """The caption: what hides the columns from whom, with numbers."""
    told = []
    for who in ADVERSARIES:
        by = {v: [p for p in points if p.verdict(who, published) == v] for v in COLOURS}
        listed = {
            v: ", ".join(f"{p.name} ({np.mean(p.gains[who]):+.2f}, F1 {np.mean(p.f1):.2f})" for p in found) or "none"
            for v, found in by.items()
        }
        told.append(
            f"If {who}: hides and keeps F1: {listed['hides']}; hides but costs more than {USEFUL:g}: "
            f"{listed['costs too much']}; unsettled: {listed['unsettled']}; leaks: {listed['leaks']}."
        )
    return (
        f"Breast-cancer, {SEEDS} seeds (dots are means, lines the range): latent F1, and what the best of the attacks "
        f"gains in R². A remedy leaks above {LEAK} with every seed, and is unsettled with some. {' '.join(told)}"
    )


# --- what the claims measured -------------------------------------------------------------------------------


def judged(folder: Path) -> list[tuple[dict[str, Any], Result]]:
    """Designs whose latent vectors were evaluated, with their settings."""
    found = Store(folder).results()
    return [(r.experiment["set"], r) for r in found if r.protocol == "tabvfl" and "latent_f1" in r.utility]


def failures(folder: Path) -> Drawn | None:
    """Fig. 6: latent F1 against the probability of failing, cache and zeros, and without failures."""
    curves: dict[str, dict[float, list[float]]] = {"cache": {}, "zeros": {}}
    without: list[float] = []
    for settings, result in judged(folder):
        if "p_fail" in settings and result.dataset.name == CANCER:
            if settings["p_fail"] == 0:
                without.append(result.utility["latent_f1"])
            else:
                at = curves[settings["on_failure"]].setdefault(settings["p_fail"], [])
                at.append(result.utility["latent_f1"])
    if not without or not all(curves.values()):
        return None
    figure, (axes,) = new_axes()
    axes.axhline(float(np.median(without)), color=MUTED, linestyle=(0, (4, 2)), label="no failures")
    for name, colour, mark in (("cache", BLUE, "o"), ("zeros", ORANGE, "D")):
        band(axes, {p: np.array(curves[name][p]) for p in sorted(curves[name])}, name, colour, mark)
    axes.set_xticks(sorted(curves["cache"]))
    axes.set(xlabel="probability that a guest is offline for an epoch", ylabel="latent F1")
    axes.legend()
    cache, zeros = ({p: np.mean(values) for p, values in sorted(curves[name].items())} for name in ("cache", "zeros"))
    told = "; ".join(f"{p:g}: cache {cache[p]:.3f}, zeros {zeros[p]:.3f}" for p in cache)
    return Drawn(
        "Failing guests (Fig. 6)",
        f"Breast-cancer (not among the paper's data), two guests, {len(without)} seeds: the median and the range of "
        f"the latent F1. Means by probability: {told}; without failures {np.mean(without):.3f}. On the paper's five "
        "datasets the cache is better by 1.51% to 9.15% on average (Table IV).",
        figure,
    )


def latent_quality(folder: Path) -> Drawn | None:
    """Fig. 5: F1 of three designs, here and in the authors' result sheet."""
    found: dict[str, dict[str, list[float]]] = {}
    for settings, result in judged(folder):
        if settings["variant"] in DESIGNS and "p_fail" not in settings and "latent" not in settings:
            by = found.setdefault(result.dataset.name, {})
            by.setdefault(settings["variant"], []).append(result.utility["latent_f1"])
    shown = {name: by for name, by in found.items() if len(by) == len(DESIGNS)}
    if not shown:
        return None
    figure, (axes,) = new_axes(1, (6.4, 3.2))
    for shift, (variant, (label, colour)) in zip((-0.2, 0.0, 0.2), DESIGNS.items(), strict=True):
        places = np.arange(len(shown)) + shift
        means = np.array([np.mean(by[variant]) for by in shown.values()])
        ends = np.array([t_interval(by[variant]) for by in shown.values()])
        ends = np.where(np.isfinite(ends), ends, means[:, None])
        axes.errorbar(places, means, np.abs(ends.T - means), fmt="o", color=colour, label=f"{label}, here")
        sheet = [SHEET.get(name, {}).get(variant, np.nan) for name in shown]
        axes.plot(places, sheet, "D", color=colour, markerfacecolor="white", label=f"{label}, authors")
    axes.set_xticks(range(len(shown)), list(shown))
    axes.set(ylabel="latent F1")
    figure.legend(loc="outside right upper")
    told = "; ".join(
        f"{name}: " + ", ".join(f"{DESIGNS[v][0]} {np.mean(by[v]):.3f}" + _sheet(name, v) for v in DESIGNS)
        for name, by in shown.items()
    )
    seeds = min(len(values) for by in shown.values() for values in by.values())
    return Drawn(
        "Latent quality (Fig. 5)",
        f"Mean F1 of the classical models on latent vectors, {seeds} seeds with 95% intervals (dots), and the authors' "
        f"published result sheet (diamonds; 300 epochs on up to 50,000 rows). Here 2,000 rows and up to 40 epochs: "
        f"{told}.",
        figure,
    )


def _sheet(name: str, variant: str) -> str:
    return f" (authors {SHEET[name][variant]:.3f})" if name in SHEET else ""


DRAWINGS: dict[str, Draw] = {
    "epochs-observed": epochs_observed,
    "remedies": remedies,
    "failures": failures,
    "latent-quality": latent_quality,
}
