"""The sum of clipped per-sample gradients: Opacus, torch.func, and FedOnce's closed form, as ratios in one run.

All three compute the same sum (checked before anything is timed). `vflaudit.protocols.fedonce.gradients` uses the last.
"""

from __future__ import annotations

import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.func import functional_call, grad, vmap

from vflaudit.protocols.fedonce.gradients import network_of, vector_of
from vflaudit.protocols.fedonce.networks import cnn1, fully_connected
from vflaudit.protocols.networks import seeded

CLIP = 1.0
CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "phishing guest, b=32 (Table 10)": (lambda: fully_connected(17, (30,), 3), 17, 32),
    "phishing guest, b=128 (Table 10)": (lambda: fully_connected(17, (30,), 3), 17, 128),
    "gisette guest, b=128 (Table 10)": (lambda: fully_connected(1250, (30,), 3), 1250, 128),
    "MNIST guest CNN1, b=256 (Table 10)": (lambda: cnn1((14, 14), (), 8), 196, 256),
}


def clipped_sum(each: torch.Tensor) -> torch.Tensor:
    """Clip every row, then add them up."""
    return (each / torch.clamp(each.norm(dim=1, keepdim=True) / CLIP, min=1)).sum(dim=0)


def ways(build: Callable[[], nn.Module], width: int, batch: int) -> dict[str, Callable[[], np.ndarray]]:
    """Three functions that return the same vector: gradients of half the squared distance to random targets."""
    module, rng = seeded(build, 0, "benchmark"), np.random.default_rng(0)
    inputs = rng.normal(size=(batch, width))
    values = torch.from_numpy(inputs).float()
    targets = rng.normal(size=module(values[:1]).shape[1])
    aims = torch.from_numpy(targets).float()
    hooked = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    named = {name: value.detach() for name, value in module.named_parameters()}
    network, parameters = network_of(module), vector_of(module)

    def loss_of_one(weights: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return 0.5 * (functional_call(module, weights, (one[None],)) - aims).square().sum()

    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0))

    def opacus() -> np.ndarray:
        hooked.zero_grad()
        (0.5 * (hooked(values) - aims).square().sum()).backward()
        return clipped_sum(torch.cat([p.grad_sample.flatten(1) for p in hooked.parameters()], dim=1)).numpy()

    def functional() -> np.ndarray:
        found = per_sample(named, values)
        return clipped_sum(torch.cat([part.flatten(1) for part in found.values()], dim=1)).numpy()

    def closed() -> np.ndarray:
        outputs, tape = network.forward(parameters, inputs)
        return network.gradient(parameters, tape, outputs - targets, CLIP)[0]

    return {"opacus": opacus, "torch.func": functional, "closed form": closed}


def seconds(function: Callable[[], object]) -> float:
    """The median of many calls, after some to warm up."""
    for _ in range(5):
        function()
    times = []
    while sum(times) < 1.0 or len(times) < 20:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    """Print the ratios and write them to benchmarks/results/dp.json."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook")
    results = {}
    for name, (build, width, batch) in CASES.items():
        functions = ways(build, width, batch)
        reference = functions["opacus"]()
        for function in functions.values():
            np.testing.assert_allclose(function(), reference, atol=1e-4 * np.abs(reference).max())
        times = {way: seconds(function) for way, function in functions.items()}
        results[name] = {
            "milliseconds": {way: round(1e3 * value, 4) for way, value in times.items()},
            "times slower than the closed form": {
                way: round(value / times["closed form"], 2) for way, value in times.items()
            },
        }
    print(json.dumps(results, indent=2))
    path = Path(__file__).parent / "results" / "dp.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
