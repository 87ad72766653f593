"""Pictures of RAP's accuracy and speed: numbers of clients, the label's matrix, seconds per round."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vflaudit import load_protocol
from vflaudit.claims.drawing import BLUE, GREEN, INK, MUTED, ORANGE, Drawn, new_axes
from vflaudit.claims.rap.costs import latency_for, training_costs
from vflaudit.claims.rap.tuning import tuned
from vflaudit.core.costs import Network
from vflaudit.core.loading import load_dataset
from vflaudit.core.statistics import t_interval
from vflaudit.core.transcript import Recording
from vflaudit.errors import InputError
from vflaudit.lab.result import Result
from vflaudit.lab.store import Store

SEEDS = 16  # label matrices that are tried
BOUND = 5.0


def results_in(folder: Path) -> list[Result]:
    """The results that the claims run left in its folder; none if there was no such run."""
    try:
        return Store(folder).results()
    except InputError:
        return []


def accuracies(results: Iterable[Result], **wanted: object) -> dict[str, dict[int, float]]:
    """Accuracies by dataset and seed, of the experiments with these fields."""
    found: dict[str, dict[int, float]] = {}
    for result in results:
        experiment = result.experiment
        if all({**experiment, **experiment["set"]}.get(key) == value for key, value in wanted.items()):
            found.setdefault(experiment["data"], {})[result.seed] = result.utility["accuracy"]
    return found


def by_clients(folder: Path) -> Drawn | None:
    """Figures 4 to 7: accuracy against the number of clients, and of one-feature clients, from the claims' results."""
    results = [r for r in results_in(folder) if r.experiment["record"] == "none" and "accuracy" in r.utility]
    counts, singles = (2, 4, 6, 8, 10), (1, 2, 3, 4, 5)
    shared = {"protocol": "rap", "model": "mlp"}
    left = {n: accuracies(results, parties=n, partition="round-robin", **shared) for n in counts}
    right = {n: accuracies(results, parties=10, partition=f"one-feature:{n}", **shared) for n in singles}
    central = accuracies(results, protocol="centralized", model="mlp")
    datasets = sorted(set.intersection(*(set(found) for found in (*left.values(), *right.values(), central))))
    if not datasets:
        return None
    figure, panels = new_axes(2, (5.6, 3.1))
    for axes in panels:
        axes.axhspan(-2, 2, color=GREEN, alpha=0.12, linewidth=0)
        axes.axhline(0, color=MUTED, linewidth=0.8)
    for data, colour, mark in zip(datasets, (BLUE, ORANGE, INK), "oDs", strict=False):
        for axes, table in zip(panels, (left, right), strict=True):
            gaps = [[100 * (a - central[data][seed]) for seed, a in found[data].items()] for found in table.values()]
            means, bounds = np.mean(gaps, axis=1), np.array([t_interval(gap) for gap in gaps])
            axes.errorbar(list(table), means, np.abs(bounds.T - means), color=colour, marker=mark, markersize=4.5,
                          linewidth=1.2, label=data)  # fmt: skip
    panels[0].set(xlabel="clients", ylabel="RAP minus centralized, points")
    panels[0].set_xticks(counts)
    panels[1].set(xlabel="one-feature clients of 10")
    panels[1].set_xticks(singles)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    seeds = ", ".join(f"{len(left[2][data])} ({data})" for data in datasets)
    caption = (
        "Accuracy of the MLP on test rows, RAP minus centralized training on the same rows: mean and 95% interval over "
        f"seeds, from the results of this run. Seeds: {seeds}. The band is the claims' margin of 2 points. Learning "
        "rates are those tuned for four clients."
    )
    return Drawn("Accuracy against the number of clients", caption, figure)


def label_matrix(folder: Path) -> Drawn:
    """2.3: the label is decoded by A_Y^-1, so a nearly singular A_Y multiplies the models' errors."""
    figure, (axes,) = new_axes(size=(5.6, 3.0))
    conditions, excess, bounded = [], [], []
    for seed in range(SEEDS):
        data = load_dataset("diabetes", parties=4, aux=0.0, seed=seed)
        central, drawn, redrawn = (
            load_protocol(name, **tuned("diabetes", name), **more).run(data, seed=seed, recording=Recording.none())
            for name, more in (("centralized", {}), ("rap", {}), ("rap", {"label_condition": BOUND}))
        )
        conditions.append(float(np.linalg.cond(drawn.states["label_owner"].parameters["label_map"])))
        excess.append(drawn.utility["rmse"] - central.utility["rmse"])
        bounded.append(redrawn.utility["rmse"] - central.utility["rmse"])
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.plot(conditions, excess, "o", color=ORANGE, markersize=5, label="first draw, as in the paper")
    axes.plot(conditions, bounded, "x", color=BLUE, markersize=5, label=f"redrawn until at most {BOUND:g}")
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set(xlabel="condition number of the first draw of A_Y (log scale)", ylabel="RMSE above centralized")
    axes.legend()
    caption = (
        f"Diabetes, {SEEDS} seeds, tuned learning rates. Decoding multiplies the errors of the two models by the "
        "inverse of the label owner's 2x2 matrix. The paper draws that matrix once; some draws are nearly singular and "
        f"cost up to {max(excess):.0f} in RMSE, the median is {np.median(excess):.1f}. With label_condition={BOUND:g} "
        f"the worst is {max(bounded):.1f}. Not every poorly conditioned draw does harm: it depends on the direction."
    )
    return Drawn("A numeric label and its matrix", caption, figure)


def speed(folder: Path) -> Drawn:
    """Table 4 under our network model: the speed-up over SplitNN against what a round costs."""
    figure, (axes,) = new_axes(size=(5.6, 3.0))
    split, rap = (training_costs(name, "1%", 0) for name in ("splitnn", "rap"))
    latencies = np.geomspace(1e-5, 1, 60)
    networks = [Network("any", float(latency), Network.LAN.bandwidth_bits_per_s) for latency in latencies]
    axes.plot(latencies, [network.seconds(split) / network.seconds(rap) for network in networks], color=BLUE)
    for network, name in ((Network.LAN, "LAN 10 Gb/s"), (Network.WAN, "WAN 100 Mb/s")):
        ratio = network.seconds(split) / network.seconds(rap)
        axes.plot([network.latency_s], [ratio], "o", color=INK, markersize=5)
        axes.annotate(f"{name}: {ratio:.0f}×", (network.latency_s, ratio), xytext=(6, -10), textcoords="offset points",
                      fontsize=8)  # fmt: skip
    for level in (100, 630):
        axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.annotate(f"{level}×", (1e-5, level), xytext=(0, 2), textcoords="offset points", fontsize=8, color=MUTED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="seconds that a round costs besides bytes and CPU (log scale)", ylabel="SplitNN time / RAP time")
    needed = [1000 * latency_for(level, 0) for level in (100, 630)]
    caption = (
        "Estimated training time of SplitNN over RAP for 50,000 rows and 20 columns, 1% batches, 100 epochs, CPU "
        "measured on this machine, 10 Gb/s (the WAN's dot: its own bandwidth). 100 times needs "
        f"{needed[0]:.0f} ms a round, 630 times {needed[1]:.0f} ms: latency, gRPC and serialisation together. The "
        "paper states none of them."
    )
    return Drawn("Speed-up over SplitNN against the cost of a round", caption, figure)
