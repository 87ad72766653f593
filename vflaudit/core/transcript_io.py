"""Transcripts on disk: the spool of a long run, and folders that are saved, sent around and loaded.

A saved folder holds `manifest.json` (who sent what to whom, with every array's dtype and shape) and files
`chunk-00000.safetensors`, ... whose keys are "{index}/{array name}" and "{index}/#rows". The manifest's
`digest` is optional, so that other systems can write transcripts; where given it must match. A transcript may
come from a stranger: `load` believes nothing, validates every message, and only then returns.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from vflaudit.core.transcript import ROWS, Chunk, Recording, Stored, Transcript
from vflaudit.core.wire import DTYPES, LARGEST, Array, Message, check_name
from vflaudit.errors import InputError, unknown

FORMAT = "vflaudit-transcript"
MANIFEST = "manifest.json"
CHUNK_NAME = re.compile(r"chunk-[0-9]{5,9}\.safetensors")
MAX_MANIFEST = 512 * 2**20
MAX_HEADER = 100 * 2**20
CHUNK_BYTES = 64 * 2**20
CHUNK_ARRAYS = 50_000  # a header lists every array; this many of the longest names stay below MAX_HEADER


def _write_chunk(path: Path, messages: Mapping[int, Message]) -> dict[int, Stored]:
    tensors: dict[str, Array] = {}
    for i, m in messages.items():
        tensors.update((f"{i}/{name}", array) for name, array in m.arrays.items())
        if m.rows is not None:
            tensors[f"{i}/{ROWS}"] = m.rows
    save_file(tensors, path)
    chunk = Chunk.of(path)
    return {i: Stored.of(m, chunk, i) for i, m in messages.items()}


def _in_chunks(messages: Iterable[tuple[int, Message]], limit: int) -> Iterator[dict[int, Message]]:
    """Group messages into chunks of about `limit` bytes; a message is never divided."""
    group: dict[int, Message] = {}
    weight = arrays = 0
    for index, message in messages:
        weight, arrays = weight + message.nbytes, arrays + len(message.arrays) + 1
        if group and (weight > limit or arrays > CHUNK_ARRAYS):
            yield group
            group, weight, arrays = {}, message.nbytes, len(message.arrays) + 1
        group[index] = message
    if group:
        yield group


class Spool:
    """The files behind one transcript: a private temporary folder once written to, and one open chunk."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._remove: weakref.finalize[[str, int], Spool] | None = None
        self._chunks: set[Chunk] = set()
        self._numbers = itertools.count()
        self._open: tuple[Chunk, Any] | None = None

    def write(self, messages: Mapping[int, Message]) -> dict[int, Stored]:
        """Move messages to the private folder."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="vflaudit-spool-", dir=self._parent))
            self._remove = weakref.finalize(self, _remove_folder, str(self._folder), os.getpid())
        stored: dict[int, Stored] = {}
        for group in _in_chunks(messages.items(), CHUNK_BYTES):
            stored |= _write_chunk(self._folder / f"chunk-{next(self._numbers):05d}.safetensors", group)
        self._chunks.update(entry.chunk for entry in stored.values())
        return stored

    def read(self, entry: Stored) -> Message:
        """One message, from the chunk that is open already or else from the one opened now."""
        try:
            if self._open is None or self._open[0] != entry.chunk:
                if Chunk.of(entry.chunk.path) != entry.chunk:
                    raise InputError(f"transcript file {str(entry.chunk.path)!r} changed meanwhile")
                self._open = (entry.chunk, safe_open(entry.chunk.path, "np"))
            return entry.read(self._open[1])
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read transcript file {str(entry.chunk.path)!r}: {error}") from None

    def keep_only(self, entries: Iterable[object]) -> None:
        """Remove own files in which none of these entries is."""
        live = {entry.chunk for entry in entries if isinstance(entry, Stored)}
        for chunk in self._chunks - live:
            if self._open is not None and self._open[0] == chunk:
                self._open = None
            chunk.path.unlink(missing_ok=True)
        self._chunks &= live

    def close(self) -> None:
        """Let go of the open file and remove the private folder."""
        self._open = None
        if self._remove is not None:
            self._remove()


def _remove_folder(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finaliser, but the folder is its parent's
        shutil.rmtree(folder, ignore_errors=True)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Count = Annotated[int, Field(ge=0, le=LARGEST)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class ArrayEntry(_Strict):
    """One array of a message."""

    dtype: Name
    shape: tuple[Count, ...]


class MessageEntry(_Strict):
    """One message of a manifest."""

    index: Count
    sender: Name
    receiver: Name
    step: int
    epoch: Count | None
    kind: Name
    chunk: Name
    arrays: dict[Name, ArrayEntry]
    rows: bool


class Manifest(_Strict):
    """What manifest.json says."""

    format: Literal["vflaudit-transcript"]
    schema_: Annotated[Literal[1], Field(alias="schema")]
    parties: Annotated[tuple[Name, ...], FailFast()]
    messages: Annotated[tuple[MessageEntry, ...], FailFast()]
    recording: Name = "all"
    population: Count | None = None
    digest: Name | None = None


def save(transcript: Transcript, folder: str | os.PathLike[str]) -> None:
    """Write a transcript to a folder, all or nothing; replaces a transcript there, but nothing else."""
    target = Path(os.path.abspath(folder))
    _check_target(transcript, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    old = fresh.with_name(fresh.name + ".old")
    fresh.mkdir()
    try:
        _write(transcript, fresh)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(fresh, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _check_target(transcript: Transcript, target: Path) -> None:
    refusal = f"cannot save a transcript to {str(target)!r}: "
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(refusal + "it is a file or a link, expected a folder")
    if not target.exists() or not any(target.iterdir()):
        return
    if any(path.parent == target.resolve() for path in transcript.files()):
        raise InputError(refusal + "it is being read from that folder")
    try:
        _read_manifest(target)
        ours = all(path.name == MANIFEST or CHUNK_NAME.fullmatch(path.name) for path in target.iterdir())
    except InputError:
        ours = False
    if not ours:
        raise InputError(refusal + "expected an empty folder, or a transcript to replace")


def _write(transcript: Transcript, folder: Path) -> None:
    entries, digest = [], hashlib.sha256()
    for number, group in enumerate(_in_chunks(enumerate(transcript), CHUNK_BYTES)):
        name = f"chunk-{number:05d}.safetensors"
        _write_chunk(folder / name, group)
        for index, m in group.items():
            m.feed(digest)
            arrays = {key: {"dtype": a.dtype.name, "shape": a.shape} for key, a in m.arrays.items()}
            who = {field: getattr(m, field) for field in ("sender", "receiver", "step", "epoch", "kind")}
            where = {"index": index, "chunk": name, "arrays": arrays, "rows": m.rows is not None}
            entries.append(who | where)
    manifest = {"format": FORMAT, "schema": 1, "parties": transcript.parties, "messages": entries}
    settings = {"recording": str(transcript.recording), "population": transcript.population}
    manifest |= settings | {"digest": digest.hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def load(folder: str | os.PathLike[str]) -> Transcript:
    """Validate a saved transcript, holding one message at a time, then return it to be read as needed."""
    root = Path(folder).absolute()
    if not root.is_dir():
        raise InputError(f"no transcript folder {str(root)!r}")
    root = root.resolve()
    manifest = _read_manifest(root)
    order, digest, stored, seen = Transcript(Recording.none()), hashlib.sha256(), list[Stored](), set[str]()
    for name, group in itertools.groupby(manifest.messages, key=lambda entry: entry.chunk):
        with _blaming(root / name):
            if name in seen:  # returning to a chunk would make reading slow, and no writer does it
                raise InputError("its messages do not stand together in the manifest")
            seen.add(name)
            for entry, message in _checked_chunk(root, name, list(group), manifest.parties, len(stored)):
                order.append(message)
                message.feed(digest)
                stored.append(entry)
    with _blaming(root / MANIFEST):
        if manifest.digest not in (None, digest.hexdigest()):
            raise InputError("the digest does not match the messages")
        return Transcript.of_files(Recording.parse(manifest.recording), manifest.population, stored, Spool())


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turn whatever a bad file causes into one sentence that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"bad transcript file {str(path)[:300]!r}: {error}") from None
    except (SafetensorError, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(f"bad transcript file {str(path)[:300]!r}: it cannot be read ({error})") from None


def _size_of(path: Path) -> int:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise InputError(f"it is {kind}: expected a file in the folder itself")
    return found.st_size


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST
    with _blaming(path):
        if not path.exists():
            raise InputError("it is missing")
        if (size := _size_of(path)) > MAX_MANIFEST:
            raise InputError(f"it is too large ({size} bytes, expected at most {MAX_MANIFEST})")
        try:
            manifest = Manifest.model_validate_json(path.read_bytes())
        except ValidationError as errors:
            raise InputError(_first_fault(errors)) from None
        except RecursionError:
            raise InputError("it is not JSON: nested too deeply") from None
        for party in manifest.parties:
            check_name("party", party)
        return manifest


def _first_fault(errors: ValidationError) -> str:
    fault = errors.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])[:200]
    if fault["type"] == "json_invalid":
        return f"it is not JSON: {fault['msg']}"
    if fault["type"] == "extra_forbidden":
        return f"unknown key {where!r}"
    return f"{where!r} is wrong: {fault['msg']}"


def _checked_chunk(
    root: Path, name: str, group: list[MessageEntry], parties: tuple[str, ...], first: int
) -> Iterator[tuple[Stored, Message]]:
    """The messages of one chunk, each yielded after it was checked against the manifest."""
    chunk = _checked_file(root, name)
    for position, entry in enumerate(group, start=first):
        if entry.index != position:
            raise InputError(f"message {position} has index {entry.index}: expected messages in order")
        for party in (entry.sender, entry.receiver):
            if party not in parties:
                raise unknown("party", party, parties)
        for array in entry.arrays.values():
            if array.dtype not in DTYPES:
                raise unknown("dtype", array.dtype, DTYPES)
    handle = safe_open(chunk.path, "np")
    _check_contents(handle, group)
    for e in group:
        who = (e.sender, e.receiver, e.step, e.kind, e.epoch)
        stored = Stored(*who, tuple(e.arrays), e.rows, chunk, e.index)
        try:
            yield stored, stored.read(handle)
        except InputError as error:
            raise InputError(f"message {e.index}: {error}") from None


def _checked_file(root: Path, name: str) -> Chunk:
    """The chunk of this name, if it is one and the header length in its first 8 bytes is possible."""
    if not CHUNK_NAME.fullmatch(name):
        raise InputError(f"chunk {name!r} is not a plain file name like 'chunk-00000.safetensors'")
    path = root / name
    if not os.path.lexists(path):
        raise InputError("this chunk is missing")
    size = _size_of(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise InputError(f"a header of {length} bytes does not fit (the file has {size}, the limit {MAX_HEADER})")
    return Chunk.of(path)


def _check_contents(handle: Any, group: list[MessageEntry]) -> None:
    """Compare the arrays of an open chunk with those that the manifest lists, before any of them is read."""
    expected: dict[str, tuple[str, list[int] | None]] = {}
    for entry in group:
        for name, array in entry.arrays.items():
            expected[f"{entry.index}/{name}"] = (DTYPES[array.dtype], list(array.shape))
        if entry.rows:
            expected[f"{entry.index}/{ROWS}"] = (DTYPES["int64"], None)
    found = set(handle.keys())
    for key in sorted(expected.keys() - found):
        raise InputError(f"array {key!r} is listed but absent")
    for key in sorted(found - expected.keys()):
        raise InputError(f"array {key[:200]!r} is not listed in the manifest")
    for key, (dtype, shape) in expected.items():
        there = handle.get_slice(key)
        if there.get_dtype() != dtype:
            raise InputError(f"array {key!r} has dtype {there.get_dtype()}, expected {dtype}")
        if shape is not None and there.get_shape() != shape:
            raise InputError(f"array {key!r} has shape {there.get_shape()}, expected {shape}")
