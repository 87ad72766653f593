"""What the trees learn: gradients and hessians of the loss, and predictions from margins."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, softmax

from vflaudit.core.dataset import Array, VerticalDataset


def probabilities(margins: Array) -> Array:
    """Class probabilities, (rows, classes); one margin stands for the second of two classes."""
    if margins.shape[1] == 1:
        return np.hstack([1 - expit(margins), expit(margins)])
    return softmax(margins, axis=1)


class Link:
    """From margins to probabilities, or to values in the label's unit."""

    def __init__(self, task: str, centre: float, scale: float) -> None:
        self.task, self.centre, self.scale = task, centre, scale

    def __call__(self, margins: Array) -> Array:
        return margins[:, 0] * self.scale + self.centre if self.task == "regression" else probabilities(margins)


class Objective:
    """The host's side of the loss: squared error of the standardised label, or cross-entropy."""

    def __init__(self, data: VerticalDataset, rows: Array) -> None:
        labels = data.labels[rows]
        self.link = Link(data.task, 0.0, 1.0)
        if data.task == "regression":
            self.link = Link(data.task, float(labels.mean()), float(labels.std()) or 1.0)
            self.targets = ((labels - self.link.centre) / self.link.scale)[:, None]
        elif len(data.classes) == 2:
            self.targets = labels[:, None].astype(np.float64)
        else:
            self.targets = np.eye(len(data.classes))[labels]

    def gradients(self, margins: Array) -> Array:
        """g and h of every row and output: (rows, outputs, 2)."""
        if self.link.task == "regression":
            return np.stack([margins - self.targets, np.ones_like(margins)], axis=2)
        likely = probabilities(margins)[:, -self.targets.shape[1] :]
        return np.stack([likely - self.targets, likely * (1 - likely)], axis=2)
