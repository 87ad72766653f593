"""Saved transcripts: round trips, and every way in which a stranger's folder can be wrong."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from test_wire import filled, message, same, transcripts

from vflaudit.core import transcript_io
from vflaudit.core.transcript import Message, Recording, Transcript
from vflaudit.errors import InputError

CHUNK = "chunk-00000.safetensors"


def example() -> Transcript:
    rows = np.array([4, 0, 2])
    return filled(
        [
            message(0, rows=rows, epoch=0),
            message(0, sender="client2", arrays={"x": np.arange(6.0).reshape(3, 2), "ok": np.ones(3, bool)}),
            message(1, sender="server", receiver="client1", kind="gradient", epoch=0),
            message(2, rows=rows, epoch=1, arrays={"x": np.zeros((3, 2), dtype=np.float32)}),
        ]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    example().save(tmp_path / "t")
    return tmp_path / "t"


# Round trips


@given(transcripts(), st.sampled_from([0, 10**6]), st.sampled_from([64, 10**6]))
@settings(max_examples=60, deadline=None)
def test_save_and_load_give_the_same_transcript(messages: list[Message], limit: int, chunk_bytes: int) -> None:
    usual, transcript_io.CHUNK_BYTES = transcript_io.CHUNK_BYTES, chunk_bytes
    try:
        with tempfile.TemporaryDirectory() as scratch, filled(messages, memory_limit=limit) as original:
            original.save(Path(scratch) / "deep" / "folder")
            assert [path.name for path in (Path(scratch) / "deep").iterdir()] == ["folder"]
            with Transcript.load(Path(scratch) / "deep" / "folder") as loaded:
                assert all(same(a, b) for a, b in zip(loaded, messages, strict=True))
                assert loaded.digest() == original.digest()
                assert loaded.parties == original.parties and loaded.epochs() == original.epochs()
                assert loaded.only({"server"}).digest() == original.only({"server"}).digest()
    finally:
        transcript_io.CHUNK_BYTES = usual


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": "client2"},
        {"receiver": "client2"},
        {"kind": "gradient"},
        {"epoch": 0},
        {"rows": np.arange(3)},
        {"arrays": {"y": np.zeros((3, 2))}},
        {"arrays": {"x": np.zeros((2, 3))}},
        {"arrays": {"x": np.zeros((3, 2), dtype=np.int64)}},
        {"arrays": {"x": -np.zeros((3, 2))}},
    ],
)
def test_the_digest_sees_every_field(changes: dict[str, Any]) -> None:
    assert filled([message(0)]).digest() == filled([message(0)]).digest()
    assert filled([message(0)]).digest() != filled([message(0, **changes)]).digest()
    assert filled([message(1, n=0)]).digest() != filled([message(2, n=0)]).digest()


def test_recording_and_population_come_along(tmp_path: Path) -> None:
    filled([message(0, rows=np.arange(3))], Recording.sampled_rows(5, 7), population=9).save(tmp_path)
    loaded = Transcript.load(tmp_path)
    assert loaded.recording == Recording.sampled_rows(5, 7) and loaded.population == 9
    with pytest.raises(InputError, match="added"):
        loaded.append(message(9))


def test_saving_replaces_a_transcript_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    other = filled([message(7)])
    other.save(folder)
    assert Transcript.load(folder).digest() == other.digest()
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    with pytest.raises(InputError, match="read from that folder"):
        Transcript.load(folder).save(folder)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="expected an empty folder"):
        other.save(folder)
    with pytest.raises(InputError, match="expected a folder"):
        other.save(folder / "thesis.tex")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="expected an empty folder"):
        other.save(tmp_path / "mine")
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_a_failed_save_leaves_the_old_one(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Transcript.load(folder).digest()
    monkeypatch.setattr(transcript_io, "save_file", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        filled([message(7)]).save(folder)
    assert Transcript.load(folder).digest() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_folder_replaced_after_loading_is_told(folder: Path) -> None:
    loaded = Transcript.load(folder)
    filled([message(7)]).save(folder)
    with pytest.raises(InputError, match="changed"):
        loaded.digest()


def test_a_transcript_without_digest_loads(folder: Path) -> None:
    before = Transcript.load(folder).digest()
    edit(lambda manifest: None)(folder)
    assert "digest" not in json.loads((folder / "manifest.json").read_text())
    assert Transcript.load(folder).digest() == before


# Malformed folders

Change = Callable[[Path], object]


def edit(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change the manifest (and drop its digest, so that the fault itself is what is found)."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest.pop("digest", None)
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return apply


def at(index: int, /, **changes: Any) -> Change:
    return edit(lambda manifest: manifest["messages"][index].update(changes))


def tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Change:
    """Change the arrays in the chunk file."""

    def apply(folder: Path) -> None:
        arrays = {key: array.copy() for key, array in load_file(folder / CHUNK).items()}
        change(arrays)
        save_file(arrays, folder / CHUNK)
        edit(lambda manifest: None)(folder)

    return apply


def text(content: str | bytes) -> Change:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / "manifest.json").write_bytes(data)


def chunk_bytes(change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / CHUNK).write_bytes(change((folder / CHUNK).read_bytes()))


def link(folder: Path) -> None:
    (folder / CHUNK).rename(folder.parent / "elsewhere")
    (folder / CHUNK).symlink_to(folder.parent / "elsewhere")


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def odd_shape(folder: Path) -> None:
    """An empty array whose other sides no array can have."""
    shape = [0, 2**53, 2**53]
    header = json.dumps({"0/x": {"dtype": "F64", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (folder / CHUNK).write_bytes(struct.pack("<Q", len(header)) + header)
    arrays = {"x": {"dtype": "float64", "shape": shape}}
    edit(lambda m: m.update(messages=[m["messages"][1] | {"index": 0, "arrays": arrays}]))(folder)


def poke(key: str, value: float) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[key].reshape(-1)[0] = value

    return tensors(change)


def weird_bool(folder: Path) -> None:
    tensors(lambda a: a.update({"1/ok": np.array([1, 7, 0], dtype=np.uint8).view(bool)}))(folder)


DEEP = "[" * 100_000 + "]" * 100_000

MALFORMED: dict[str, tuple[Change, str]] = {
    "folder missing": (lambda folder: folder.rename(folder.parent / "gone"), "no transcript folder"),
    "manifest missing": (lambda folder: (folder / "manifest.json").unlink(), "missing"),
    "manifest a folder": (
        lambda folder: [(folder / "manifest.json").unlink(), (folder / "manifest.json").mkdir()],
        "regular file",
    ),
    "not JSON": (text("{oops"), "not JSON"),
    "empty": (text(""), "not JSON"),
    "not text": (text(b"\xff\xfe{}"), "not JSON"),
    "lone surrogate": (text('{"format": "\\ud800"}'), "not JSON"),
    "deep JSON": (text(DEEP), "recursion"),
    "deep JSON inside": (text('{"format": ' + DEEP + "}"), "recursion"),
    "a list": (text("[]"), "object"),
    "too large": (lambda folder: os.truncate(folder / "manifest.json", 513 * 2**20), "too large"),
    "another format": (edit(lambda m: m.update(format="zip")), "'format'"),
    "another schema": (edit(lambda m: m.update(schema=2)), "'schema'"),
    "schema missing": (edit(lambda m: m.pop("schema")), "'schema'"),
    "unknown key": (edit(lambda m: m.update(extra=1)), "unknown key 'extra'"),
    "unknown message key": (at(0, pickle="x"), "unknown key 'messages.0.pickle'"),
    "messages wrong type": (edit(lambda m: m.update(messages="none")), "'messages'"),
    "step wrong type": (at(0, step="0"), "'messages.0.step'"),
    "step a float": (at(0, step=0.5), "'messages.0.step'"),
    "step a boolean": (at(0, step=True), "'messages.0.step'"),
    "rows wrong type": (at(0, rows=1), "'messages.0.rows'"),
    "epoch negative": (at(0, epoch=-1), "'messages.0.epoch'"),
    "population negative": (edit(lambda m: m.update(population=-1)), "'population'"),
    "recording unknown": (edit(lambda m: m.update(recording="som")), "recording"),
    "shape negative": (at(1, arrays={"x": {"dtype": "float64", "shape": [-3, 2]}}), "shape"),
    "shape enormous": (at(1, arrays={"x": {"dtype": "float64", "shape": [10**30]}}), "shape"),
    "name too long": (at(0, kind="k" * 10**6), "200 characters"),
    "name unprintable": (at(0, kind="\x1b[31m"), "printable"),
    "party unprintable": (edit(lambda m: m["parties"].append("\x1b")), "printable"),
    "chunk absolute": (at(0, chunk="/etc/passwd"), "plain file name"),
    "chunk above": (at(0, chunk="../chunk-00000.safetensors"), "plain file name"),
    "chunk below": (at(0, chunk="sub/chunk-00000.safetensors"), "plain file name"),
    "chunk backslash": (at(0, chunk="..\\chunk-00000.safetensors"), "plain file name"),
    "chunk NUL": (at(0, chunk="chunk-00000.safetensors\x00"), "plain file name"),
    "chunk a link": (link, "symbolic link"),
    "chunk missing": (lambda folder: (folder / CHUNK).unlink(), "chunk is missing"),
    "chunk a pipe": (
        lambda folder: [(folder / CHUNK).unlink(), os.mkfifo(folder / CHUNK)],
        "regular file",
    ),
    "chunk revisited": (
        both(
            lambda folder: (folder / "chunk-00001.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}"),
            edit(lambda m: m["messages"][1].update(chunk="chunk-00001.safetensors", arrays={})),
            tensors(lambda a: [a.pop("1/x"), a.pop("1/ok"), a.pop("2/x"), a.pop("3/x"), a.pop("3/#rows")]),
            edit(lambda m: m["messages"][2].update(arrays={}, rows=False)),
        ),
        "stand together",
    ),
    "header of 10 GB": (chunk_bytes(lambda data: struct.pack("<Q", 10 * 2**30) + data[8:]), "header of"),
    "header beyond the file": (
        chunk_bytes(lambda data: struct.pack("<Q", len(data)) + data[8:]),
        "header of",
    ),
    "header over the limit": (
        both(
            chunk_bytes(lambda data: struct.pack("<Q", 101 * 2**20) + data[8:]),
            lambda folder: os.truncate(folder / CHUNK, 200 * 2**20),
        ),
        "limit 104857600",
    ),
    "header not JSON": (chunk_bytes(lambda data: data[:8] + b"!" + data[9:]), "header"),
    "header deep": (
        chunk_bytes(lambda data: struct.pack("<Q", len(DEEP) + 6) + b'{"a": ' + DEEP.encode()),
        "cannot be read",
    ),
    "chunk empty": (chunk_bytes(lambda data: b""), "header of 0"),
    "chunk truncated": (chunk_bytes(lambda data: data[:-3]), "cannot be read"),
    "chunk longer": (chunk_bytes(lambda data: data + b"123"), "cannot be read"),
    "array absent": (tensors(lambda a: a.pop("1/x")), "'1/x' is listed but absent"),
    "rows absent": (tensors(lambda a: a.pop("0/#rows")), "'0/#rows' is listed but absent"),
    "array not listed": (tensors(lambda a: a.update({"1/secret": np.zeros(1)})), "'1/secret' is not listed"),
    "rows not listed": (at(0, rows=False), "'0/#rows' is not listed"),
    "dtype differs": (tensors(lambda a: a.update({"1/x": a["1/x"].astype(np.float32)})), "dtype F32"),
    "dtype unsigned": (tensors(lambda a: a.update({"1/x": a["1/x"].view(np.int64)})), "dtype I64"),
    "shape differs": (tensors(lambda a: a.update({"1/x": a["1/x"].T.copy()})), "shape"),
    "shape impossible": (odd_shape, "cannot be read"),
    "dtype not allowed": (at(1, arrays={"x": {"dtype": "float46", "shape": [3, 2]}}), "no dtype named"),
    "dtype complex": (at(1, arrays={"x": {"dtype": "complex64", "shape": [3, 2]}}), "no dtype named"),
    "NaN": (poke("1/x", np.nan), "NaN"),
    "infinity": (poke("3/x", np.inf), "infinite"),
    "boolean neither": (weird_bool, "neither"),
    "array name reserved": (
        both(
            at(2, arrays={"#x": {"dtype": "float64", "shape": [3, 2]}}),
            tensors(lambda a: a.update({"2/#x": a.pop("2/x")})),
        ),
        "reserved",
    ),
    "rows not integer": (
        tensors(lambda a: a.update({"0/#rows": a["0/#rows"].astype(np.float64)})),
        "'0/#rows' has dtype F64",
    ),
    "rows negative": (poke("0/#rows", -4), "negative"),
    "rows too few": (tensors(lambda a: a.update({"0/#rows": np.arange(2)})), "2 row handles"),
    "rows not a list": (
        tensors(lambda a: a.update({"0/#rows": np.zeros((3, 1), dtype=np.int64)})),
        "integers",
    ),
    "duplicate": (at(1, sender="client1"), "twice"),
    "to itself": (at(0, receiver="client1"), "itself"),
    "unknown party": (at(0, sender="client3"), "no party named 'client3'"),
    "step negative": (at(0, step=-1), "step -1"),
    "step enormous": (at(3, step=10**30), "too large"),
    "steps not sorted": (at(2, step=9), "order"),
    "index out of order": (at(2, index=3), "index 3"),
    "wrong digest": (edit(lambda m: m.update(digest="0" * 64)), "digest"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_transcripts_are_refused_in_one_sentence(fault: str, folder: Path) -> None:
    change, word = MALFORMED[fault]
    change(folder)
    with pytest.raises(InputError) as caught:
        Transcript.load(folder)
    sentence = str(caught.value)
    assert word in sentence
    assert "\n" not in sentence and "\x1b" not in sentence and len(sentence) < 1000
    assert type(caught.value) is InputError and caught.value.__cause__ is None


def test_a_huge_header_is_refused_without_allocating(folder: Path) -> None:
    chunk_bytes(lambda data: struct.pack("<Q", 10 * 2**30) + data[8:])(folder)
    os.truncate(folder / CHUNK, 11 * 2**30)  # sparse: the file really is that long
    tracemalloc.start()
    with pytest.raises(InputError, match="header of"):
        Transcript.load(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], str]:
    folder = tmp_path_factory.mktemp("saved") / "t"
    example().save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}, example().digest()


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_bytes_never_load_as_something_else(saved: tuple[dict[str, bytes], str], data: st.DataObject) -> None:
    files, digest = saved
    victim = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[victim])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    with tempfile.TemporaryDirectory() as scratch:
        for name, original in files.items():
            (Path(scratch) / name).write_bytes(bytes(content) if name == victim else original)
        try:
            loaded = Transcript.load(scratch)
        except InputError:
            return
        assert loaded.digest() == digest
