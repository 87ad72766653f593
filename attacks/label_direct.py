"""Labels in the open: where parties' outputs are only added up, the gradient that each gets back is p - e_y itself.

Fu et al., 'Label inference attacks against vertical federated learning' (USENIX Security 2022), direct label
inference: without a top model the gradient at the outputs is negative at the row's class and positive elsewhere.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from attacks.label_gradient import CLASSES, GRADIENTS, Returned, at_outputs, returned_gradients
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View


def at_classes(view: View, epochs: int = 1) -> list[Returned]:
    """Returned gradients with one number per class."""
    classes = len(view.spec.classes)
    return [table for table in returned_gradients(view, epochs=epochs) if table.values.shape[1] == classes]


class DirectLabel(Attack):
    """Read the class of every row off the signs of gradients at the outputs (splitnn with model=lr).

    `verified` says that all gradients have the shape of p - e_y; with noise on them they have not, and means over
    epochs and over colluding guests, whose noise is drawn apart, still tell.
    """

    name: ClassVar[str] = "direct-label"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (
        CLASSES,
        GRADIENTS,
        Requirement("gradients with one number per class (splitnn with model=lr)", lambda view: bool(at_classes(view))),
    )
    first_epochs: int = Field(1, ge=1, description="average each row's gradients over so many epochs, against noise")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        tables = at_classes(view, self.first_epochs)
        first, gradients = tables[0], np.mean([table.values for table in tables], axis=0)
        return {
            "labels": RowGuess(first.rows, -gradients, shuffled=first.shuffled),
            "verified": at_outputs(gradients, len(view.spec.classes)),
            "notes": {"guests": len(tables), "rows": len(first.rows)},
        }
