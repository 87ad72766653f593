"""The larger datasets of RAP's claims: used where they are on this computer, replaced by named stand-ins where not."""

from __future__ import annotations

from vflaudit.core.sources.local import find_file

COVTYPE, HIGGS, BANK = "covtype:rows=50000", "higgs-small", "bank"
FILES = {COVTYPE: ("covtype.csv", "covtype.data"), HIGGS: ("binary.train",), BANK: ("bank-full.csv",)}
STAND_INS = {
    COVTYPE: "synthetic:rows=2000,features=10,categorical=2,classes=7",
    HIGGS: "synthetic:rows=2000,features=28",
    BANK: "synthetic:rows=8000,features=8,categorical=8",
}
NAMES = {
    COVTYPE: "covtype (50,000 of the paper's rows)",
    HIGGS: "higgs-small (7,500 rows of the paper's HI or like it)",
    BANK: "bank (real, not the paper's)",
}


def here(data: str) -> bool:
    """Whether the dataset's file is under $VFLAUDIT_DATA. Claims download nothing."""
    return find_file(data.partition(":")[0], FILES[data]) is not None


def chosen(data: str) -> str:
    """The dataset, or its stand-in."""
    return data if here(data) else STAND_INS[data]


def named(*wanted: str) -> str:
    """What is really used, for the verdict's `measured_on`."""
    return ", ".join(NAMES[d] if here(d) else f"{STAND_INS[d]} in place of {d.partition(':')[0]}" for d in wanted)
