"""What an adversary sees, and nothing else.

A view holds copies: messages that a corrupted party sent or received, the private state of corrupted parties, and the
granted knowledge. There is no way back from it to the run, the dataset or an honest party.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vflaudit.core.adversary import Adversary, Knowledge, Rows
from vflaudit.core.dataset import Array
from vflaudit.core.transcript import Transcript
from vflaudit.errors import InputError

if TYPE_CHECKING:
    from vflaudit.core.run import PartyState, ProtocolSpec


@dataclass(frozen=True, eq=False)
class Challenge:
    """Candidates that a game hands out: feature rows per party (and labels, if the game shows them). No answers."""

    features: Mapping[str, Array]
    labels: Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.features.values())))


@dataclass(frozen=True, eq=False)
class Embedding:
    """Per-row vectors that one party sent: row handles and values of the same length."""

    rows: Array
    values: Array

    def at(self, rows: Array) -> Array:
        """The vectors of these rows; a row that was never sent is an error."""
        order = np.argsort(self.rows)
        place = np.searchsorted(self.rows, rows, sorter=order).clip(max=len(order) - 1)
        found = order[place]
        if not np.array_equal(self.rows[found], rows):
            raise InputError("the view has no message about some of the rows that are asked for")
        return self.values[found]


@dataclass(frozen=True, eq=False)
class SentTable:
    """A whole table as it was sent. After a shuffle, `rows` are positions in it and not handles."""

    rows: Array
    values: Array
    shuffled: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """The adversary's side of a run."""

    adversary: Adversary
    spec: ProtocolSpec
    transcript: Transcript
    states: Mapping[str, PartyState]
    knowledge: Knowledge
    challenge: Challenge | None = None

    @property
    def victims(self) -> tuple[str, ...]:
        """Honest parties that hold columns."""
        return tuple(party for party in self.spec.columns if party not in self.adversary.corrupts)

    def own_columns(self) -> Array:
        """All that the corrupted parties hold about each row: features, presence, labels; shape (rows, width >= 0)."""
        parts = [np.zeros((self.spec.rows, 0))]
        for state in self.states.values():
            if state.features is not None and state.present is not None:
                parts.append(state.features)
                if not state.present.all():
                    parts.append(state.present[:, None].astype(np.float64))
            if state.labels is not None:
                parts.append(self.label_columns(state.labels))
        return np.hstack(parts)

    def own_pool_columns(self, pool: Rows) -> Array:
        """The columns of `own_columns`, for rows of a distribution sample."""
        count = len(next(iter(pool.features.values())))
        parts = [np.zeros((count, 0))]
        for party, state in self.states.items():
            if state.features is not None and state.present is not None:
                parts.append(pool.features[party])
                if not state.present.all():
                    parts.append(np.ones((count, 1)))
            if state.labels is not None and pool.labels is not None:
                parts.append(self.label_columns(pool.labels))
        return np.hstack(parts)

    def label_columns(self, labels: Array) -> Array:
        """Labels as regressors: one column per class, or the value."""
        if self.spec.task == "classification":
            return (labels[:, None] == np.arange(len(self.spec.classes))).astype(np.float64)
        return labels[:, None].astype(np.float64)

    def sent_by(self, party: str, *, average: bool = False, kind: str | None = None) -> Embedding:
        """The most recent vectors that `party` sent about each row, over all kinds of messages (or one) side by side.

        With `average`, their mean over the later half of the epochs instead: it blurs what training changed, and
        averages away noise that is drawn anew each time. Kinds that cover fewer rows than the best-covered kind are
        left out.
        """
        groups: dict[tuple[str, str], Array] = {}
        counts: dict[tuple[str, str], Array] = {}
        epochs = sorted(self.transcript.epochs())
        if kind is not None:
            chosen = self.transcript.select(sender=party, kind=kind)
            epochs = sorted({message.epoch for message in chosen if message.epoch is not None})
        late = epochs[len(epochs) // 2] if average and epochs else None
        for message in self.transcript.select(sender=party, kind=kind):
            if message.rows is None or (late is not None and message.epoch is not None and message.epoch < late):
                continue
            for name, value in message.arrays.items():
                flat = np.asarray(value, dtype=np.float64).reshape(len(message.rows), -1)
                key = (message.kind, name)
                if key not in groups:
                    groups[key] = np.full((self.spec.rows, flat.shape[1]), np.nan)
                    counts[key] = np.zeros(self.spec.rows)
                if average:
                    seen = counts[key][message.rows, None]
                    flat = np.where(seen > 0, (groups[key][message.rows] * seen + flat) / (seen + 1), flat)
                groups[key][message.rows] = flat
                counts[key][message.rows] += 1
        if not groups:
            raise InputError(f"the view has no message from {party!r} that names its rows")
        covered = {key: np.isfinite(value).all(axis=1) for key, value in groups.items()}
        most = max(mask.sum() for mask in covered.values())
        keep = [key for key, mask in covered.items() if mask.sum() == most]
        rows = np.flatnonzero(np.logical_and.reduce([covered[key] for key in keep]))
        return Embedding(rows, np.hstack([groups[key][rows] for key in keep]))

    def table_of(self, party: str, kind: str = "features") -> SentTable:
        """The longest table that was sent about a party's data at once: from the party itself, or out of a shuffle.

        Out of a shuffle nobody can name its rows: `rows` are then positions, the same for all parties.
        """
        longest: SentTable | None = None
        for message in self.transcript:
            direct = message.sender == party and message.kind == kind and message.rows is not None
            name = party if kind == "features" else f"{kind} of {party}"
            mixed = message.kind == "shuffled" and name in message.arrays
            if not direct and not mixed:
                continue
            values = np.asarray(message.arrays["values" if direct else name])
            rows = message.rows if direct else None
            if longest is None or len(values) > len(longest.values):
                longest = SentTable(np.arange(len(values)) if rows is None else rows, values, shuffled=rows is None)
        if longest is None:
            raise InputError(f"the view has no table of {kind} from {party!r}")
        return longest

    def digest(self) -> str:
        """A hash of every byte of the view, to prove that something did not change it."""
        state = hashlib.sha256(f"{self.adversary}{self.spec}".encode())
        state.update(self.transcript.digest().encode())
        for item in (self.states, self.knowledge, self.challenge):
            _hash(state, item)
        return state.hexdigest()


def _hash(state: hashlib._Hash, item: object) -> None:
    """Feed every array reachable from `item` into the hash, in a fixed order."""
    if item is None or callable(item):
        state.update(b"-")
    elif isinstance(item, np.ndarray):
        state.update(f"{item.dtype.str}{item.shape}".encode() + np.ascontiguousarray(item).tobytes())
    elif isinstance(item, Mapping):
        for key in sorted(item):
            state.update(str(key).encode())
            _hash(state, item[key])
    elif isinstance(item, tuple | list):
        for part in item:
            _hash(state, part)
    elif hasattr(item, "__dataclass_fields__"):
        _hash(state, {name: getattr(item, name) for name in item.__dataclass_fields__})
    else:
        state.update(repr(item).encode())
