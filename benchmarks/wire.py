"""What it costs to send everything through the wire: SplitNN against the same training without a wire, in one run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

import vflaudit as va


def seconds(protocol: str, data: va.VerticalDataset, **parameters: object) -> float:
    """The best of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        va.load_protocol(protocol, max_epochs=30, tolerance=0, **parameters).run(data, seed=0)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print the ratios and write them to benchmarks/results/wire.json."""
    torch.set_num_threads(1)
    data = va.load_dataset("breast-cancer", parties=4)
    split, alone = seconds("splitnn", data), seconds("centralized", data)
    run = va.load_protocol("splitnn", max_epochs=30, tolerance=0).run(data, seed=0)
    per_message = (split - alone) / run.costs.total.messages
    results = {
        "splitnn_seconds": split,
        "centralized_seconds": alone,
        "ratio": split / alone,
        "microseconds_per_message": 1e6 * per_message,
    }
    print(json.dumps(results, indent=2))
    path = Path(__file__).parent / "results" / "wire.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
