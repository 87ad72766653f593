"""How the bilinear least squares of `attacks/mask_algebra.py` grow with rows and epochs: seconds and memory.

Messages are made up as TabVFL's guests send them: 6 columns, batches of 64, half of the cells masked, a map per batch
that drifts, and what is served in the end. Each case runs a fixed number of iterations, so that ratios compare work and
not luck; the first case is an attack of the size of breast-cancer and runs until it is done.
"""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from pathlib import Path

import numpy as np

from attacks.mask_algebra import Step, solve
from vflaudit.core.dataset import Array

WIDTH, BATCH, FIXED = 6, 64, 5
WHOLE = (569, 50)
ROWS, EPOCHS = (500, 1000, 2000, 4000), (10, 20, 40, 80)


def messages(rows: int, epochs: int) -> tuple[Array, list[Step], Step]:
    """The truth, the masked messages and the served one."""
    rng = np.random.default_rng(0)
    values, weights = rng.standard_normal((rows, WIDTH)), rng.standard_normal((WIDTH, WIDTH))
    steps = []
    for _ in range(epochs):
        for batch in np.split(np.arange(rows), range(BATCH, rows, BATCH)):
            kept = (rng.random((len(batch), WIDTH)) < 0.5).astype(float)
            weights = weights + 1e-3 * rng.standard_normal(weights.shape)
            inputs = kept * values[batch]
            steps.append(Step(batch, kept, (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-9) @ weights))
    return values, steps, Step(np.arange(rows), np.ones((rows, WIDTH)), values @ weights)


def measured(rows: int, epochs: int, iterations: int) -> dict[str, float]:
    """One attack: seconds (the best of three), peak memory beyond the messages, size of the messages, |correlation|."""
    values, steps, whole = messages(rows, epochs)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        found = solve(steps, whole, rows, iterations)
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    solve(steps, whole, rows, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    near = [abs(np.corrcoef(found.values[:, k], values[:, k])[0, 1]) for k in range(WIDTH)]
    size = sum(step.sent.nbytes + step.kept.nbytes + step.rows.nbytes for step in steps)
    return {
        "seconds": round(min(seconds), 3),
        "megabytes beyond the messages": round(peak / 1e6, 2),
        "megabytes of messages": round(size / 1e6, 2),
        "iterations": found.iterations,
        "least |correlation|": round(float(min(near)), 6),
    }


def growth(cases: dict[str, dict[str, float]], what: str) -> list[float]:
    """From each case to the next one, which is twice as large."""
    found = [case[what] for case in cases.values()]
    return [round(after / before, 2) for before, after in itertools.pairwise(found)]


def main() -> None:
    """Print the measurements and write them to benchmarks/results/mask_regression.json."""
    by_rows = {f"{rows} rows, 10 epochs": measured(rows, 10, FIXED) for rows in ROWS}
    by_epochs = {f"500 rows, {epochs} epochs": measured(500, epochs, FIXED) for epochs in EPOCHS}
    results = {
        f"{WHOLE[0]} rows, {WHOLE[1]} epochs, until done": measured(*WHOLE, 200),
        "rows": by_rows,
        "epochs": by_epochs,
        "times, when rows double": {what: growth(by_rows, what) for what in list(by_rows["500 rows, 10 epochs"])[:3]},
        "times, when epochs double": {
            what: growth(by_epochs, what) for what in list(by_epochs["500 rows, 10 epochs"])[:3]
        },
    }
    print(json.dumps(results, indent=2))
    path = Path(__file__).parent / "results" / "mask_regression.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
