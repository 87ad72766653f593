"""From a name or a file to a `VerticalDataset`: load, shuffle, reserve the pool, split, deal out the columns."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from vflaudit import registry
from vflaudit.core import partition as deal
from vflaudit.core.config import sentence
from vflaudit.core.dataset import SPLITS, Array, Block, Table, Task, VerticalDataset
from vflaudit.core.published import PUBLISHED, as_published
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError, unknown

PARTITIONS = ("round-robin", "one-feature:COUNT", "equal-blocks", "quadrants", "slices", "importance", *PUBLISHED)
FILES = (".csv", ".tsv", ".parquet", ".gz")


class SplitSpec(BaseModel):
    """Who holds which columns, as a TOML file: `[parties]` with lists of column names, and optionally `label_owner`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    parties: dict[str, list[str]]
    label_owner: str = "label_owner"


def read_split(path: str | Path) -> SplitSpec:
    """Read and check a split specification."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = SplitSpec(**content)
    except OSError as error:
        raise InputError(f"split file {str(path)!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"split file {str(path)!r} is not TOML: {error}") from None
    except ValidationError as error:
        raise sentence(error, SplitSpec, f"split file {str(path)!r}") from None
    if not spec.parties:
        raise InputError(f"split file {str(path)!r} names no party: expected a [parties] table of column lists")
    return spec


def parse_data(text: str) -> tuple[str, dict[str, str]]:
    """`synthetic:rows=500,skew=1` -> name and options. A path keeps its colons."""
    if looks_like_file(text):
        return text, {}
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"data {text!r}: expected NAME:KEY=VALUE,..., not {pair!r}")
        options[key.strip()] = value.strip()
    return name, options


def looks_like_file(text: str) -> bool:
    """True for paths, so that a missing file is told as a missing file and not as an unknown dataset."""
    return "/" in text or "\\" in text or text.lower().endswith(FILES)


def load_table(data: str, *, label: str | None = None, task: Task | None = None, id_column: str | None = None) -> Table:
    """The table behind a dataset name (with options) or a CSV/Parquet path."""
    name, options = parse_data(data)
    if looks_like_file(data):
        from vflaudit.core.sources.user import read_user_file

        if not Path(data).exists():
            raise InputError(f"data file {data!r} does not exist")
        if label is None:
            raise InputError(f"data {data!r} is a file: say which column is the label with --label COLUMN")
        return read_user_file(Path(data), label, task=task, id_column=id_column)
    if label is not None or id_column is not None:
        raise InputError(f"--label and --id belong to a file of your own; dataset {name!r} has its label built in")
    loader = registry.load("datasets", name)
    return loader(**_typed(loader, name, options))


def _typed(loader: Any, name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Options as the loader's annotations want them."""
    known = inspect.signature(loader, eval_str=True).parameters
    values = {}
    for key, value in options.items():
        if key not in known:
            raise unknown(f"option of dataset {name!r}", key, known)
        try:
            values[key] = TypeAdapter(known[key].annotation).validate_python(value)
        except ValidationError as error:
            raise InputError(f"dataset {name!r}, option {key}={value!r}: {error.errors()[0]['msg'].lower()}") from None
    return values


def load_dataset(
    data: str | Table,
    *,
    parties: int | None = None,
    partition: str = "round-robin",
    split: str | Path | Mapping[str, Sequence[str]] | None = None,
    label: str | None = None,
    task: Task | None = None,
    id_column: str | None = None,
    label_owner: str | None = None,
    aux: float = 0.3,
    shares: Sequence[float] = (0.7, 0.1, 0.2),
    overlap: float = 1.0,
    aligned: int | None = None,
    alpha: float = 0.5,
    rows: int | None = None,
    seed: int = 0,
) -> VerticalDataset:
    """Load a dataset and split it vertically.

    `data` is a name (`breast-cancer`, `synthetic:rows=500`) or a path. `split` (a TOML file or {party: columns}) says
    who holds what; otherwise `parties` and `partition` do. `aux` is the share of rows that no party holds, `shares` are
    train/validation/test of the rest (70/10/20 as RAP 4.1), `overlap` the share of rows that each party holds.
    With `aligned`, the label owner (or else the first party) holds every row, and the others exactly so many of the
    training rows, the same ones, and all rows to validate and test on (APC-VFL V-A c).
    """
    table = data if isinstance(data, Table) else load_table(data, label=label, task=task, id_column=id_column)
    if not 0 <= aux < 1:
        raise InputError(f"aux={aux}: expected a share of rows in 0..1")
    if not 0 < overlap <= 1:
        raise InputError(f"overlap={overlap}: expected a share of rows in 0..1")
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise InputError(f"shares={tuple(shares)}: expected three shares of train, validation and test that sum to 1")
    if aligned is not None and overlap < 1:
        raise InputError("give either aligned, a number of training rows, or overlap, a share of all rows, not both")
    order = stream(seed, "rows").permutation(len(table.labels))
    if rows is not None:
        if not 1 <= rows <= len(order):
            raise InputError(f"rows={rows}: dataset {table.name!r} has {len(order)} rows")
        order = order[:rows]
    spec, columns = _columns(table, split, parties, partition, alpha, seed)
    owner = label_owner or (spec.label_owner if spec else "label_owner")
    pool, held = order[: round(aux * len(order))], order[round(aux * len(order)) :]
    if len(held) < 10:
        raise InputError(f"dataset {table.name!r}: {len(held)} rows are left after aux={aux}, at least 10 are needed")
    cuts = np.round(np.cumsum(shares)[:2] * len(held)).astype(int)
    parts = dict(zip(SPLITS, np.split(np.arange(len(held)), cuts), strict=True))
    return VerticalDataset(
        name=table.name,
        task=table.task,
        blocks=_few_aligned(_blocks(table, held, columns, overlap, seed), parts["train"], aligned, owner, seed),
        labels=table.labels[held],
        ids=_ids(table)[held],
        split=parts,
        label_owner=owner,
        classes=table.classes,
        aux=_pool(table, pool, columns, owner) if len(pool) else None,
        notes=table.notes,
    )


def _ids(table: Table) -> Array:
    assert table.ids is not None
    return table.ids


def _columns(
    table: Table, split: Any, parties: int | None, partition: str, alpha: float, seed: int
) -> tuple[SplitSpec | None, deal.Partition]:
    if split is not None:
        if parties is not None:
            raise InputError("give either a split of columns by party or a number of parties, not both")
        if isinstance(split, Mapping):
            spec = SplitSpec(parties={party: list(names) for party, names in split.items()})
        else:
            spec = read_split(split)
        return spec, deal.by_name(table, spec.parties)
    if partition in PUBLISHED:
        if parties is not None:
            raise InputError(f"partition {partition!r} is a paper's own: it fixes the parties, leave their number out")
        return None, as_published(table, partition)
    count = 4 if parties is None else parties
    rng = stream(seed, "partition", partition.partition(":")[0])
    if partition == "round-robin":
        return None, deal.round_robin(table, count, rng)
    if partition.startswith("one-feature:") and partition.removeprefix("one-feature:").isdecimal():
        return None, deal.one_feature(table, count, rng, count=int(partition.removeprefix("one-feature:")))
    if partition == "equal-blocks":
        return None, deal.equal_blocks(table, count)
    if partition == "slices":
        return None, deal.image_slices(table, count)
    if partition == "importance":
        return None, deal.importance_biased(table, count, rng, alpha=alpha)
    if partition == "quadrants":
        if count != 4:
            raise InputError(f"quadrants are for 4 parties, not {count}")
        return None, deal.image_quadrants(table)
    raise unknown("partition", partition, PARTITIONS)


def _image(table: Table, positions: list[int]) -> tuple[int, ...] | None:
    """The shape of a party's patch if its pixels form a rectangle."""
    if table.image is None or len(table.image) != 2:
        return None
    rows, cols = np.unravel_index(np.array(positions), table.image)
    shape = (int(np.ptp(rows)) + 1, int(np.ptp(cols)) + 1)
    return shape if shape[0] * shape[1] == len(positions) else None


def _blocks(table: Table, rows: Array, columns: deal.Partition, overlap: float, seed: int) -> dict[str, Block]:
    blocks = {}
    for party, positions in columns.items():
        present = stream(seed, "presence", party).random(len(rows)) < overlap
        blocks[party] = Block(
            columns=tuple(table.columns[i] for i in positions),
            values=table.values[rows][:, positions],
            present=present,
            image=_image(table, positions),
        )
    return blocks


def _few_aligned(
    blocks: dict[str, Block], train: Array, aligned: int | None, owner: str, seed: int
) -> dict[str, Block]:
    """Take all but `aligned` training rows away from everybody but the label owner (or else the first party)."""
    if aligned is None:
        return blocks
    if not 1 <= aligned <= len(train):
        raise InputError(f"aligned={aligned}: there are {len(train)} training rows")
    keeper = owner if owner in blocks else next(iter(blocks))
    gone = stream(seed, "aligned").permutation(train)[aligned:]
    kept = ~np.isin(np.arange(len(blocks[keeper].present)), gone)
    return {
        party: block if party == keeper else replace(block, present=block.present & kept)
        for party, block in blocks.items()
    }


def _pool(table: Table, rows: Array, columns: deal.Partition, owner: str) -> VerticalDataset:
    return VerticalDataset(
        name=f"{table.name} (auxiliary pool)",
        task=table.task,
        blocks=_blocks(table, rows, columns, 1.0, 0),
        labels=table.labels[rows],
        ids=_ids(table)[rows],
        split={"train": np.arange(len(rows))},
        label_owner=owner,
        classes=table.classes,
    )
