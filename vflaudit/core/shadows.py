"""Shadow models: the same protocol, trained again by the adversary on rows of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vflaudit.core.dataset import Array

if TYPE_CHECKING:
    from vflaudit.core.run import Model


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Models of one architecture, each trained on its own subset of the adversary's rows with its own seed."""

    models: tuple[Model, ...]

    def __len__(self) -> int:
        return len(self.models)

    def predict(self, features: Mapping[str, Array]) -> Array:
        """Class probabilities (shadows, rows, classes), or predicted values (shadows, rows)."""
        return np.stack([model.predict(features) for model in self.models])
