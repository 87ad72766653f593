"""Epochs, mini-batches and early stopping, the same for every variant (V-A, V-B)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.errors import InputError


@dataclass(frozen=True)
class Training:
    """How one phase is trained. `patience` None: no early stopping."""

    epochs: int
    batch_size: int
    patience: int | None
    shuffle: bool
    learning_rate: float
    weight_decay: float

    def adam(self, *modules: nn.Module) -> torch.optim.Optimizer | None:
        """Adam over the parameters of these modules; none if they have none."""
        parameters = [parameter for module in modules for parameter in module.parameters()]
        if not parameters:
            return None
        return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)


def fit(
    training: Training,
    rows: Array,
    rng: np.random.Generator,
    step: Callable[[Array, int], float],
    validate: Callable[[int], float] | None,
) -> list[float]:
    """Run `step(batch rows, epoch)`; stop early when `validate(epoch)`, the higher the better, no longer improves.

    Returns the mean loss of each epoch. A last batch of one row is left out: batch norm cannot do with it. As in the
    authors' code, training ends with the last parameters, not with the best.
    """
    losses: list[float] = []
    best, waited = -math.inf, 0
    for epoch in range(training.epochs):
        order = rng.permutation(rows) if training.shuffle else rows
        cuts = range(training.batch_size, len(order), training.batch_size)
        batches = [batch for batch in np.split(order, list(cuts)) if len(batch) > 1]
        losses.append(sum(step(batch, epoch) * len(batch) for batch in batches) / sum(map(len, batches)))
        if not math.isfinite(losses[-1]):
            raise InputError(f"training diverged: use a learning_rate below {training.learning_rate}")
        if training.patience is None or validate is None:
            continue
        score = validate(epoch)
        waited = 0 if score > best else waited + 1
        best = max(best, score)
        if waited > training.patience:
            break
    return losses
