"""Shadow training, all at once against one by one, as ratios in one run on one core.

64 networks with one hidden layer are trained on halves of 1,000 people with 20 columns, by the protocol `centralized`:
one by one by its own code, then stacked (`vflaudit.protocols.shadows.stacked`). Both give
the same predictions, which is checked before anything is timed (in float32, where Adam lets rounding grow at places;
`tests/test_shadows.py` compares every parameter in float64). Time is that of the processor, so that a busy machine does
not count.

Where it falls off, and why: one small network spends its time on calls, not on arithmetic, and a stack makes one call
for all of its networks. The wider the network, the more of the time is arithmetic, which stacking does not save. Then
memory: a step reads and writes every parameter with its gradient and Adam's two moments once, and a stack of wide
networks does not fit into the cache between two steps as one network does. Stacks are limited in size for that reason;
the last ratio is without the limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import vflaudit as va
from vflaudit.core.adversary import Adversary
from vflaudit.core.run import Model
from vflaudit.core.shadows import ShadowModels
from vflaudit.protocols.base import Session
from vflaudit.protocols.centralized import Centralized
from vflaudit.protocols.shadows import stacked

SHADOWS, PEOPLE, EPOCHS = 64, 1000, 3
WIDTHS = (16, 64, 256, 1024)


class OneByOne(Centralized):
    """The same protocol with the default that every protocol has."""

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        return self.train_one_by_one(sessions)


def trained(kind: type[Centralized], width: int) -> tuple[Callable[[], ShadowModels], dict[str, np.ndarray]]:
    """A function that trains the shadows, and rows to compare their predictions on."""
    data = va.load_dataset(f"synthetic:rows={2 * PEOPLE},features=20", parties=4, aux=0.5)
    protocol = kind(hidden=width, max_epochs=EPOCHS, tolerance=0.0, batch_size=32)
    view = protocol.run(data, seed=0).view(Adversary({"server"}, [va.DistributionSample(PEOPLE)]))
    pool, rng = view.knowledge.distribution, np.random.default_rng(0)
    assert pool is not None
    members = rng.random((SHADOWS, PEOPLE)).argsort(axis=1) < PEOPLE // 2
    return lambda: view.spec.train_many(pool, members, range(SHADOWS)), dict(pool.features)


def measure(width: int) -> dict[str, float]:
    """Seconds of every way: the best of three, in turns, so that all meet the same machine."""
    alone, rows = trained(OneByOne, width)
    together, _ = trained(Centralized, width)
    assert np.abs(together().predict(rows) - alone().predict(rows)).mean() < 1e-5
    limit = stacked.LARGEST_STACK
    ways = {"one by one": (alone, limit), "all at once": (together, limit), "without limit": (together, 2**60)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(3):
        for way, (train, most) in ways.items():
            stacked.LARGEST_STACK = most
            start = time.process_time()
            train()
            times[way].append(time.process_time() - start)
    stacked.LARGEST_STACK = limit
    best = {way: min(each) for way, each in times.items()}
    return {
        "seconds one by one": round(best["one by one"], 3),
        "seconds all at once": round(best["all at once"], 3),
        "times faster": round(best["one by one"] / best["all at once"], 2),
        "times faster without a limit of the stack": round(best["one by one"] / best["without limit"], 2),
    }


def main() -> None:
    """Print the ratios and write them to benchmarks/results/shadows.json."""
    torch.set_num_threads(1)
    results = {f"hidden width {width}": measure(width) for width in WIDTHS}
    print(json.dumps(results, indent=2))
    path = Path(__file__).parent / "results" / "shadows.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
