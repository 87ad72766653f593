"""Autoencoders as in APC-VFL: SELU, symmetric (Table I), trained with Adam (V-A f) on eq. 1 or eq. 9."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError
from vflaudit.protocols.networks import seeded, to_tensor
from vflaudit.protocols.shadows.stacked import along, fused_adam, pooled, together

Latent = Literal["selu", "linear"]
Error = Literal["mse", "mae"]
Reduction = Literal["sum", "mean"]


class Autoencoder(nn.Module):
    """Encoder g and decoder f with the same widths in reverse; the reconstruction itself has no activation."""

    def __init__(self, width: int, layers: Sequence[int], latent: Latent = "selu") -> None:
        super().__init__()
        sizes = (width, *layers)
        encoder: list[nn.Module] = []
        for before, after in pairwise(sizes):
            encoder += [nn.Linear(before, after), nn.SELU()]
        decoder: list[nn.Module] = []
        for before, after in pairwise(reversed(sizes)):
            decoder += [nn.Linear(before, after), nn.SELU()]
        self.encoder = nn.Sequential(*(encoder if latent == "selu" else encoder[:-1]))
        self.decoder = nn.Sequential(*decoder[:-1])

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Latent representation and reconstruction."""
        latent = self.encoder(values)
        return latent, self.decoder(latent)

    @torch.no_grad()
    def encode(self, values: Array) -> Array:
        """Representations of these rows."""
        return self.encoder(to_tensor(values)).numpy()


def make_autoencoder(width: int, layers: Sequence[int], latent: Latent, seed: int, *path: str) -> Autoencoder:
    """An autoencoder with PyTorch's default initialisation from a named stream."""
    made = seeded(partial(Autoencoder, width, layers, latent), seed, *path)
    assert isinstance(made, Autoencoder)
    return made


@dataclass(frozen=True)
class Training:
    """Adam with the step size of its authors (V-A f); the paper leaves epochs and batches open."""

    epochs: int = 100
    batch_size: int = 32
    learning_rate: float = 0.001
    decorrelation: float = 0.0  # not in the paper


@dataclass(frozen=True, eq=False)
class Teacher:
    """What the distillation compares with: a joint representation for some rows (`known`), rubbish for the others."""

    joint: torch.Tensor
    known: torch.Tensor
    weight: float = 0.01
    error: Error = "mse"
    reduction: Reduction = "sum"


def reconstruction_loss(model: Autoencoder, values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Eq. 1: the mean squared error of the reconstruction."""
    return nn.functional.mse_loss(model(values[rows])[1], values[rows])


def distance_correlation(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How far distances between rows of one table follow those of another, 0 to 1 (Szekely, Rizzo, Bakirov 2007).

    As a penalty it makes representations tell less about their inputs (NoPeek: Vepakomma, Singh, Gupta, Raskar 2020).
    """

    def centred(values: torch.Tensor) -> torch.Tensor:
        square = (values.unsqueeze(1) - values.unsqueeze(0)).square().sum(dim=2)
        distances = (square + 1e-9).sqrt()  # the root has no slope at zero
        return distances - distances.mean(dim=0) - distances.mean(dim=1, keepdim=True) + distances.mean()

    a, b = centred(left), centred(right)
    covariance, sizes = (a * b).mean(), (a.square().mean() * b.square().mean()).sqrt()
    return (covariance.clamp(min=0) / (sizes + 1e-12) + 1e-12).sqrt()


def distillation_loss(model: nn.Module, values: torch.Tensor, rows: torch.Tensor, teacher: Teacher) -> torch.Tensor:
    """Eq. 9, averaged over the rows."""
    return distillation_losses(model, values, rows, teacher).mean()


def distillation_losses(model: nn.Module, values: torch.Tensor, rows: torch.Tensor, teacher: Teacher) -> torch.Tensor:
    """Eq. 9 for each row: reconstruction, and for aligned rows lambda times the distance to z_A.

    As printed, both terms are sums over the coordinates of a row; `reduction="mean"` averages each, as the names MSE
    and MAE say, which makes the second term smaller by the ratio of the two widths.
    """
    latent, rebuilt = model(values[rows])
    apart = latent - teacher.joint[rows]
    squared = (rebuilt - values[rows]).square()
    distance = apart.square() if teacher.error == "mse" else apart.abs()
    if teacher.reduction == "sum":
        own, distilled = squared.sum(dim=-1), distance.sum(dim=-1)
    else:
        own, distilled = squared.mean(dim=-1), distance.mean(dim=-1)
    return own + teacher.weight * teacher.known[rows] * distilled


def train(
    model: Autoencoder,
    values: Array,
    training: Training,
    rng: np.random.Generator,
    *,
    teacher: Teacher | None = None,
    after_epoch: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train on these rows; returns the loss of every epoch. Without a teacher, plain reconstruction."""
    inputs = to_tensor(values)
    optimiser = fused_adam(training.learning_rate)(model.parameters())

    def step(batch: Array, epoch: int) -> float:
        rows = torch.from_numpy(batch)
        if teacher is None:
            loss = reconstruction_loss(model, inputs, rows)
            if training.decorrelation and len(rows) > 2:
                latent = model.encoder(inputs[rows])
                loss = loss + training.decorrelation * distance_correlation(inputs[rows], latent)
        else:
            loss = distillation_loss(model, inputs, rows, teacher)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return along(schedule(training, len(inputs), rng, after_epoch), step)


def schedule(
    training: Training,
    count: int,
    rng: np.random.Generator,
    after_epoch: Callable[[int, float], None] | None = None,
    start: int = 0,
) -> Generator[tuple[Array, int], float, list[float]]:
    """Batches of so many rows, which begin at `start`, and their epochs; it is sent each batch's loss."""
    losses: list[float] = []
    for epoch in range(training.epochs):
        order, total = rng.permutation(count), 0.0
        for first in range(0, count, training.batch_size):
            batch = order[first : first + training.batch_size]
            total += (yield batch + start, epoch) * len(batch)
        if not math.isfinite(total):
            raise InputError(
                f"training diverged in epoch {epoch + 1}: use a learning_rate below {training.learning_rate}"
            )
        losses.append(total / count)
        if after_epoch is not None:
            after_epoch(epoch, losses[-1])
    return losses


@dataclass(frozen=True, eq=False)
class Lesson:
    """An autoencoder to train: the rows, the order of batches, and a teacher if there is one."""

    model: Autoencoder
    values: Array
    rng: np.random.Generator
    teacher: Teacher | None = None


def train_many(lessons: Sequence[Lesson], training: Training) -> None:
    """`train` on every lesson, all at once. They have the same widths, and all of them or none have a teacher."""
    teachers = [lesson.teacher for lesson in lessons if lesson.teacher is not None]
    tables = [
        [to_tensor(lesson.values), *([lesson.teacher.joint, lesson.teacher.known] if lesson.teacher else [])]
        for lesson in lessons
    ]
    (inputs, *taught), starts = pooled(tables)
    teacher = replace(teachers[0], joint=taught[0], known=taught[1]) if teachers else None

    def losses(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        if teacher is not None:
            return distillation_losses(model, inputs, rows, teacher)
        return (model(inputs[rows])[1] - inputs[rows]).square().mean(dim=-1)

    schedules = [
        schedule(training, len(lesson.values), lesson.rng, start=start)
        for lesson, start in zip(lessons, starts, strict=True)
    ]
    together([lesson.model for lesson in lessons], fused_adam(training.learning_rate), schedules, losses)


def fit_autoencoder(
    values: Array, layers: Sequence[int], latent: Latent, training: Training, seed: int, *path: str
) -> Autoencoder:
    """An autoencoder of these rows, trained from scratch."""
    lesson = first_lesson(values, layers, latent, seed, *path)
    train(lesson.model, lesson.values, training, lesson.rng)
    return lesson.model


def first_lesson(values: Array, layers: Sequence[int], latent: Latent, seed: int, *path: str) -> Lesson:
    """A new autoencoder for these rows, and the order of its batches."""
    return Lesson(
        make_autoencoder(values.shape[1], layers, latent, seed, *path), values, stream(seed, *path, "batches")
    )
