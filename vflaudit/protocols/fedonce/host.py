"""The host's side: labels, loss, training on its own columns and the representations (Algorithm 1, lines 18-30)."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.protocols.fedonce.descent import Descent, Training, batches, descend
from vflaudit.protocols.fedonce.gradients import Network
from vflaudit.protocols.training import Labels


class HostLoss:
    """Each sample's gradient at the outputs: softmax minus label (cross-entropy), or output minus label (squared)."""

    def __init__(self, data: VerticalDataset, rows: Array, kind: str) -> None:
        labels = Labels(data)
        self.centre, self.scale, self.task = labels.centre, labels.scale, data.task
        self.squared = data.task == "regression" or kind == "squared"
        targets = labels.targets.numpy()[rows]
        self.targets = targets[:, None] if data.task == "regression" else np.eye(len(data.classes))[targets]

    @property
    def outputs(self) -> int:
        """Width of the last layer."""
        return self.targets.shape[1]

    def __call__(self, outputs: Array, rows: Array, epoch: int) -> tuple[Array, float]:
        targets, count = self.targets[rows], max(1, len(rows))
        if self.squared:
            difference = outputs - targets
            return difference, 0.5 * float(np.einsum("ij,ij->", difference, difference)) / count
        logs = log_softmax(outputs, axis=1)
        return np.exp(logs) - targets, -float(np.einsum("ij,ij->", logs, targets)) / count


def train_host(
    network: Network,
    parameters: Array,
    features: Array,
    representations: Array | None,
    loss: HostLoss,
    training: Training,
    seed: int,
    *,
    keep: bool = False,
) -> Descent:
    """Algorithm 1, lines 20-30. The seed decides batches and noise."""
    return descend(
        network,
        np.array(parameters, dtype=network.dtype),
        np.asarray(features, dtype=network.dtype),
        loss,
        training,
        batches(training, len(features), stream(seed, "batches")),
        stream(seed, "noise"),
        side=representations,
        keep=keep,
    )
