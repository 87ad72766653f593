"""Vertical data: immutable, fingerprinted, dealt out without loss, and encoded from training rows only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core import partition as deal
from vflaudit.core.dataset import Block, Column, Table, VerticalDataset
from vflaudit.core.preprocess import encode
from vflaudit.core.sources.synthetic import synthetic
from vflaudit.testing.strategies import tables, vertical_datasets


def small() -> VerticalDataset:
    return va.load_dataset("synthetic:rows=60,features=5,categorical=2,seed=3", parties=3, overlap=0.9)


# --- immutability and identity ------------------------------------------------------------------------------


def test_nothing_can_be_changed() -> None:
    data = small()
    block = data.blocks["client1"]
    for array in (data.labels, data.ids, data.split["train"], block.values, block.present):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
        with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
            array.view().flags.writeable = True
    with pytest.raises(TypeError):
        data.blocks["client1"] = block  # type: ignore[index]
    with pytest.raises(TypeError):
        data.split["train"] = data.split["test"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        data.labels = data.labels  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        block.values = block.values  # type: ignore[misc]


def test_a_table_keeps_a_copy() -> None:
    values, labels = np.ones((20, 2)), np.arange(20.0)
    table = Table("t", (Column("a"), Column("b")), values, labels, "regression")
    values[:], labels[:] = 7, 7
    assert (table.values == 1).all() and table.labels[3] == 3


def _other_block(data: VerticalDataset, change: Callable[[Block], Block]) -> VerticalDataset:
    return replace(data, blocks={**data.blocks, "client2": change(data.blocks["client2"])})


def _cell(block: Block) -> Block:
    values = np.array(block.values)
    row = np.flatnonzero(block.present)[0]
    values[row, 0] = np.nextafter(values[row, 0], np.inf)
    return replace(block, values=values)


def _flip(present: np.ndarray) -> np.ndarray:
    other = np.array(present)
    other[np.flatnonzero(present)[0]] = False
    return other


CHANGES: dict[str, Callable[[VerticalDataset], VerticalDataset]] = {
    "one bit of one cell": lambda data: _other_block(data, _cell),
    "presence": lambda data: _other_block(data, lambda block: replace(block, present=_flip(block.present))),
    "a column name": lambda data: _other_block(
        data, lambda block: replace(block, columns=(replace(block.columns[0], name="z"), *block.columns[1:]))
    ),
    "a label": lambda data: replace(data, labels=np.append(1 - data.labels[:1], data.labels[1:])),
    "an id": lambda data: replace(data, ids=np.append(["new"], data.ids[1:])),
    "row order of a split": lambda data: replace(data, split={**data.split, "train": data.split["train"][::-1]}),
    "party order": lambda data: replace(data, blocks=dict(reversed(data.blocks.items()))),
    "party names": lambda data: data.rename({"client1": "guest"}),
    "label owner": lambda data: data.rename({}, label_owner="client1"),
    "the pool": lambda data: replace(data, aux=None),
    "a cell of the pool": lambda data: replace(data, aux=_other_block(data.aux, _cell) if data.aux else None),
    "the name": lambda data: replace(data, name="other"),
    "encoding": encode,
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_changes_the_fingerprint(change: str) -> None:
    assert CHANGES[change](small()).fingerprint != small().fingerprint


def test_the_same_content_has_the_same_fingerprint() -> None:
    data = small()
    again = _other_block(data, lambda block: replace(block, values=np.asfortranarray(block.values)))
    assert data.fingerprint == small().fingerprint == again.fingerprint
    hidden = np.array(data.blocks["client2"].values)
    hidden[~data.blocks["client2"].present] = 9.0  # a row that a party does not hold has no value
    assert _other_block(data, lambda block: replace(block, values=hidden)).fingerprint == data.fingerprint


@given(data=vertical_datasets(), seed=st.integers(0, 99))
def test_fingerprints_tell_row_orders_apart(data: VerticalDataset, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(data))
    assume((order != np.arange(len(data))).any())
    blocks = {p: replace(b, values=b.values[order], present=b.present[order]) for p, b in data.blocks.items()}
    shuffled = replace(data, blocks=blocks, labels=data.labels[order], ids=data.ids[order])
    assert shuffled.fingerprint != data.fingerprint
    back = np.argsort(order)
    blocks = {p: replace(b, values=b.values[back], present=b.present[back]) for p, b in blocks.items()}
    assert replace(data, blocks=blocks).fingerprint == data.fingerprint


@given(data=vertical_datasets())
def test_aligned_rows_are_those_that_everybody_holds(data: VerticalDataset) -> None:
    for part, rows in data.split.items():
        expected = [row for row in rows if all(block.present[row] for block in data.blocks.values())]
        assert data.aligned(part).tolist() == expected
    every = np.concatenate(list(data.split.values()))
    assert sorted(every.tolist()) == list(range(len(data)))


def test_rename_moves_the_pool_too() -> None:
    data = small().rename({"client1": "active", "label_owner": "active"})
    assert data.parties == ("active", "client2", "client3") and data.label_owner == "active"
    assert data.aux is not None and data.aux.parties == data.parties and data.aux.label_owner == "active"


def test_an_unknown_party_tells_the_nearest() -> None:
    with pytest.raises(va.InputError, match="did you mean 'client1'"):
        small().block("cleint1")


BAD_TABLES = {
    "values for 3 labels": ((Column("a"),), np.ones((2, 1)), [0, 1, 0], ("x", "y")),
    "two columns share a name": ((Column("a"), Column("a")), np.ones((2, 2)), [0, 1], ("x", "y")),
    "'b' has a missing or infinite value in row 1": (
        (Column("a"), Column("b")),
        [[1, 1], [1, np.nan]],
        [0, 1],
        ("x", "y"),
    ),
    "not one of the 2 classes": ((Column("a"),), np.ones((2, 1)), [0, 2], ("x", "y")),
}


@pytest.mark.parametrize("message", BAD_TABLES)
def test_bad_tables_are_refused(message: str) -> None:
    columns, values, labels, classes = BAD_TABLES[message]
    with pytest.raises(va.InputError, match=message):
        Table("t", columns, np.asarray(values), np.asarray(labels), "classification", classes)


def test_more_bad_tables_and_blocks() -> None:
    with pytest.raises(va.InputError, match="label is missing"):
        Table("t", (Column("a"),), np.ones((2, 1)), np.array([0, np.inf]), "regression")
    with pytest.raises(va.InputError, match="not unique"):
        Table("t", (Column("a"),), np.ones((2, 1)), np.zeros(2), "regression", ids=np.array(["i", "i"]))
    with pytest.raises(va.InputError, match="do not fit"):
        Block((Column("a"),), np.ones((3, 2)), np.ones(3))
    block = Block((Column("a"),), np.ones((3, 1)), np.ones(3))
    with pytest.raises(va.InputError, match="3 rows, not 2"):
        VerticalDataset("d", "regression", {"p": block}, np.zeros(2), np.arange(2), {})
    with pytest.raises(va.InputError, match="no party"):
        VerticalDataset("d", "regression", {}, np.zeros(2), np.arange(2), {})


# --- dealing out columns ------------------------------------------------------------------------------------


def everything(partition: deal.Partition) -> list[int]:
    return sorted(position for hand in partition.values() for position in hand)


@given(table=tables(min_columns=2), parties=st.integers(1, 7), seed=st.integers(0, 99))
def test_partitions_are_partitions(table: Table, parties: int, seed: int) -> None:
    rng, total = np.random.default_rng(seed), len(table.columns)
    if parties > total:
        for call in (lambda: deal.round_robin(table, parties, rng), lambda: deal.equal_blocks(table, parties)):
            with pytest.raises(va.InputError, match=f"asked for: {parties}"):
                call()
        return
    for dealt in (deal.round_robin(table, parties, rng), deal.equal_blocks(table, parties)):
        sizes = [len(hand) for hand in dealt.values()]
        assert everything(dealt) == list(range(total))
        assert list(dealt) == [f"client{number}" for number in range(1, parties + 1)]
        assert max(sizes) - min(sizes) <= 1
    blocks = list(deal.equal_blocks(table, parties).values())
    assert [position for hand in blocks for position in hand] == list(range(total))


def test_round_robin_follows_its_generator() -> None:
    table = synthetic(rows=30, features=12)
    first, again, other = (deal.round_robin(table, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first == again != other


@given(height=st.integers(2, 9), width=st.integers(2, 9), parties=st.integers(1, 5))
def test_image_partitions_are_rectangles(height: int, width: int, parties: int) -> None:
    columns = tuple(Column(f"p{k}") for k in range(height * width))
    table = Table("i", columns, np.zeros((20, len(columns))), np.zeros(20), "regression", image=(height, width))
    quarters = deal.image_quadrants(table)
    grid = np.arange(height * width).reshape(height, width)
    top, left = (height + 1) // 2, (width + 1) // 2
    expected = (grid[:top, :left], grid[:top, left:], grid[top:, :left], grid[top:, left:])
    assert [quarters[f"client{k}"] for k in (1, 2, 3, 4)] == [part.ravel().tolist() for part in expected]
    if parties > height:
        with pytest.raises(va.InputError, match="cannot be cut"):
            deal.image_slices(table, parties)
        return
    bands = deal.image_slices(table, parties)
    assert [position for hand in bands.values() for position in hand] == list(range(height * width))
    rows = [len(hand) / width for hand in bands.values()]
    assert all(count == int(count) for count in rows) and max(rows) - min(rows) <= 1


def test_patches_keep_their_shape() -> None:
    data = va.load_dataset("digits", partition="quadrants")
    assert [block.image for block in data.blocks.values()] == [(4, 4)] * 4
    whole = va.load_dataset("digits", parties=1, partition="slices").blocks["client1"].values
    pieces = [data.blocks[f"client{k}"].values.reshape(-1, 4, 4) for k in (1, 2, 3, 4)]
    images = np.block([[pieces[0], pieces[1]], [pieces[2], pieces[3]]])
    np.testing.assert_array_equal(images.reshape(len(images), 64), whole)
    slices = va.load_dataset("digits", parties=2, partition="slices")
    assert [block.image for block in slices.blocks.values()] == [(4, 8)] * 2
    assert va.load_dataset("digits", parties=3).blocks["client1"].image is None


@pytest.mark.parametrize(("alpha", "share"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_importance_biased_gives_the_first_party_its_share(alpha: float, share: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 16))
    # columns 2, 5, 11 and 14 decide the label
    labels = (values[:, [2, 5, 11, 14]].sum(axis=1) > 0).astype(int)
    table = Table("t", tuple(Column(f"x{k}") for k in range(16)), values, labels, "classification", ("a", "b"))
    dealt = deal.importance_biased(table, 4, np.random.default_rng(1), alpha=alpha)
    assert everything(dealt) == list(range(16))
    assert len({2, 5, 11, 14} & set(dealt["client1"])) == share
    assert [len(hand) for hand in dealt.values()] == [4, 4, 4, 4]


@given(
    table=tables(min_columns=2),
    parties=st.integers(2, 4),
    alpha=st.sampled_from([0.0, 0.3, 1.0]),
    dominant=st.sampled_from([None, 1, 2]),
)
def test_importance_biased_is_a_partition(table: Table, parties: int, alpha: float, dominant: int | None) -> None:
    assume(parties <= len(table.columns))
    rng = np.random.default_rng(0)
    try:
        dealt = deal.importance_biased(table, parties, rng, alpha=alpha, dominant=dominant)
    except va.InputError as error:
        assert "do not fit" in str(error)
        return
    assert everything(dealt) == list(range(len(table.columns)))
    assert all(dealt.values())


# --- encoding -----------------------------------------------------------------------------------------------


@given(data=vertical_datasets())
def test_encoding_standardises_over_training_rows_and_one_hots(data: VerticalDataset) -> None:
    encoded = encode(data)
    assert encode(encoded) is encoded
    for party, block in encoded.blocks.items():
        raw = data.blocks[party]
        train = data.split["train"][raw.present[data.split["train"]]]
        groups = block.groups()
        assert set(groups) == {column.name for column in raw.columns if column.kind == "categorical"}
        for name, positions in groups.items():
            source = next(k for k, column in enumerate(raw.columns) if column.name == name)
            assert len(positions) == len(raw.columns[source].categories)
            shown = block.values[block.present][:, positions]
            np.testing.assert_array_equal(shown.sum(axis=1), 1)
            np.testing.assert_array_equal(shown.argmax(axis=1), raw.values[block.present, source])
        for position, column in enumerate(block.columns):
            if column.kind == "numeric":
                values = block.values[train, position]
                assert abs(values.mean()) < 1e-9 and (abs(values.std() - 1) < 1e-9 or np.ptp(values) < 1e-9)
        assert (block.values[~block.present] == 0).all()
        np.testing.assert_array_equal(block.present, raw.present)


def test_encoding_ignores_test_rows_and_the_pool() -> None:
    data = small()
    assert data.aux is not None
    train = data.split["train"]
    others = np.setdiff1d(np.arange(len(data)), train)
    rng = np.random.default_rng(0)

    def scramble(block: Block, rows: np.ndarray) -> Block:
        values = np.array(block.values)
        for position, column in enumerate(block.columns):
            categories = len(column.categories)
            values[rows, position] = rng.integers(categories, size=len(rows)) if categories else 50 + rng.normal()
        return replace(block, values=values)

    blocks = {party: scramble(block, others) for party, block in data.blocks.items()}
    pool = {party: scramble(block, np.arange(len(block.present))) for party, block in data.aux.blocks.items()}
    changed = encode(replace(data, blocks=blocks, aux=replace(data.aux, blocks=pool)))
    for party, block in encode(data).blocks.items():
        np.testing.assert_array_equal(block.values[train], changed.blocks[party].values[train])
        assert (block.values[others] != changed.blocks[party].values[others]).any()


def test_the_pool_is_encoded_in_the_same_unit() -> None:
    data = va.load_dataset("breast-cancer", parties=2)
    encoded = encode(data)
    assert data.aux is not None and encoded.aux is not None
    for party, block in data.blocks.items():
        train = block.values[data.split["train"]]
        pool = data.aux.blocks[party].values
        np.testing.assert_allclose(
            encoded.aux.blocks[party].values, (pool - train.mean(axis=0)) / train.std(axis=0), atol=1e-9
        )
        assert encoded.aux.blocks[party].columns == encoded.blocks[party].columns
    assert encoded.standardised and encoded.aux.standardised


def test_without_standardising_numbers_stay() -> None:
    data = small()
    plain = encode(data, standardise=False)
    assert not plain.standardised and plain.encoded
    for party, block in data.blocks.items():
        numeric = [column.name for column in block.columns if column.kind == "numeric"]
        names = [column.name for column in plain.blocks[party].columns]
        for name in numeric:
            before = block.values[:, [column.name for column in block.columns].index(name)]
            np.testing.assert_array_equal(plain.blocks[party].values[:, names.index(name)], before)
