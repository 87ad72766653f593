"""The networks of SplitNN and its baselines: bottoms at the feature holders, a top where they meet."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array, Block
from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError


def seeded(build: Callable[[], nn.Module], seed: int, *path: str) -> nn.Module:
    """Build a module with PyTorch's default initialisation, drawn from a named stream instead of global randomness."""
    generator = torch.Generator().manual_seed(child_seed(seed, *path, "init"))
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device="cpu")
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            fan_in = part.weight[0].numel()
            bound = 1 / math.sqrt(fan_in)  # kaiming_uniform with a = sqrt(5), as nn.Linear.reset_parameters
            with torch.no_grad():
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.bias is not None:
                    part.bias.uniform_(-bound, bound, generator=generator)
        elif isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.reset_parameters()  # ones and zeros: nothing is drawn
        elif next(part.parameters(recurse=False), None) is not None:
            raise TypeError(f"no seeded initialisation for {type(part).__name__}")
    return module


def bottom(kind: str, block: Block, width: int, *, activate: bool) -> nn.Module:
    """What a feature holder computes: one linear layer (mlp, lr) or a small convolution (cnn)."""
    tail: list[nn.Module] = [nn.ReLU()] if activate else []
    if kind != "cnn":
        return nn.Sequential(nn.Linear(block.width, width), *tail)
    if block.image is None or min(block.image) < 4:
        raise InputError(
            "model 'cnn' needs image patches of 4x4 or more at every party: use --partition quadrants or slices"
        )
    height, breadth = block.image
    return nn.Sequential(
        nn.Unflatten(1, (1, height, breadth)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (breadth // 2), width),
        *tail,
    )


class Top(nn.Module):
    """Joins what the feature holders sent (side by side, or as a sum) and finishes the forward pass."""

    def __init__(self, width: int, outputs: int, *, aggregation: str, activate: bool, linear: bool) -> None:
        super().__init__()
        self.aggregation = aggregation
        layers: list[nn.Module] = [nn.ReLU()] if activate else []
        if not linear:
            layers.append(nn.Linear(width, outputs))
        self.layers = nn.Sequential(*layers)

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        joined = torch.stack(parts).sum(dim=0) if self.aggregation == "sum" else torch.cat(parts, dim=-1)
        return self.layers(joined)


class JoinedNetwork(nn.Module):
    """One network over everybody's columns side by side."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return self.network(torch.cat(parts, dim=-1))


class SplitNetwork(nn.Module):
    """Bottoms and a top as one module, for prediction and for training at one place."""

    def __init__(self, bottoms: Mapping[str, nn.Module], top: nn.Module) -> None:
        super().__init__()
        self.bottoms = nn.ModuleDict(bottoms)
        self.top = top

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return self.top([part(values) for part, values in zip(self.bottoms.values(), parts, strict=True)])


class Predictor:
    """A released model: per-party features in, predictions out. It holds a copy of the parameters and nothing else."""

    def __init__(self, network: nn.Module, parties: tuple[str, ...], task: str, centre: float, scale: float) -> None:
        self.network = copy.deepcopy(network).eval()
        self.parties, self.task, self.centre, self.scale = parties, task, centre, scale

    @torch.no_grad()
    def __call__(self, features: Mapping[str, Array]) -> Array:
        outputs = self.network([to_tensor(features[party]) for party in self.parties])
        return outputs_to_predictions(outputs, self.task, self.centre, self.scale)


def to_tensor(values: Array) -> torch.Tensor:
    """Float32, as everything on the wire."""
    return torch.from_numpy(np.array(values, dtype=np.float32))


def parameters_of(module: nn.Module) -> dict[str, Array]:
    """Parameters as arrays of their own."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def outputs_to_predictions(outputs: torch.Tensor, task: str, centre: float, scale: float) -> Array:
    """Class probabilities, or values in the label's own unit."""
    if task == "classification":
        return torch.softmax(outputs.double(), dim=1).numpy()
    return outputs[:, 0].double().numpy() * scale + centre


def utility_of(predictions: Array, labels: Array, task: str) -> Mapping[str, float]:
    """Accuracy, or root-mean-square error in the label's unit (RAP 4.1)."""
    if task == "classification":
        return {"accuracy": float((predictions.argmax(axis=1) == labels).mean())}
    return {"rmse": float(np.sqrt(np.mean((predictions - labels) ** 2)))}
