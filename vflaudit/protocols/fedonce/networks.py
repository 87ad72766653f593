"""FedOnce's networks (Tables 2 and 3, Fig. 4): FC and CNN guests, and the host's local model with its aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from vflaudit.core.dataset import Block
from vflaudit.errors import InputError


def fully_connected(width: int, hidden: Sequence[int], outputs: int, *, tanh: bool = False) -> nn.Sequential:
    """FC(m x n): hidden layers of m and n nodes with ReLU, then the outputs (5.1, Models)."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs), *([nn.Tanh()] if tanh else []))


def cnn0(image: tuple[int, ...], hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """CNN0 of Fig. 4 and its FC layers: two 3x3 convolutions (32 and 64 channels), one pooling.

    The authors' code adds dropout; the paper does not speak of it, and it is left out.
    """
    height, width = image
    if min(image) < 6:
        raise InputError(f"cnn0 needs patches of 6x6 pixels or more, not {height}x{width}: use guest_model=fc")
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    convolutions = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(
        nn.Unflatten(1, (1, height, width)), *convolutions, nn.Flatten(), *fully_connected(flat, hidden, outputs)
    )


def cnn1(image: tuple[int, ...], hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """CNN1 of Fig. 4: an 8x8 and a 4x4 convolution with stride 2, each with an overlapping 2x2 pooling."""
    height, width = image
    if min(image) < 14:
        raise InputError(f"cnn1 needs patches of 14x14 pixels or more, not {height}x{width}: use guest_model=fc")
    sides = [((side - 2) // 2 - 4) // 2 for side in image]
    first = (nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1))
    second = (nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1))
    flat = 32 * sides[0] * sides[1]
    return nn.Sequential(
        nn.Unflatten(1, (1, height, width)), *first, *second, nn.Flatten(), *fully_connected(flat, hidden, outputs)
    )


def local_model(kind: str, block: Block, hidden: Sequence[int], outputs: int, *, tanh: bool = False) -> nn.Sequential:
    """What a party computes from its own columns."""
    if kind == "fc":
        return fully_connected(block.width, hidden, outputs, tanh=tanh)
    if block.image is None:
        raise InputError(f"{kind} needs an image patch at every party: use --partition quadrants or guest_model=fc")
    return (cnn0 if kind == "cnn0" else cnn1)(block.image, hidden, outputs)


class HostNetwork(nn.Module):
    """The host's model f_w: a local model of its own columns, joined with R, then the aggregation layers.

    Algorithm 2 and 3.2 (multi-round) give every party a local model, and the host "additionally" an aggregation model;
    the host column of Tables 2 and 3 is the latter. The host trains both together on the labels.
    """

    def __init__(self, own: nn.Sequential, aggregate: nn.Sequential) -> None:
        super().__init__()
        self.own, self.aggregate = own, aggregate

    def forward(self, values: torch.Tensor, representations: torch.Tensor) -> torch.Tensor:
        return self.aggregate(torch.cat([self.own(values), representations], dim=1))


class OneShotNetwork(nn.Module):
    """Guest models and the host model as one module, for the released model. A late guest counts as zeros (App. C)."""

    def __init__(self, guests: Mapping[str, nn.Module], host: HostNetwork, late: Sequence[str] = ()) -> None:
        super().__init__()
        self.guests = nn.ModuleDict(guests)
        self.host, self.late = host, frozenset(late)

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        own, *others = parts
        sent = [
            torch.zeros_like(guest(values)) if name in self.late else guest(values)
            for (name, guest), values in zip(self.guests.items(), others, strict=True)
        ]
        return self.host(own, torch.cat([*sent, own[:, :0]], dim=1))
