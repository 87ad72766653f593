"""Pictures of what FedOnce's claims are about: `figures(folder)` draws them and returns the entries of figures.json.

Audits are those of the verdicts' first seeds; a process that judged the claims has them at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vflaudit import Adversary, KnownSamples, load_protocol, registry
from vflaudit.accounting.accountants import accountant
from vflaudit.accounting.parties import Training, account
from vflaudit.accounting.validity import as_covered
from vflaudit.claims.check import FIRST_SEED, SEEDS
from vflaudit.claims.drawing import BLUE, GREEN, INK, MUTED, ORANGE, PINK, Draw, Drawn, band, draw_all, new_axes
from vflaudit.claims.fedonce import audits
from vflaudit.claims.fedonce.remedies import remedies
from vflaudit.core.games import Reconstruction
from vflaudit.core.loading import load_dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vflaudit.accounting.audit import Bound

JUDGED = range(FIRST_SEED, FIRST_SEED + SEEDS["fast"])


def figures(folder: Path) -> list[dict[str, str]]:
    """Draw all figures into folder/figures; returns the entries of figures.json."""
    return draw_all(folder, DRAWINGS)


# --- the sandwich -------------------------------------------------------------------------------------------


def sandwich(folder: Path) -> Drawn:
    """Claimed epsilon, accounted epsilon, measured lower bound with its interval, and the controls."""
    promise = audits.promise_10()
    alone = audits.accounted(promise)
    Bounds = Callable[[int, Any], "Bound"]
    settings: list[tuple[str, float, float, Bounds]] = [
        ("Table 10 phishing, first step,\nknown targets", 2.0, alone, lambda s, a: audits.first_step_bound(s, a)),
        ("one step, known targets", 1.0, 1.0, lambda s, a: audits.known_bound(s, 1.0, "sample", a)),
        ("one step, known targets, digits", 1.0, 1.0, lambda s, a: audits.natural_bound(s, "digits", 1.0, a)),
        ("one step, secret targets", 0.5, 0.5, lambda s, a: audits.secret_bound(s, 0.5, a)),
        ("Table 10's training, breast-cancer,\nlast parameters, secret targets", 2.0,
         audits.accounted_run(JUDGED[0]),
         lambda s, a: audits.run_bounds(s, a)["final"]),
    ]  # fmt: skip
    figure, (axes,) = new_axes(size=(6.4, 0.9 + 0.72 * len(settings)))
    marks = (("hungarian", "as published", ORANGE, "o"), ("fixed", "control: fixed targets", BLUE, "s"),
             ("nearest", "control: nearest public target", GREEN, "^"))  # fmt: skip
    for place, (_, claimed, accounted, measured) in enumerate(settings):
        axes.plot([claimed] * 2, [place - 0.36, place + 0.36], color=INK, linewidth=2,
                  label="claimed, all parties" if not place else None)  # fmt: skip
        axes.plot([accounted] * 2, [place - 0.36, place + 0.36], color=MUTED, linewidth=1.4, linestyle=(0, (3, 2)),
                  label="accounted, this guest alone" if not place else None)  # fmt: skip
        for offset, (rule, label, colour, mark) in zip((-0.2, 0.04, 0.24), marks, strict=True):
            seeds = JUDGED if rule == "hungarian" else JUDGED[:1]
            _interval(axes, [measured(seed, rule) for seed in seeds], place + offset, colour, mark,
                      label if not place else None)  # fmt: skip
    axes.set_yticks(range(len(settings)), [name for name, *_ in settings])
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.set(xlabel="epsilon at delta = 1e-5 (one person more or less; log scale from 1)", xlim=(-0.05, 16))
    axes.set_xscale("symlog", linthresh=1, linscale=0.8)
    axes.set_xticks([0, 0.5, 1, 2, 4, 8], ["0", "0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.yaxis.grid(False)
    figure.legend(loc="outside lower center", ncols=3)
    sigma = promise.training.privacy.sigma if promise.training.privacy else 0.0
    covered = accountant("rdp").epsilon(as_covered(audits.event_10("hungarian")), promise.delta)
    caption = (
        f"Marks are lower bounds at 95% confidence, the mean of {len(JUDGED)} seeds (controls: one); thin lines end at "
        "the most that so many trials can show. A mark to the right of the black line refutes the claim. Worst-case "
        f"people unless a dataset is named. Table 10 has sigma {sigma:.2f}; with a step's real sensitivity "
        f"the guest's accounted epsilon would be {covered:.2g}. The last row's noise is calibrated to its own table."
    )
    return Drawn("The privacy sandwich of FedOnce-L1", caption, figure)


def _interval(axes: Axes, found: list[Bound], height: float, colour: str, mark: str, label: str | None) -> None:
    values = [one.epsilon for one in found]
    axes.plot([float(np.mean(values)), found[0].ceiling], [height] * 2, color=colour, linewidth=0.8, alpha=0.5)
    axes.plot([min(values), max(values)], [height] * 2, color=colour, linewidth=2.5)
    axes.plot([np.mean(values)], [height], mark, color=colour, markersize=5.5, label=label, linestyle="none")


# --- sensitivity --------------------------------------------------------------------------------------------


def sensitivity(folder: Path) -> Drawn:
    """The change of one step against the batch size."""
    sizes, seed = (1, 2, 4, 8, 16, 32, 64, 128, 256), JUDGED[0]
    figure, (axes,) = new_axes(size=(5.6, 3.5))
    worst = [audits.worst_change(seed, size) for size in sizes]
    axes.plot(sizes, worst, color=ORANGE, marker="o", label="worst case")
    axes.plot(sizes, [audits.worst_change(seed, size, "batch") for size in sizes], color=PINK, marker="D",
              label="worst case, line 11 as printed")  # fmt: skip
    for data, mark in (("breast-cancer", "s"), ("digits", "^")):
        natural = [audits.natural_change(seed, data, size) for size in sizes[1:]]
        axes.plot(
            sizes[1:], natural, color=BLUE, marker=mark, markersize=4.5, linewidth=1, label=f"{data}, most of 150"
        )
    axes.plot(sizes, [audits.worst_change(seed, size, "sample", "fixed") for size in sizes], color=GREEN, marker="x",
              label="worst case, fixed or nearest targets")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_yticks([1, 2, 8, 32, 128, 512], ["1", "2", "8", "32", "128", "512"])
    axes.minorticks_off()
    axes.set(xlabel="batch size B (log scale)", ylabel="change in clips (log scale)")
    axes.legend(loc="upper left")
    swapped = audits.worst_change(seed, 256, swap=True)
    caption = (
        "How far one person more or less moves the sum of clipped gradients at the first step, in units of Omega; the "
        f"paper takes 1. In the worst case it is 2B - 1 ({worst[-1]:.1f} at B = 256), and {swapped:.1f} for one "
        "person in place of another, because targets are dealt among the batch. Clipping the whole gradient bounds it "
        "by 2."
    )
    return Drawn("Sensitivity of one step", caption, figure)


# --- accounting ---------------------------------------------------------------------------------------------


def division(folder: Path) -> Drawn:
    """Fig. 10: privacy loss of k parties by simple and by moments division."""
    event, counts = Training(60_000, 128, 50, 1.0).event(), list(range(1, 101))
    figure, (axes,) = new_axes(size=(5.6, 3.2))
    said = []
    for name, style, words in (
        ("rdp-classic", "-", "the paper's conversion"),
        ("rdp", (0, (3, 2)), "tighter conversion"),
    ):
        rows = account(event, 1e-5, counts, [name])
        axes.plot(counts, [row.simple for row in rows], color=ORANGE, linestyle=style, label=f"simple, {words}")
        axes.plot(counts, [row.moments for row in rows], color=BLUE, linestyle=style, label=f"moments, {words}")
        said.append(f"{rows[-1].simple:.2f} and {rows[-1].moments:.2f} ({rows[-1].reduction:.1%} less, {words})")
    axes.set(xlabel="parties k", ylabel="epsilon", xlim=(0, 100), ylim=(0, None))
    axes.legend(loc="upper left")
    caption = (
        "Privacy loss of k parties with n = 60000, b = 128, T = 50, sigma = 1, delta = 1e-5, taking the paper's "
        f"sensitivity for granted. Simple and moments division at k = 100: {'; '.join(said)}."
    )
    return Drawn("Simple and moments division (Fig. 10)", caption, figure)


# --- inversion ----------------------------------------------------------------------------------------------


def inversion(folder: Path) -> Drawn:
    """What a host that knows some people reads from representations, against d and against noise."""
    figure, (left, right) = new_axes(2, (6.2, 3.0))
    widths, noises = (3, 8, 16, 48), (0.0, 0.1, 0.5, 1.0, 1.5)
    for data, people, colour, mark in (("breast-cancer", 50, BLUE, "o"), ("digits", 100, ORANGE, "D")):
        for axes, settings in ((left, [(d, 0.0) for d in widths]), (right, [(16, sigma) for sigma in noises])):
            found = {
                place: np.array([_advantage(data, people, *setting, seed) for seed in range(3)])
                for place, setting in enumerate(settings)
            }
            band(axes, found, f"{data}, {people} known people", colour, mark)
    left.set_xticks(range(len(widths)), [str(d) for d in widths])
    right.set_xticks(range(len(noises)), [f"{sigma:g}" for sigma in noises])
    left.set(xlabel="d, the width of a representation", ylabel="advantage in R2")
    right.set(xlabel="sigma_r, noise on representations (d = 16)")
    for axes in (left, right):
        axes.axhline(0, color=MUTED, linewidth=0.8)
    left.legend(loc="upper left")
    left.set_ylim(-0.1, 0.45)
    caption = (
        "R2 of a guest's columns as a host reconstructs them that knows some of the guest's people, less what its own "
        "columns tell it; the median and the range of 3 seeds. Four parties, FedOnce-L0, representation-inversion by "
        "ridge and kernel regression."
    )
    return Drawn("Inversion of representations", caption, figure)


@cache
def _advantage(data: str, people: int, dimension: int, sigma: float, seed: int) -> float:
    noise = [registry.load("defenses", "gaussian-noise")(sigma=sigma)] if sigma else []
    made = load_dataset(data, parties=4, seed=seed)
    run = load_protocol("fedonce", dimension=dimension, host_epochs=1).run(made, seed=seed, defenses=noise)
    adversary = Adversary(corrupts={"host"}, knows=[KnownSamples(people, with_ids=True)])
    attack = registry.load("attacks", "representation-inversion")(party="guest1", learners=("ridge", "kernel"))
    return Reconstruction(party="guest1").score(run, attack.run(run.view(adversary), seed=seed)).advantage


# --- remedies -----------------------------------------------------------------------------------------------


def deployed(folder: Path) -> Drawn:
    """Accuracy of FedOnce-L1 with sensitivity put right in several ways."""
    data = ("phishing" if audits.real("phishing") else "breast-cancer", "digits")
    found = {name: remedies(name, JUDGED) for name in data}
    names = list(found[data[0]])
    figure, panels = new_axes(len(data), (6.4, 0.7 + 0.42 * len(names)))
    for axes, name in zip(panels, data, strict=True):
        for place, remedy in enumerate(names):
            accuracy, epsilon = found[name][remedy]
            proved = epsilon <= 2.001
            axes.barh([place], [np.mean(accuracy)], 0.55, color=GREEN if proved else ORANGE)
            axes.plot(accuracy, [place] * len(accuracy), "o", color=INK, markersize=3)
        axes.set(title=name, xlabel="accuracy", xlim=(0, 1))
        axes.yaxis.grid(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    caption = (
        "FedOnce-L1 at a total epsilon of 2, Poisson batches, 3 seeds (dots; the bar is their mean). Green: accounted "
        "with the sensitivity that the training has, it keeps its promise, apart from columns that were standardised "
        "on private data. Orange: it does not."
    )
    return Drawn("Remedies and what they cost", caption, figure)


DRAWINGS: dict[str, Draw] = {
    "privacy-sandwich": sandwich,
    "sensitivity": sensitivity,
    "division": division,
    "inversion": inversion,
    "remedies": deployed,
}
