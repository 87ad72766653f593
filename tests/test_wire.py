"""The wire and what is written down: messages, byte counts, rounds, recording levels, spooling, parts."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save as to_bytes

from vflaudit.core.costs import Traffic
from vflaudit.core.transcript import Message, Recording, Transcript
from vflaudit.core.wire import DTYPES, Wire
from vflaudit.errors import InputError

PARTIES = ("server", "client1", "client2", "label_owner")
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=6).filter(
    lambda name: name[0] != "#"
)


def any_array(shape: Any) -> st.SearchStrategy[np.ndarray]:
    return st.sampled_from(sorted(DTYPES)).flatmap(
        lambda dtype: hnp.arrays(
            dtype,
            shape,
            elements={"allow_nan": False, "allow_infinity": False} if dtype.startswith("float") else None,
        )
    )


ARRAYS = st.dictionaries(NAMES, any_array(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), max_size=3)


@st.composite
def transcripts(draw: st.DrawFn, **options: Any) -> list[Message]:
    """Messages that a transcript takes: steps in order, no sending repeated within a step."""
    messages, seen = [], set()
    step = 0
    for _ in range(draw(st.integers(0, 8))):
        step += draw(st.integers(0, 2))
        sender, receiver = draw(st.permutations(PARTIES))[:2]
        kind = draw(st.sampled_from(["embedding", "gradient", "größe"]))
        if (sender, receiver, step, kind) in seen:
            continue
        seen.add((sender, receiver, step, kind))
        rows = None
        if draw(st.booleans()):
            rows = np.array(draw(st.lists(st.integers(0, 49), max_size=5)), dtype=np.int64)
            shape = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
            tails = draw(st.dictionaries(NAMES, shape, max_size=2))
            arrays = {name: draw(any_array((len(rows), *tail))) for name, tail in tails.items()}
        else:
            arrays = draw(ARRAYS)
        epoch = draw(st.none() | st.integers(0, 3))
        messages.append(Message(sender, receiver, step, kind, arrays, rows, epoch))
    return messages


def same(left: Message, right: Message) -> bool:
    fields = ("sender", "receiver", "step", "kind", "epoch")
    if any(getattr(left, field) != getattr(right, field) for field in fields):
        return False
    if list(left.arrays) != list(right.arrays) or (left.rows is None) != (right.rows is None):
        return False
    pairs = [(left.arrays[name], right.arrays[name]) for name in left.arrays]
    if left.rows is not None and right.rows is not None:
        pairs.append((left.rows, right.rows))
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def filled(messages: list[Message], *args: Any, **options: Any) -> Transcript:
    transcript = Transcript(*args, **options)
    for message in messages:
        transcript.append(message)
    return transcript


def message(step: int = 0, *, n: int = 3, **changes: Any) -> Message:
    fields: dict[str, Any] = {"sender": "client1", "receiver": "server", "step": step, "kind": "embedding"}
    fields |= {"arrays": {"x": np.full((n, 2), float(step))}, "rows": None, "epoch": None}
    return Message(**(fields | changes))


# Messages


def test_a_message_owns_read_only_copies() -> None:
    source, rows = np.arange(6.0).reshape(2, 3), np.array([4, 1])
    sent = message(arrays={"x": source.T[:, :], "s": np.float32(2)}, n=3)
    rowed = message(arrays={"x": source}, rows=rows)
    source[:], rows[:] = -1, 0
    assert sent.arrays["x"].base is None and sent.arrays["x"][1, 0] == 1.0
    assert sent.arrays["s"].shape == () and sent.nbytes == 48 + 4
    assert rowed.rows is not None and rowed.rows.tolist() == [4, 1] and rowed.rows.base is None
    for array in (*sent.arrays.values(), rowed.rows):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(TypeError):
        sent.arrays["y"] = source  # type: ignore[index]


def test_foreign_byte_order_is_made_native() -> None:
    sent = message(arrays={"x": np.array([1, 2], dtype=">i4")})
    assert sent.arrays["x"].dtype == np.dtype("int32") and sent.arrays["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"receiver": "client1"}, "itself"),
        ({"sender": ""}, "sender"),
        ({"kind": "a\nb"}, "printable"),
        ({"step": -1}, "step -1"),
        ({"epoch": -2}, "epoch -2"),
        ({"arrays": {"x": np.array([1.0, np.nan])}}, "NaN"),
        ({"arrays": {"x": np.array([np.inf], dtype=np.float16)}}, "infinite"),
        ({"arrays": {"x": np.array([1j])}}, "complex128"),
        ({"arrays": {"x": np.array(["a"], dtype=object)}}, "object"),
        ({"arrays": {"x": np.array([1], dtype=np.uint16)}}, "uint16"),
        ({"arrays": {"#rows": np.zeros(1)}}, "reserved"),
        ({"arrays": {"__metadata__": np.zeros(1)}}, "reserved"),
        ({"arrays": {"\ud800": np.zeros(1)}}, "printable"),
        ({"arrays": {"x": np.array([2, 1], dtype=np.uint8).view(bool)}}, "neither"),
        ({"rows": np.array([0.0, 1.0, 2.0])}, "integers"),
        ({"rows": np.array([[0], [1], [2]])}, "integers"),
        ({"rows": np.array([0, -1, 2])}, "negative"),
        ({"rows": np.array([0, 1])}, "does not fit 2"),
        ({"rows": np.array([0]), "arrays": {"x": np.float64(1)}}, "does not fit 1"),
    ],
)
def test_bad_messages_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        message(**changes)


# The wire


@given(ARRAYS)
@settings(max_examples=60, deadline=None)
def test_the_wire_delivers_every_bit_and_counts_real_bytes(arrays: dict[str, np.ndarray]) -> None:
    transcript = Transcript()
    wire = Wire(PARTIES, transcript)
    received = wire.send("client1", "server", "embedding", arrays)
    assert list(received) == list(arrays)
    size = len(to_bytes(arrays))
    assert wire.costs.sent["client1"] == wire.costs.received["server"] == Traffic(1, size)
    assert wire.costs.sent["server"] == Traffic()
    (kept,) = transcript
    assert same(kept, Message("client1", "server", 0, "embedding", arrays))
    for name, array in received.items():
        assert array.dtype == arrays[name].dtype and array.tobytes() == arrays[name].tobytes()
        assert array.flags.writeable and not np.shares_memory(array, kept.arrays[name])


def test_strided_arrays_arrive_as_they_look() -> None:
    grid = np.arange(12.0).reshape(3, 4)
    received = Wire(PARTIES, Transcript()).send("client1", "server", "x", {"t": grid.T, "c": grid[:, ::2]})
    assert (received["t"] == grid.T).all() and (received["c"] == grid[:, ::2]).all()


def test_rounds_and_row_handles() -> None:
    transcript = Transcript()
    wire = Wire(PARTIES, transcript)
    wire.next_round()  # nothing was sent yet: round 0 is still to come
    x = {"x": np.zeros((2, 3), dtype=np.float32)}
    wire.send("client1", "server", "embedding", x, rows=np.array([5, 2]), epoch=1)
    wire.send("client2", "server", "embedding", x)
    wire.next_round()
    wire.next_round()
    wire.send("server", "client1", "gradient", x)
    assert [m.step for m in transcript] == [0, 0, 1] and wire.step == 1
    size = len(to_bytes(x))
    costs = wire.costs
    assert costs.rounds == 2 and costs.total == Traffic(3, 3 * size)
    assert costs.critical_bytes == 2 * size + size  # the server receives twice in the first round
    first = next(iter(transcript))
    assert first.rows is not None and first.rows.tolist() == [5, 2] and first.epoch == 1
    assert Wire(PARTIES, transcript).step == 2


@pytest.mark.parametrize("recording", [Recording.all(), Recording.none()])
def test_what_the_wire_refuses_is_neither_kept_nor_counted(recording: Recording) -> None:
    transcript = Transcript(recording)
    wire = Wire(PARTIES, transcript)
    x = {"x": np.zeros(2)}
    wire.send("client1", "server", "embedding", x)
    kept, costs = len(transcript), wire.costs
    for args, word in [
        (("client9", "server", "y", x), "client"),
        (("client1", "sever", "y", x), "'server'"),
        (("client1", "client1", "y", x), "itself"),
        (("client1", "server", "embedding", x), "twice"),
        (("client1", "server", "y", {"x": np.array([np.nan])}), "NaN"),
        (("client1", "server", "y", {"x": np.array([1j])}), "dtype"),
    ]:
        with pytest.raises(InputError, match=word):
            wire.send(*args)  # type: ignore[arg-type]
    assert len(transcript) == kept and wire.costs == costs
    with pytest.raises(InputError, match="share a name"):
        Wire(["a", "a"], Transcript())


# Transcripts and recording levels


def test_order_and_repetition_are_checked() -> None:
    transcript = filled([message(3)])
    with pytest.raises(InputError, match="order"):
        transcript.append(message(2))
    with pytest.raises(InputError, match="twice"):
        transcript.append(message(3))
    transcript.append(message(3, kind="other"))
    transcript.close()
    with pytest.raises(InputError, match="closed"):
        transcript.append(message(4))
    with pytest.raises(InputError, match="closed"):
        list(transcript)


def test_select_and_indexes() -> None:
    transcript = filled(
        [
            message(0),
            message(1, sender="server", receiver="client2", kind="gradient", epoch=2),
            message(2, sender="client2", epoch=0),
        ]
    )
    steps = lambda **wanted: [m.step for m in transcript.select(**wanted)]
    assert steps() == [0, 1, 2] and len(transcript) == 3
    assert steps(sender="client2") == [2] and steps(receiver="server") == [0, 2]
    assert steps(kind="gradient") == [1] and steps(epoch=0) == [2]
    assert steps(touching={"client2"}) == [1, 2] and steps(touching=set()) == []
    assert transcript.parties == ("client1", "server", "client2")
    assert transcript.kinds() == ("embedding", "gradient") and transcript.epochs() == (0, 2)


@given(transcripts())
@settings(max_examples=60, deadline=None)
def test_spooled_and_in_memory_transcripts_are_identical(messages: list[Message]) -> None:
    plain = filled(messages)
    with filled(messages, memory_limit=300) as spooled:
        assert all(same(a, b) for a, b in zip(spooled, messages, strict=True))
        assert all(m.rows is None or m.rows.base is None for m in spooled)
        assert all(a.base is None and not a.flags.writeable for m in spooled for a in m.arrays.values())
        assert spooled.digest() == plain.digest() and spooled.parties == plain.parties


@given(transcripts(), st.sets(st.sampled_from(PARTIES)), st.sampled_from([0, 10**6]))
@settings(max_examples=60, deadline=None)
def test_only_keeps_what_these_parties_saw(messages: list[Message], parties: set[str], limit: int) -> None:
    with filled(messages, memory_limit=limit) as whole, whole.only(parties) as part:
        expected = [m for m in messages if m.sender in parties or m.receiver in parties]
        assert all(same(a, b) for a, b in zip(part, expected, strict=True))
        assert not part.files() & whole.files()


@pytest.mark.parametrize("limit", [0, 10**6])
def test_only_reaches_nothing_else(limit: int, tmp_path: Path) -> None:
    whole = filled([message(0), message(1, sender="client2")], memory_limit=limit, spool_dir=tmp_path)
    part = whole.only({"client2"})
    reached, todo = {}, [part]
    while todo:
        thing = todo.pop()
        if id(thing) not in reached and not isinstance(thing, type) and type(thing).__name__ != "module":
            reached[id(thing)] = thing
            todo += gc.get_referents(thing)
    assert whole not in [thing for thing in reached.values() if isinstance(thing, Transcript)]
    assert all(m.sender == "client2" for m in reached.values() if isinstance(m, Message))
    alive = weakref.ref(whole)
    del whole, reached
    gc.collect()
    assert alive() is None
    assert [m.step for m in part] == [1]
    with pytest.raises(InputError, match="added"):
        part.append(message(5))


def test_the_spool_goes_with_the_transcript(tmp_path: Path) -> None:
    spooled = filled([message(i) for i in range(5)], memory_limit=0, spool_dir=tmp_path)
    assert len(spooled.files()) == 5 and len(list(tmp_path.rglob("*.safetensors"))) == 5
    spooled.close()
    assert not list(tmp_path.iterdir())
    spooled = filled([message(0)], memory_limit=0, spool_dir=tmp_path)
    assert len(list(spooled)) == 1
    del spooled
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_spool_file_that_changed_is_told(tmp_path: Path) -> None:
    spooled = filled([message(0)], memory_limit=0, spool_dir=tmp_path)
    (path,) = spooled.files()
    path.write_bytes(b"x")
    with pytest.raises(InputError, match="changed"):
        list(spooled)
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        list(spooled)


def test_many_small_arrays_are_split_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from vflaudit.core import transcript_io

    monkeypatch.setattr(transcript_io, "CHUNK_ARRAYS", 6)
    with filled([message(i, n=1) for i in range(10)], memory_limit=5000) as spooled:
        assert len(spooled.files()) > 1
        assert [m.step for m in spooled] == list(range(10))


@pytest.mark.parametrize("limit", [0, 10**6])
def test_sampled_rows_are_the_same_everywhere(limit: int) -> None:
    rng = np.random.default_rng(0)
    recording = Recording.sampled_rows(20, seed=3)
    messages = []
    for step in range(30):
        rows = rng.permutation(100)[:40]
        messages.append(message(step, arrays={"x": rows * 1.0}, rows=rows, epoch=step // 5))
        messages.append(message(step, kind="weights"))
    kept = filled(messages, recording, population=100, memory_limit=limit)
    sampled = set(np.flatnonzero(recording.row_mask(100)).tolist())
    assert len(sampled) == 20
    for original, found in zip(messages, kept, strict=True):
        if original.rows is None or found.rows is None:
            assert same(original, found)
            continue
        assert found.rows.tolist() == [row for row in original.rows.tolist() if row in sampled]
        assert found.arrays["x"].tolist() == found.rows.tolist()
    assert kept.only({"server"}).digest() == kept.digest()


def test_row_samples_are_nested_seeded_and_prefix_stable() -> None:
    small, large = (set(np.flatnonzero(Recording.sampled_rows(n, 1).row_mask(500))) for n in (50, 200))
    assert small < large and len(large) == 200
    assert small != set(np.flatnonzero(Recording.sampled_rows(50, 2).row_mask(500)))
    assert Recording.sampled_rows(900, 1).row_mask(500).all()


def test_sampling_edges() -> None:
    recording = Recording.sampled_rows(1, 0)
    with pytest.raises(InputError, match="population"):
        Transcript(recording)
    (chosen,) = np.flatnonzero(recording.row_mask(10))
    others = np.setdiff1d(np.arange(10), [chosen])[:3]
    transcript = filled([message(0, rows=others)], recording, population=10)
    assert len(transcript) == 0  # none of its rows is sampled
    with pytest.raises(InputError, match="row handle 10"):
        transcript.append(message(1, rows=np.array([0, 1, 10])))


@pytest.mark.parametrize("limit", [0, 900, 10**6])
def test_last_epochs(limit: int, tmp_path: Path) -> None:
    messages = [message(0)] + [message(1 + i, epoch=i // 3) for i in range(15)]
    messages.append(message(20, epoch=0))  # too old by then
    kept = filled(messages, Recording.last_epochs(2), memory_limit=limit, spool_dir=tmp_path)
    assert kept.epochs() == (3, 4)
    assert [m.step for m in kept] == [0, *range(10, 16)]
    if limit == 0:
        assert len(list(tmp_path.rglob("*.safetensors"))) == 7  # files of forgotten epochs are gone


def test_none_records_nothing() -> None:
    transcript = filled([message(i) for i in range(3)], Recording.none())
    assert len(transcript) == 0 and transcript.parties == () and transcript.next_step == 3


@pytest.mark.parametrize("text", ["all", "none", "epochs=5", "rows=200,seed=0", "rows=7,seed=12"])
def test_recordings_parse_and_print(text: str) -> None:
    assert str(Recording.parse(text)) == text
    assert Recording.parse("rows=200") == Recording.sampled_rows(200, 0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("al", "'all'"),
        ("row=3", "rows=N"),
        ("epoch=3", "epochs=K"),
        ("", "expected one of"),
        ("rows", "rows=200"),
        ("rows=x", "rows=200"),
        ("rows=-1", "rows=200"),
        ("rows=0", "at least 1"),
        ("epochs=0", "at least 1"),
        ("all=3", "'all'"),
        ("epochs=3,seed=1", "epochs=5"),
        ("rows=3,sed=1", "rows=200"),
        ("rows=3,seed=1,seed=2", "rows=200"),
    ],
)
def test_bad_recordings_are_told_in_a_sentence(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Recording.parse(text)
