"""What TabVFL's host gets from one guest, sorted: with masks or without, in which phase, whether rows have names."""

from __future__ import annotations

import numpy as np

from attacks.mask_algebra import Step
from vflaudit.core.dataset import Array
from vflaudit.core.view import View
from vflaudit.core.wire import Message

MASKED, UNMASKED, TRAINED = "intermediate", "representation", "intermediate_gradient"


def has_masks(view: View) -> bool:
    """Whether some message tells numbers and masks."""
    return any("mask" in message.arrays for message in view.transcript.select(kind=MASKED))


def linkable(view: View, party: str) -> bool:
    """Whether the party's messages of pretraining name their rows."""
    return all(message.rows is not None for message in view.transcript.select(sender=party, kind=MASKED))


def intermediates(view: View, party: str, epochs: int) -> list[Message]:
    """The party's messages in the last epochs of pretraining, the oldest first."""
    found = [m for m in view.transcript.select(sender=party, kind=MASKED) if m.epoch is not None]
    first = max((m.epoch for m in found if m.epoch is not None), default=0) - epochs
    return [m for m in found if m.epoch is not None and m.epoch > first]


def numbers(message: Message) -> Array:
    """What was sent about each row, in float64."""
    return np.asarray(message.arrays["values"], dtype=np.float64)


def steps_of(messages: list[Message]) -> list[Step]:
    """Messages with masks as equations; rows without names are numbered as they come."""
    steps, done = [], 0
    for message in messages:
        rows = message.rows if message.rows is not None else done + np.arange(len(message.arrays["values"]))
        steps.append(Step(rows, 1.0 - message.arrays["mask"], numbers(message)))
        done += len(rows)
    return steps


def trained(view: View, party: str, messages: list[Message]) -> list[Message]:
    """Those messages of an epoch that were trained on: gradients came back for them; validation follows them."""
    count = len([m for m in view.transcript.select(receiver=party, kind=TRAINED) if m.epoch == messages[-1].epoch])
    return [m for m in messages if m.epoch == messages[-1].epoch][: count or None]


def served(view: View, party: str) -> Message | None:
    """What was served after training: the last message without masks and without an epoch."""
    found = [m for m in view.transcript.select(sender=party, kind=UNMASKED) if m.rows is not None and m.epoch is None]
    return found[-1] if found else None


def first_unmasked(view: View, party: str) -> Message | None:
    """The first message of fine-tuning: the same layer as at the end of pretraining, but all cells and named rows."""
    found = [m for m in view.transcript.select(sender=party, kind=UNMASKED) if m.rows is not None]
    return found[0] if found else None


def scale_rows(view: View, party: str, rows: Array) -> Array:
    """Which of these rows columns were standardised on: those that were trained on, as far as the host can tell."""
    named = [
        m.rows
        for kind in (TRAINED, "gradient")
        for m in view.transcript.select(receiver=party, kind=kind)
        if m.rows is not None
    ]
    return np.isin(rows, np.concatenate(named)) if named else np.ones(len(rows), dtype=bool)
