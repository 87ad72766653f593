"""Many networks of one architecture, trained at once: their parameters stacked, one batched product for all of them.

Every network has its own rows, its own order of batches and its own end of training. They go in lockstep: the k-th step
of each is taken together, so one optimiser serves all, and a network whose training is over leaves the stack with the
parameters that it has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array

Schedule = Generator[tuple[Array, int], float, Any]  # gives a batch's rows and the epoch, and is told the batch's loss
LARGEST_STACK = 2**19  # parameters: more of them, with gradients and Adam's moments, leave the cache at every step
ELEMENTWISE = (nn.ReLU, nn.SELU, nn.Tanh, nn.Identity)


def along(schedule: Schedule, step: Callable[[Array, int], float]) -> Any:
    """Take every step of one schedule; returns what it returns at its end."""
    rows, epoch = next(schedule)
    while True:
        loss = step(rows, epoch)
        try:
            rows, epoch = schedule.send(loss)
        except StopIteration as end:
            return end.value


class StackedLinear(nn.Module):
    """Linear layers side by side: weights (networks, inputs, outputs), for values (networks, rows, inputs)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        biases = [layer.bias.detach()[None] for layer in layers if layer.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases)) if biases else None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.bmm(values, self.weight)
        return torch.baddbmm(self.bias, values, self.weight)


def stackable(module: nn.Module) -> bool:
    """Whether the module is made of linear layers and functions of single numbers."""
    leaves = [part for part in module.modules() if not list(part.children())]
    return all(isinstance(part, (nn.Linear, nn.Sequential, *ELEMENTWISE)) for part in leaves)


def stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """One module whose parameters have a leading axis of networks; its forward is the modules' own."""
    if isinstance(modules[0], nn.Linear):
        return StackedLinear([module for module in modules if isinstance(module, nn.Linear)])
    twin = copy.copy(modules[0])
    children = [dict(module.named_children()) for module in modules]
    twin._modules = {name: stacked([each[name] for each in children]) for name in children[0]}
    return twin


def together(
    modules: Sequence[nn.Module],
    optimise: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    schedules: Sequence[Schedule],
    row_losses: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> list[Any]:
    """Train every module along its own schedule until that ends; the modules hold the result.

    Returns what each schedule returned at its end. `row_losses(network, rows)` is the loss of each row (networks,
    batch), whose mean over a batch is the batch's loss. The rows of all schedules are positions in the same tables.
    """
    size = max(1, LARGEST_STACK // max(1, sum(parameter.numel() for parameter in modules[0].parameters())))
    ends: list[Any] = []
    for start in range(0, len(modules), size):
        some = slice(start, start + size)
        ends += _lockstep(modules[some], optimise, schedules[some], row_losses)
    return ends


def _lockstep(
    modules: Sequence[nn.Module],
    optimise: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    schedules: Sequence[Schedule],
    row_losses: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> list[Any]:
    """`together` for modules that fit into one stack."""
    network = stacked(modules)
    optimiser = optimise(network.parameters())
    ends: list[Any] = [None] * len(modules)
    running, batches = list(range(len(modules))), [next(schedule)[0] for schedule in schedules]
    while running:
        rows, shares = padded(batches)
        values = row_losses(network, torch.from_numpy(rows))
        losses = values.mean(dim=1) if shares is None else (values * torch.from_numpy(shares).to(values)).sum(dim=1)
        optimiser.zero_grad()
        losses.sum().backward()
        optimiser.step()
        batches, stay = [], []
        for place, (which, loss) in enumerate(zip(running, losses.tolist(), strict=True)):
            try:
                batches.append(schedules[which].send(loss)[0])
                stay.append(place)
            except StopIteration as end:
                ends[which] = end.value
                _write(modules[which], [parameter[place] for parameter in network.parameters()])
        if len(stay) < len(running):
            running = [running[place] for place in stay]
            _keep(network, optimiser, torch.tensor(stay, dtype=torch.long))
    return ends


def padded(batches: Sequence[Array]) -> tuple[Array, Array | None]:
    """Batches as one array of rows, and each row's share of its batch: none where all batches have one length."""
    lengths = np.array([len(batch) for batch in batches])
    longest = int(lengths.max())
    if lengths.min() == longest:
        return np.stack(batches), None
    rows = np.stack([np.concatenate([batch, np.repeat(batch[:1], longest - len(batch))]) for batch in batches])
    return rows, (np.arange(longest) < lengths[:, None]) / lengths[:, None]


def _write(module: nn.Module, values: Sequence[torch.Tensor]) -> None:
    """Put one network's parameters back into its module; a stacked weight is transposed, a bias has one row."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value.T if parameter.dim() == 2 else value[0])


def _keep(network: nn.Module, optimiser: torch.optim.Optimizer, places: torch.Tensor) -> None:
    """Leave only these networks in the stack, with the optimiser's moments of theirs."""
    for layer in network.modules():
        for name, before in list(layer.named_parameters(recurse=False)):
            after = nn.Parameter(before.detach()[places])
            setattr(layer, name, after)
            state = optimiser.state.pop(before, {})  # Adam's number of steps is one number for all
            optimiser.state[after] = {key: value[places] if value.dim() else value for key, value in state.items()}
    optimiser.param_groups[0]["params"] = list(network.parameters())


def pooled(tables: Sequence[Sequence[torch.Tensor]]) -> tuple[list[torch.Tensor], list[int]]:
    """All networks' tables (inputs, targets, ...) one after another, and where each network's rows begin.

    Where all networks have the same tables, one copy serves them.
    """
    first = tables[0]
    if all(torch.equal(mine, other) for each in tables[1:] for mine, other in zip(each, first, strict=True)):
        return list(first), [0] * len(tables)
    starts = np.cumsum([0, *(len(each[0]) for each in tables[:-1])]).tolist()
    return [torch.cat(list(parts)) for parts in zip(*tables, strict=True)], starts


def row_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy for classes, else the squared error averaged over the outputs: one number per network and row."""
    if targets.is_floating_point():
        return (outputs - targets.view_as(outputs)).square().mean(dim=-1)
    losses = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def fused_adam(rate: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Adam with PyTorch's defaults in one pass over the memory, which the stack's many parameters are worth."""
    return lambda parameters: torch.optim.Adam(parameters, lr=rate, fused=True)
