"""Many APC-VFL runs at once: each autoencoder is trained for all of them together; classifiers are fitted one by one.

Private set intersection is left out: what it finds, the rows that everybody holds, is known to whoever owns all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.run import Model
from vflaudit.protocols.apcvfl.autoencoders import Lesson, first_lesson
from vflaudit.protocols.apcvfl.autoencoders import train_many as train_autoencoders
from vflaudit.protocols.apcvfl.parties import ACTIVE, held_rows
from vflaudit.protocols.apcvfl.protocol import APCVFL
from vflaudit.protocols.base import Session

VARIANTS = ("distilled", "collaborative", "ablation")


def train_many(protocol: APCVFL, sessions: Sequence[Session]) -> list[Model]:
    """The four steps (IV) in every session; returns the released models."""
    if protocol.variant == "ablation":
        nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, protocol.distilled_layers[-1]))
        return _distilled(protocol, sessions, [nobody] * len(sessions), [nothing] * len(sessions))
    together = protocol.variant == "collaborative"
    rows = [np.sort(session.data.aligned("train")) for session in sessions]
    modules = [{party: nn.ModuleDict() for party in protocol.parties(session.data)} for session in sessions]
    for party in protocol.parties(sessions[0].data):
        layers = protocol.active_layers if party == ACTIVE else protocol.passive_layers
        lessons = []
        for session, shared in zip(sessions, rows, strict=True):
            every = not together and protocol.local_rows == "all"
            own = held_rows(session.data, party, "train") if every else shared
            values = session.data.blocks[party].values[own]
            lessons.append(first_lesson(values, layers, protocol.latent, session.seed, party, "g1"))
        _train(protocol, lessons, [each[party] for each in modules], "g1")
    joined = [
        protocol.exchange(session, each, shared) for session, each, shared in zip(sessions, modules, rows, strict=True)
    ]
    lessons = [
        first_lesson(values, protocol.joint_layers, protocol.latent, session.seed, ACTIVE, "g2")
        for session, values in zip(sessions, joined, strict=True)
    ]
    _train(protocol, lessons, [each[ACTIVE] for each in modules], "g2")
    joint = [lesson.model.encode(lesson.values) for lesson in lessons]
    if not together:
        return _distilled(protocol, sessions, rows, joint)
    return [
        protocol.classify_together(session, each, shared, shared, latent)[0]
        for session, each, shared, latent in zip(sessions, modules, rows, joint, strict=True)
    ]


def _train(protocol: APCVFL, lessons: Sequence[Lesson], places: Sequence[nn.ModuleDict], name: str) -> None:
    train_autoencoders(lessons, protocol.training())
    for lesson, place in zip(lessons, places, strict=True):
        place[name] = lesson.model


def _distilled(
    protocol: APCVFL, sessions: Sequence[Session], rows: Sequence[Array], joint: Sequence[Array]
) -> list[Model]:
    """Steps 3 and 4."""
    layers = protocol.distilled_layers
    lessons = [
        protocol.last_lesson(session, layers, shared, latent)
        for session, shared, latent in zip(sessions, rows, joint, strict=True)
    ]
    train_autoencoders(lessons, protocol.training())
    return [
        protocol.classify_alone(session, lesson.model.encoder)[0]
        for session, lesson in zip(sessions, lessons, strict=True)
    ]
