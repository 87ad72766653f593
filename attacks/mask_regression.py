"""The masks that are sent along undo the layer that is to hide the features (TabVFL, Alg. 1 and IV-A)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks import mask_messages as messages
from attacks.base import FeatureAttack, Requirement
from attacks.mask_algebra import Found, Step, regress, solve
from attacks.mask_columns import Signals, in_units
from attacks.mask_planes import carried, filled, normals, readings, shifted, window
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.core.wire import Message
from vflaudit.errors import InputError

SOLVED = 1e-9  # share of the variance left over at which there is nothing more to find
MASKS = Requirement("masks and intermediate results (the host of tabvfl)", messages.has_masks)


class MaskRegression(FeatureAttack):
    """Solve intermediate results and masks for the features that the FC layer is to hide.

    A guest sends z = b_t + sum_j (1 - m_ij) x_ij a_tj with masks m that the host knows; a_t and b_t change with every
    batch. What was served after training ties all rows to one map, which also reads rows that were never masked.
    - bilinear: rows and maps by alternating least squares over the epochs, all maps free. Needs rows that it can link;
      the FC layer may be narrower than the columns.
    - per-sample: as if the map never changed, regress each row's messages on its masks. Needs rows that it can link.
    - null-space: rows whose cell j is masked lie in a hyperplane whose normal reads x_j. One batch with enough of them
      will do, in any order; needs as many numbers per row as columns.
    A column's factor comes from the public fact that columns are standardised, or from known people; its sign from
    known people or the skewness of a sample; one-hot columns need neither, because a group sums to one.
    """

    name: ClassVar[str] = "mask-regression"
    requires: ClassVar[tuple[Requirement, ...]] = (MASKS,)
    method: Literal["auto", "bilinear", "per-sample", "null-space"] = Field(
        "auto", description="auto: bilinear if rows can be linked, begun where null-space ends; else null-space"
    )
    epochs: int = Field(50, ge=1, description="the last epochs of pretraining to use")
    served: bool = Field(True, description="also use what was sent after pretraining")
    iterations: int = Field(200, ge=1, description="of alternating least squares, at most")
    signs: Literal["likely", "arbitrary"] = Field(
        "likely", description="arbitrary: full size whatever the odds of the sign, for measuring |correlation|"
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features: dict[str, RowGuess] = {}
        notes: dict[str, Any] = {"method": {}}
        for party in self.victims(view):
            found = [m for m in messages.intermediates(view, party, self.epochs) if "mask" in m.arrays]
            if not found:
                raise InputError(f"attack {self.name!r}: the view has no masks from {party!r}")
            method = self._method(linked=messages.linkable(view, party))
            notes["method"][party] = method
            if method == "null-space":
                signals = self._planes(view, party, found)
            else:
                solved = self._regression(view, party, found, method)
                scale = messages.scale_rows(view, party, solved.rows)
                signals = Signals(solved.rows, solved.values, scale)
                notes.setdefault("residual", {})[party] = solved.residual
                notes.setdefault("iterations", {})[party] = solved.iterations
            values = in_units(view, party, signals, certain=self.signs == "arbitrary")
            features[party] = RowGuess(signals.rows, values, shuffled=signals.shuffled)
        return {"features": features, "notes": notes}

    def _method(self, *, linked: bool) -> str:
        if self.method in ("bilinear", "per-sample") and not linked:
            raise InputError(
                f"attack {self.name!r}: method={self.method} needs messages that name their rows; expected null-space"
            )
        return self.method if self.method != "auto" else "bilinear" if linked else "null-space"

    def _regression(self, view: View, party: str, found: list[Message], method: str) -> Found:
        steps, after, whole = messages.steps_of(found), messages.served(view, party), None
        if self.served and after is not None and after.rows is not None:
            kept = np.ones((len(after.rows), steps[0].kept.shape[1]))
            whole = Step(after.rows, kept, messages.numbers(after))
        if method == "per-sample":
            return regress(steps, whole, view.spec.rows)
        count, begun = view.spec.rows, None
        if self.method == "auto" and whole is not None and whole.sent.shape[1] >= whole.kept.shape[1]:
            near, begin = self._planes(view, party, found), np.zeros((count, whole.kept.shape[1]))
            begin[near.rows] = near.values
            begun = solve(steps, whole, count, self.iterations, begin)
            if begun.residual < SOLVED:
                return begun
        plain = solve(steps, whole, count, self.iterations)
        return plain if begun is None or plain.residual < begun.residual else begun

    def _planes(self, view: View, party: str, found: list[Message]) -> Signals:
        steps, after = messages.steps_of(found), messages.served(view, party)
        if steps[0].sent.shape[1] < steps[0].kept.shape[1]:
            raise InputError(
                f"attack {self.name!r}: method=null-space needs as many numbers as columns, and {party!r} sends "
                f"{steps[0].sent.shape[1]} for {steps[0].kept.shape[1]}"
            )
        if not self.served or after is None:
            return self._in_pretraining(view, party, found)
        used = window(steps, len(steps) - 1)
        normal = normals(used)
        rows, values = carried(normal, messages.first_unmasked(view, party), after)
        scale = messages.scale_rows(view, party, rows)
        cells, kept = np.vstack([readings(step, normal) for step in used]), np.vstack([step.kept for step in used])
        return Signals(rows, shifted(values, scale, cells, kept), scale)

    def _in_pretraining(self, view: View, party: str, found: list[Message]) -> Signals:
        """The cells kept in the last epoch, each message by itself; its batch norm hides the scale, so that is lost."""
        steps, last = messages.steps_of(found), messages.trained(view, party, found)
        first = next(place for place, message in enumerate(found) if message is last[0])
        tables, reference = [], None
        for place in range(first, first + len(last)):
            normal = normals(window(steps, place))
            reference = normal if reference is None else reference
            cells = readings(steps[place], normal * np.where((normal * reference).sum(axis=0) < 0, -1, 1))
            size = np.sqrt((cells**2).sum(axis=0) / np.maximum(steps[place].kept.sum(axis=0), 1))
            tables.append(cells / np.maximum(size, 1e-300))
        kept = np.vstack([step.kept for step in steps[first : first + len(last)]])
        values, linked = filled(np.vstack(tables), kept), messages.linkable(view, party)
        rows = np.concatenate([step.rows for step in steps[first : first + len(last)]])
        everyone = np.ones(len(rows), dtype=bool)
        names = rows if linked else np.arange(len(rows))
        return Signals(names, values, everyone, shuffled=not linked, read=kept == 1)
