"""The networks of vFedSec, appendix A.1: local modules, the Secure Layer's slices, the global module."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array, Block
from vflaudit.errors import InputError

HIDDEN = {"linear": 64, "mlp": 128, "cnn": 600}  # outputs of the Secure Layer (A.1)


class Slice(nn.Module):
    """One cluster's part: its local module f_i and its slice W_i of the Secure Layer (eq. 1).

    A.1 gives tabular data one linear layer in all ('equivalent to Linear(80, 64)'): there the embedding H_i is the
    columns themselves. Only the active party's slice has a bias.
    """

    def __init__(self, local: nn.Module, width: int, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.local = local
        self.secure = nn.Linear(width, hidden, bias=bias)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.secure(self.local(values))


def build_slice(model: str, block: Block, hidden: int, *, active: bool) -> Slice:
    """The slice over one party's columns. A.1 describes passive parties; the active one has the same local module."""
    if model == "linear":
        return Slice(nn.Identity(), block.width, hidden, bias=active)
    if model == "mlp":
        return Slice(nn.Sequential(nn.Linear(block.width, 32), nn.ReLU()), 32, hidden, bias=active)
    if block.image is None or min(block.image) < 4:
        raise InputError("model 'cnn' needs image patches of 4x4 or more at every party: use --partition slices")
    height, breadth = block.image
    local = nn.Sequential(
        nn.Unflatten(1, (1, height, breadth)),
        nn.Conv2d(1, 32, 3, padding=1),  # padding keeps a slice of 7x28 large enough for two poolings
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return Slice(local, 64 * (height // 4) * (breadth // 4), hidden, bias=active)


class GlobalModule(nn.Module):
    """What the server computes from the Secure Layer's output; ReLU everywhere but at the end (A.1).

    Two classes have one output (Linear(64, 1)), here as the logit of the second against zero for the first.
    """

    def __init__(self, model: str, hidden: int, outputs: int) -> None:
        super().__init__()
        widths: list[int] = {"linear": [], "mlp": [256, 128, 64], "cnn": [120]}[model]
        self.single = outputs == 2
        sizes = [hidden, *widths, 1 if self.single else outputs]
        layers: list[nn.Module] = []
        for inputs, size in pairwise(sizes):
            layers += [nn.ReLU(), nn.Linear(inputs, size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        values = self.layers(joined)
        return torch.cat([torch.zeros_like(values), values], dim=-1) if self.single else values


class WholeNetwork(nn.Module):
    """All slices and the global module as one network over one representative of each cluster: the released model."""

    def __init__(self, slices: Sequence[Slice], top: GlobalModule) -> None:
        super().__init__()
        self.slices = nn.ModuleList(slices)
        self.top = top

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        products = [part(values) for part, values in zip(self.slices, parts, strict=True)]
        return self.top(torch.stack(products).sum(dim=0))


def flat(module: nn.Module) -> Array:
    """All parameters as one vector, in the module's order."""
    return torch.cat([value.detach().reshape(-1) for value in module.parameters()]).numpy().copy()


def flat_gradient(module: nn.Module) -> Array:
    """All gradients as one vector; zero where nothing was computed."""
    parts = [torch.zeros_like(v) if v.grad is None else v.grad for v in module.parameters()]
    return torch.cat([part.reshape(-1) for part in parts]).numpy().copy()


def load_flat(module: nn.Module, values: Array, *, gradient: bool = False) -> None:
    """Set the parameters (or their gradients) from one vector."""
    start = 0
    for parameter in module.parameters():
        part = torch.from_numpy(np.array(values[start : start + parameter.numel()], dtype=np.float32))
        start += parameter.numel()
        with torch.no_grad():
            if gradient:
                parameter.grad = part.view_as(parameter)
            else:
                parameter.copy_(part.view_as(parameter))
