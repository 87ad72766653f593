"""How parties talk: messages, and the wire that they cross.

Parties share nothing but the wire. It really serialises every message (safetensors) and hands the receiver
what it decodes from those bytes, so the bytes and rounds it counts are those of a deployment.
"""

from __future__ import annotations

import hashlib
import json
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from safetensors import numpy as safetensors

from vflaudit.core.costs import Costs, Meter
from vflaudit.core.dataset import frozen
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    from vflaudit.core.transcript import Transcript

Array = np.ndarray
DTYPES: Mapping[str, str] = MappingProxyType(
    {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"}
    | {"uint32": "U32", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64"}
)
LARGEST = 2**53  # the largest step or epoch that every JSON reader takes for the same number


def check_name(what: str, name: object) -> None:
    """Refuse names that a manifest, a safetensors header or a terminal could not carry."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InputError(f"{what} {name!r} is not a name: expected 1 to 200 printable characters")


def tidy(name: str, value: object) -> Array:
    """`value` as an array that can travel: allowed dtype, native, contiguous, finite; copied if need be."""
    check_name("array", name)
    if name[0] == "#" or name == "__metadata__":
        raise InputError(
            f"array {name!r} has a reserved name: expected one that is not '__metadata__' nor starts with '#'"
        )
    array = np.asarray(value, order="C")
    if array.dtype.name not in DTYPES:
        raise InputError(f"array {name!r} has dtype {array.dtype}: expected one of {', '.join(DTYPES)}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"array {name!r} has a NaN or infinite value: expected finite numbers")
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise InputError(f"array {name!r} has a boolean that is neither true nor false")
    return array


def _row_handles(rows: object) -> Array:
    handles = np.asarray(rows)
    if handles.dtype.kind not in "iu" or handles.ndim != 1:
        raise InputError(f"row handles are {handles.dtype} of shape {handles.shape}: expected a list of integers")
    handles = handles.astype(np.int64)
    if handles.size and handles.min() < 0:
        raise InputError(f"row handle {handles.min()} is negative: expected positions in the aligned table")
    handles.flags.writeable = False
    return handles


@dataclass(frozen=True, eq=False)
class Message:
    """Named arrays from one party to another; messages of the same `step` (round) are concurrent.

    `rows` are positions in the aligned table, present only where the receiver really learns which rows these
    are; every array then has one entry per row along its first axis. All arrays are read-only copies.
    """

    sender: str
    receiver: str
    step: int
    kind: str
    arrays: Mapping[str, Array]
    rows: Array | None = None
    epoch: int | None = None

    def __post_init__(self) -> None:
        for what in ("sender", "receiver", "kind"):
            check_name(what, getattr(self, what))
        if self.sender == self.receiver:
            raise InputError(f"party {self.sender!r} sends a message to itself")
        for what in ("step",) if self.epoch is None else ("step", "epoch"):
            number = operator.index(getattr(self, what))
            if not 0 <= number <= LARGEST:
                raise InputError(f"{what} {number} of a {self.kind!r} message is negative or too large")
            object.__setattr__(self, what, number)
        arrays = {name: frozen(tidy(name, value)) for name, value in self.arrays.items()}
        object.__setattr__(self, "arrays", MappingProxyType(arrays))
        if self.rows is None:
            return
        object.__setattr__(self, "rows", _row_handles(self.rows))
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != len(self.rows):
                raise InputError(f"array {name!r} of shape {array.shape} does not fit {len(self.rows)} row handles")

    @property
    def nbytes(self) -> int:
        """Bytes of data, row handles included, without any framing."""
        return sum(array.nbytes for array in self._data())

    def _data(self) -> list[Array]:
        arrays = [self.arrays[name] for name in sorted(self.arrays)]
        return arrays if self.rows is None else [*arrays, self.rows]

    def feed(self, digest: hashlib._Hash) -> None:
        """Add to a hash who, when, what, and every byte; the order of the array names does not matter."""
        shapes = [[name, array.dtype.name, array.shape] for name, array in sorted(self.arrays.items())]
        rows = None if self.rows is None else len(self.rows)
        who = [self.sender, self.receiver, self.step, self.epoch, self.kind, rows, shapes]
        digest.update(json.dumps(who).encode() + b"\n")
        for array in self._data():
            digest.update(array.reshape(-1).view(np.uint8).data)


class Wire:
    """The only way from one party to another.

    Everything sent between two calls of `next_round` is one communication round: concurrent, and paying the
    network's latency once. `transcript` writes down what its recording level keeps.
    """

    def __init__(self, parties: Sequence[str], transcript: Transcript) -> None:
        self.parties = tuple(parties)
        for party in self.parties:
            check_name("party", party)
        if len(set(self.parties)) != len(self.parties):
            raise InputError(f"two parties share a name: {', '.join(self.parties)}")
        self.transcript = transcript
        self._step = transcript.next_step
        self._spoken = False
        self._meter = Meter(self.parties)
        self._computing: str | None = None

    @property
    def step(self) -> int:
        """The current communication round: 0 at first, or the one after what the transcript already holds."""
        return self._step

    @property
    def costs(self) -> Costs:
        """What has been spent so far."""
        return self._meter.costs()

    def send(
        self,
        sender: str,
        receiver: str,
        kind: str,
        arrays: Mapping[str, Array],
        *,
        rows: Array | None = None,
        epoch: int | None = None,
    ) -> dict[str, Array]:
        """Send named arrays and return what the receiver decodes: its own, writable arrays.

        Row handles are recorded but neither sent nor counted: which rows a batch has is the schedule that
        both sides agreed on beforehand. Give them only where the receiver really knows it. The same kind of
        message goes from one party to another once per round.
        """
        for party in (sender, receiver):
            if party not in self.parties:
                raise unknown("party", party, self.parties)
        # Tidied first, because safetensors writes the memory behind an array whatever its strides.
        payload = safetensors.save({name: tidy(name, value) for name, value in arrays.items()})
        decoded = safetensors.load(payload)
        received = {name: decoded[name] for name in arrays}
        # Done even where nothing is recorded, so that a bad or repeated message is refused at every level.
        self.transcript.append(Message(sender, receiver, self._step, kind, received, rows, epoch))
        self._spoken = True
        self._meter.count(sender, receiver, len(payload))
        return received

    def next_round(self) -> None:
        """Close the current round. Without a message in it nobody waited for anybody, and it stays open."""
        if self._spoken:
            self._step += 1
            self._spoken = False
            self._meter.next_round()

    @contextmanager
    def computing(self, party: str) -> Iterator[None]:
        """Count the CPU time of the block as the party's, in the round that is open when the block ends.

        The clock is the whole process's (all threads). Blocks of the same party nest and are counted once; a
        block of another party inside would be counted twice, so it is refused.
        """
        if party not in self.parties:
            raise unknown("party", party, self.parties)
        if self._computing is not None:
            if self._computing != party:
                raise InputError(f"{party!r} cannot compute inside a block in which {self._computing!r} does")
            yield
            return
        self._computing, start = party, time.process_time()
        try:
            yield
        finally:
            self._computing = None
            self._meter.compute(party, time.process_time() - start)
