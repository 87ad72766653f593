"""What the parties told each other, written down in order.

A `Recording` says how much is kept of the messages that cross the wire. A `Transcript` keeps it: in memory at
first, and beyond a limit in safetensors files from which messages are read back one by one. No pickles.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vflaudit.core.randomness import stream
from vflaudit.core.wire import Array, Message
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:  # files are touched only when a transcript spills over, is saved or loaded
    from vflaudit.core.transcript_io import Spool

__all__ = ["Message", "Recording", "Transcript"]

ROWS = "#rows"
OVERHEAD = 256  # what a message or an array weighs in memory besides its data, roughly


@dataclass(frozen=True)
class Recording:
    """How much is written down: everything, some rows of every message, the last epochs, or nothing."""

    level: Literal["all", "rows", "epochs", "none"] = "all"
    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.level in ("rows", "epochs") and self.count < 1:
            raise InputError(f"recording {self.level}={self.count} keeps nothing: expected at least 1, or 'none'")
        if self.seed < 0:
            raise InputError(f"recording seed {self.seed} is negative")

    @classmethod
    def all(cls) -> Recording:
        """Every message."""
        return cls("all")

    @classmethod
    def sampled_rows(cls, n: int, seed: int = 0) -> Recording:
        """The same `n` rows of every message with row handles; messages without handles are kept whole."""
        return cls("rows", n, seed)

    @classmethod
    def last_epochs(cls, k: int) -> Recording:
        """Messages of the last `k` epochs, and those that belong to no epoch."""
        return cls("epochs", k)

    @classmethod
    def none(cls) -> Recording:
        """No message (costs are counted all the same)."""
        return cls("none")

    @classmethod
    def parse(cls, text: str) -> Recording:
        """Read "all", "none", "epochs=5", "rows=200" or "rows=200,seed=7"."""
        first, *rest = text.strip().split(",")
        level, equals, number = first.partition("=")
        if level not in ("all", "rows", "epochs", "none"):
            raise unknown("recording", level, ("all", "rows=N", "epochs=K", "none"))
        counted = level in ("rows", "epochs")
        seed = rest[0].removeprefix("seed=") if rest else "0"
        fits = bool(equals) == counted and (not rest or (level == "rows" and rest == [f"seed={seed}"]))
        if not fits or not seed.isdecimal() or (counted and not number.isdecimal()):
            wanted = {"rows": "rows=200", "epochs": "epochs=5"}.get(level, level)
            raise InputError(f"recording {text!r} is not understood: expected something like {wanted!r}")
        return cls(level, int(number or 0), int(seed))  # type: ignore[arg-type]

    def __str__(self) -> str:
        seed = f",seed={self.seed}" if self.level == "rows" else ""
        return f"{self.level}={self.count}{seed}" if self.count else self.level

    def row_mask(self, population: int) -> Array:
        """Which of the handles below `population` are kept: the smallest numbers of a seeded stream win."""
        numbers = stream(self.seed, "recording", "rows").random(population)
        mask = np.zeros(population, dtype=bool)
        mask[np.argsort(numbers, kind="stable")[: self.count]] = True
        return mask


@dataclass(frozen=True, slots=True)
class Chunk:
    """A safetensors file of messages; `identity` tells whether it is still the one written or validated."""

    path: Path
    identity: tuple[int, ...]

    @classmethod
    def of(cls, path: Path) -> Chunk:
        """The file as it is now."""
        found = path.stat()
        return cls(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept in memory of a message whose arrays are in a chunk."""

    sender: str
    receiver: str
    step: int
    kind: str
    epoch: int | None
    names: tuple[str, ...]
    has_rows: bool
    chunk: Chunk
    index: int

    @classmethod
    def of(cls, message: Message, chunk: Chunk, index: int) -> Stored:
        """What to keep of a message that is now in a chunk."""
        who = (message.sender, message.receiver, message.step, message.kind, message.epoch)
        return cls(*who, tuple(message.arrays), message.rows is not None, chunk, index)

    def read(self, handle: Any) -> Message:
        """The whole message from its open chunk."""
        arrays = {name: handle.get_tensor(f"{self.index}/{name}") for name in self.names}
        rows = handle.get_tensor(f"{self.index}/{ROWS}") if self.has_rows else None
        return Message(self.sender, self.receiver, self.step, self.kind, arrays, rows, self.epoch)


class Transcript:
    """Messages in the order in which they were sent, as far as the recording level keeps them.

    Beyond `memory_limit` bytes, what is buffered moves to a file in a private folder (in `spool_dir` if
    given), which goes when the transcript is closed or collected. `population` is the number of rows of the
    aligned table; sampling rows needs it. Not for use by several threads at once.
    """

    def __init__(
        self,
        recording: Recording = Recording.all(),  # noqa: B008 (immutable)
        *,
        population: int | None = None,
        memory_limit: int = 256 * 2**20,
        spool_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if recording.level == "rows" and population is None:
            raise InputError(f"recording {recording} samples rows: expected their number as `population`")
        self.recording, self.population = recording, population
        self._memory_limit, self._spool_dir = memory_limit, spool_dir
        self._mask: Array | None = None
        self._entries: dict[int, Message | Stored] = {}
        self._buffer: dict[int, Message] = {}  # the entries that are still in memory
        self._weight = self._count = 0
        self._step, self._round = -1, set[tuple[str, str, str]]()
        self._window: list[int] = []  # the last epochs seen, oldest first
        self._sealed = self._closed = False
        self._spool: Spool | None = None

    def append(self, message: Message) -> None:
        """Write down what the recording level keeps; rounds must not go back, nor a sending be repeated."""
        if self._sealed:
            raise InputError("a loaded or selected transcript cannot be added to")
        self._entries_if_open()
        if message.step < self._step:
            raise InputError(f"step {message.step} comes after step {self._step}: expected steps in order")
        if message.step > self._step:
            self._step = message.step
            self._round.clear()
        sending = (message.sender, message.receiver, message.kind)
        if sending in self._round:
            raise InputError("{!r} sends {!r} {!r} twice in step {}".format(*sending, message.step))
        self._round.add(sending)
        kept = self._recorded(message)
        if kept is not None:
            self._store(kept)

    def _recorded(self, message: Message) -> Message | None:
        level = self.recording.level
        if level == "none":
            return None
        if level == "epochs" and message.epoch is not None:
            return message if self._in_window(message.epoch) else None
        if level == "rows" and message.rows is not None:
            return self._sample(message, message.rows)
        return message

    def _sample(self, message: Message, rows: Array) -> Message | None:
        assert self.population is not None
        if self._mask is None:
            self._mask = self.recording.row_mask(self.population)
        if rows.size and rows.max() >= self.population:
            raise InputError(f"row handle {rows.max()} is not one of the {self.population} aligned rows")
        keep = self._mask[rows]
        if not keep.any():  # an empty remainder would tell an attack nothing, thousands of times over
            return None
        return replace(message, arrays={name: a[keep] for name, a in message.arrays.items()}, rows=rows[keep])

    def _in_window(self, epoch: int) -> bool:
        if epoch in self._window:
            return True
        self._window = sorted([*self._window, epoch])[-self.recording.count :]
        if epoch not in self._window:
            return False
        oldest = self._window[0]
        gone = [i for i, entry in self._entries.items() if entry.epoch is not None and entry.epoch < oldest]
        for index in gone:
            del self._entries[index]
            dropped = self._buffer.pop(index, None)
            self._weight -= _weight(dropped) if dropped is not None else 0
        if gone and self._spool is not None:
            self._spool.keep_only(self._entries.values())
        return True

    def _store(self, message: Message) -> None:
        self._entries[self._count] = self._buffer[self._count] = message
        self._count += 1
        self._weight += _weight(message)
        if self._weight > self._memory_limit:
            from vflaudit.core.transcript_io import Spool

            self._spool = self._spool or Spool(self._spool_dir)
            self._entries |= self._spool.write(self._buffer)
            self._buffer, self._weight = {}, 0

    def _entries_if_open(self) -> dict[int, Message | Stored]:
        if self._closed:
            raise InputError("the transcript is closed")
        return self._entries

    def _read(self, entry: Message | Stored) -> Message:
        if isinstance(entry, Message):
            return entry
        self._entries_if_open()
        assert self._spool is not None
        return self._spool.read(entry)

    def __len__(self) -> int:
        return len(self._entries_if_open())

    def __iter__(self) -> Iterator[Message]:
        return self.select()

    def select(
        self,
        *,
        sender: str | None = None,
        receiver: str | None = None,
        kind: str | None = None,
        epoch: int | None = None,
        touching: Collection[str] | None = None,
    ) -> Iterator[Message]:
        """The messages that fit everything given, in order; `touching` matches their sender or receiver."""
        for entry in list(self._entries_if_open().values()):
            if (
                (sender is None or entry.sender == sender)
                and (receiver is None or entry.receiver == receiver)
                and (kind is None or entry.kind == kind)
                and (epoch is None or entry.epoch == epoch)
                and (touching is None or entry.sender in touching or entry.receiver in touching)
            ):
                yield self._read(entry)

    def only(self, parties: Iterable[str]) -> Transcript:
        """A transcript of its own with just the messages that one of these parties sent or received.

        It shares nothing with this one but immutable messages: no reference back, and no file that holds a
        message which these parties did not see.
        """
        part = Transcript(self.recording, population=self.population)
        part._memory_limit, part._spool_dir = self._memory_limit, self._spool_dir
        for message in self.select(touching=frozenset(parties)):
            part._store(message)
        part._sealed = True
        return part

    @property
    def parties(self) -> tuple[str, ...]:
        """Everyone who sent or received a message that was kept, in order of appearance."""
        entries = self._entries_if_open().values()
        return tuple(dict.fromkeys(party for entry in entries for party in (entry.sender, entry.receiver)))

    def kinds(self) -> tuple[str, ...]:
        """The kinds of message, in order of appearance."""
        return tuple(dict.fromkeys(entry.kind for entry in self._entries_if_open().values()))

    def epochs(self) -> tuple[int, ...]:
        """The epochs of which a message was kept, in increasing order."""
        return tuple(sorted({e.epoch for e in self._entries_if_open().values() if e.epoch is not None}))

    @classmethod
    def of_files(
        cls, recording: Recording, population: int | None, entries: Iterable[Stored], spool: Spool
    ) -> Transcript:
        """A transcript that reads its messages from files; it cannot be added to."""
        transcript = cls(recording, population=population)
        transcript._entries = dict(enumerate(entries))
        transcript._spool, transcript._sealed = spool, True
        return transcript

    def files(self) -> set[Path]:
        """The files that messages are read from."""
        return {entry.chunk.path for entry in self._entries.values() if isinstance(entry, Stored)}

    @property
    def next_step(self) -> int:
        """The first communication round after everything that was appended."""
        return self._step + 1

    def digest(self) -> str:
        """SHA-256 over all messages in order: equal digests, equal transcripts."""
        digest = hashlib.sha256()
        for message in self:
            message.feed(digest)
        return digest.hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the transcript into a folder: manifest.json and safetensors chunks."""
        from vflaudit.core import transcript_io

        transcript_io.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Transcript:
        """Read a saved transcript: all of it is validated first, then messages are read as needed."""
        from vflaudit.core import transcript_io

        return transcript_io.load(folder)

    def close(self) -> None:
        """Forget all messages and remove the spool; saved folders stay."""
        self._closed = True
        self._entries, self._buffer = {}, {}
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _weight(message: Message) -> int:
    return message.nbytes + OVERHEAD * (1 + len(message.arrays))
