"""Encoder evaluation (IV-A): how good a representation is after every epoch, by probing it (Alg. 1, eq. 7 and 8).

The paper uses it to design encoders, outside of any federation. Labels are needed, so only whoever has them can.

    from vflaudit.protocols.apcvfl.evaluation import evaluate_encoder
    found = evaluate_encoder(values, labels, (64, 128))
    found.overcomplete, found.quality[-1], found.reference, found.equivalent(0.01)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError
from vflaudit.protocols.apcvfl.autoencoders import Latent, Training, make_autoencoder, train
from vflaudit.protocols.apcvfl.classifier import cross_validated


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of Alg. 1. Arrays have one row per epoch probed; `folds` has a column per fold."""

    overcomplete: bool
    epochs: Array
    losses: Array
    folds: Array
    reference_folds: Array

    @property
    def quality(self) -> Array:
        """The mean of the metrics after each epoch probed."""
        return self.folds.mean(axis=1)

    @property
    def reference(self) -> float:
        """The same mean on the original columns."""
        return float(self.reference_folds.mean())

    def equivalent(self, threshold: float) -> bool:
        """Eq. 8 at the last epoch: representations tell as much as the columns, up to the threshold r."""
        return bool(self.reference - self.quality[-1] <= threshold)


def evaluate_encoder(
    values: Array,
    labels: Array,
    layers: Sequence[int],
    *,
    training: Training | None = None,
    latent: Latent = "selu",
    folds: int = 10,
    every: int = 1,
    seed: int = 0,
) -> Evaluation:
    """Train an autoencoder and probe its representations with logistic regression after every `every` epochs (Alg. 1).

    The metric is accuracy (Fig. 4). `values` are standardised columns; the latent width is the last of `layers`, and
    the autoencoder is overcomplete if it exceeds the number of columns (the text of II-b; its formula has it reversed).
    """
    if every < 1:
        raise InputError(f"every={every}: expected a number of epochs of 1 or more")
    training = training or Training()
    reference = cross_validated(values, labels, folds, seed)
    if not reference:
        raise InputError("encoder evaluation needs two classes with two rows each at least")
    model = make_autoencoder(values.shape[1], layers, latent, seed, "evaluation")
    epochs, found = [], []

    def probe(epoch: int, loss: float) -> None:
        if (epoch + 1) % every == 0 or epoch + 1 == training.epochs:
            epochs.append(epoch + 1)
            found.append(cross_validated(model.encode(values), labels, folds, seed))

    losses = train(model, values, training, stream(seed, "evaluation", "batches"), after_epoch=probe)
    return Evaluation(
        overcomplete=layers[-1] > values.shape[1],
        epochs=np.array(epochs),
        losses=np.array(losses)[np.array(epochs) - 1],
        folds=np.array(found),
        reference_folds=np.array(reference),
    )
