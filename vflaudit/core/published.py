"""Who holds which columns in the papers' own experiments, by the name of the paper."""

from __future__ import annotations

from typing import Any

from vflaudit.core import partition as deal
from vflaudit.core.dataset import Table
from vflaudit.errors import InputError

Split = dict[str, tuple[str, ...]]
REST: tuple[str, ...] = ()  # all columns of the table that no other party is given

# vFedSec, appendix A.1. The first party is the active one; each of the others is a cluster of passive parties.
VFEDSEC: tuple[Split, ...] = (
    {
        "client1": (
            "housing", "loan", "contact", "day", "month", "campaign", "pdays", "previous", "poutcome",
        ),
        "client2": ("default", "balance"),
        "client3": ("age", "job", "marital", "education"),
    },
    {
        "client1": ("workclass", "occupation", "capital-gain", "capital-loss", "hours-per-week"),
        "client2": ("race", "marital-status", "relationship", "age", "sex", "native-country"),
        "client3": ("education",),
    },
    {
        "client1": ("pid", "cms_group_id", "cate_id", "brand", "new_user_class_level", "price"),
        "client2": ("final_gender_code", "age_level", "occupation"),
        "client3": ("pvalue_level", "shopping_level"),
    },
)  # fmt: skip

# APC-VFL, V-A c. The active party's columns, those that go over to the passive party first in front; the passive party
# has all others. The first tuple is Breast Cancer Wisconsin (Diagnostic), 569 rows, as scikit-learn names its columns.
APC_VFL: tuple[tuple[str, ...], ...] = (
    ("worst compactness", "concave points error", "smoothness error", "mean texture", "worst fractal dimension"),
    ("NumCPTevents", "NumProcs", "Age", "NumCallouts", "NumDiagnosis"),
)


def _active_columns(count: int) -> tuple[Split, ...]:
    """APC-VFL with so many columns left at the active party: client1; client2 has the rest of the table."""
    return tuple({"client1": columns[-count:], "client2": REST} for columns in APC_VFL)


PUBLISHED: dict[str, tuple[Split, ...]] = {
    "vfedsec": VFEDSEC,
    "apc-vfl": _active_columns(5),
    **{f"apc-vfl:{count}": _active_columns(count) for count in (5, 4, 3, 2)},
}

# How APC-VFL divides rows (V-A c), as options of `load_dataset` besides the partition. Breast Cancer has 500 rows at
# the active party, of which 100 are aligned, and 62 that the federation never sees; of MIMIC-III's 20,000, the 500 that
# it never sees are taken to be a part.
APC_VFL_PARTIAL: dict[str, dict[str, Any]] = {
    "breast-cancer": {"rows": 562, "aux": 0.0, "shares": (500 / 562, 0.0, 62 / 562), "aligned": 100},
    "mimic-iii": {"rows": 20_000, "aux": 0.0, "shares": (0.975, 0.0, 0.025), "aligned": 2500},
}


def apc_vfl_classical(aligned: int, test: int = 50) -> dict[str, Any]:
    """The setting of Tables II and III: all rows are aligned, and `test` of them (50, or 500) are kept for testing."""
    return {"rows": aligned, "aux": 0.0, "shares": ((aligned - test) / aligned, 0.0, test / aligned)}


def as_published(table: Table, paper: str) -> deal.Partition:
    """The paper's split of this table, found by its column names; columns that the paper leaves out stay out."""
    names = {column.name for column in table.columns}
    for split in PUBLISHED[paper]:
        if all(column in names for columns in split.values() for column in columns):
            given = {column for columns in split.values() for column in columns}
            rest = tuple(column.name for column in table.columns if column.name not in given)
            return deal.by_name(table, {party: columns or rest for party, columns in split.items()})
    raise InputError(f"the paper behind partition {paper!r} has no split of dataset {table.name!r}: give one as a file")
