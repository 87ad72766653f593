"""Who holds which columns in the papers' own experiments, by the name of the paper."""

from __future__ import annotations

from vflaudit.core import partition as deal
from vflaudit.core.dataset import Table
from vflaudit.errors import InputError

Split = dict[str, tuple[str, ...]]

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

PUBLISHED: dict[str, tuple[Split, ...]] = {"vfedsec": VFEDSEC}


def as_published(table: Table, paper: str) -> deal.Partition:
    """The paper's split of this table, found by its column names; columns that the paper leaves out stay out."""
    names = {column.name for column in table.columns}
    for split in PUBLISHED[paper]:
        if all(column in names for columns in split.values() for column in columns):
            return deal.by_name(table, split)
    raise InputError(f"the paper behind partition {paper!r} has no split of dataset {table.name!r}: give one as a file")
