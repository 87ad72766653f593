"""What APC-VFL's accuracy is compared with: experiments in the settings of Figures 6 and 7 and of Table III."""

from __future__ import annotations

from typing import Any

from vflaudit.claims.apcvfl.numbers import CANCER
from vflaudit.core.published import APC_VFL_PARTIAL, apc_vfl_classical
from vflaudit.lab.experiment import Experiment

SIZES = (250, 200, 150, 100)  # aligned rows (Table III)
COLUMNS = (5, 4, 3, 2)  # of the active party (Fig. 6 and 7)


def useful(protocol: str, columns: int, **settings: Any) -> Experiment:
    """A target in the setting of V-A c, to be compared by accuracy."""
    return Experiment(
        protocol=protocol,
        attack="random-guess",
        data=CANCER,
        partition=f"apc-vfl:{columns}",
        control="negative",
        set=settings,
        **APC_VFL_PARTIAL[CANCER],
    )


def classical(protocol: str, aligned: int, **settings: Any) -> Experiment:
    """A target in the setting of Table III."""
    return Experiment(
        protocol=protocol,
        attack="random-guess",
        data=CANCER,
        partition="apc-vfl",
        control="negative",
        set=settings,
        **apc_vfl_classical(aligned),
    )


APC = {n: useful("apc-vfl", n) for n in COLUMNS}
LOCAL = {n: useful("apc-vfl", n, variant="local") for n in COLUMNS}
ABLATION = {n: useful("apc-vfl", n, variant="ablation") for n in COLUMNS}
TRANSFER = {n: useful("vfedtrans", n) for n in COLUMNS}
JOINT = {n: classical("apc-vfl", n, variant="collaborative", folds=None) for n in SIZES}
SPLITNN = {n: classical("splitnn", n) for n in SIZES}
