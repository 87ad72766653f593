"""What TabVFL's claims are measured on: data, and experiments in the settings of Fig. 5, Tables III and IV.

The paper trains for up to 300 epochs in each phase on up to 50,000 rows. `ROWS` and `SHORT` are what a laptop can do in
minutes: with a small part of the steps, designs learn at TabNet's own default rate, twenty times the authors'. It was
chosen by what Central TabNet, which all others are to come close to, does on other seeds.
"""

from __future__ import annotations

from typing import Any

from vflaudit.core.sources.local import find_file
from vflaudit.lab.experiment import Experiment

CANCER = "breast-cancer"
SHARES = (0.7, 0.15, 0.15)  # V-B
GUESTS = 5  # V-C
ROWS = 2000  # of bank and covtype, stratified
SHORT: dict[str, Any] = {
    "learning_rate": 0.02,
    "pretrain_epochs": 10,
    "finetune_epochs": 30,
}  # early stopping as published
OBSERVED: dict[str, Any] = {
    "pretrain_epochs": 50,
    "finetune_epochs": 2,
    "patience": None,
}  # where the host watches: more tell it more
FAILING: dict[str, Any] = {
    **SHORT,
    "batch_size": 128,
    "pretrain_epochs": 60,
    "finetune_epochs": 60,
    "patience": None,
}  # V-C: 120
FILES = {"bank": ("bank-full.csv",), "covtype": ("covtype.csv", "covtype.data")}
REAL = tuple(name for name, files in FILES.items() if find_file(name, files) is not None)
LATENTS = (16, 32, 64)  # Table III
CHANCES = (0.2, 0.35, 0.5)  # P_fail (V-C3)


def source(name: str, rows: int = ROWS) -> str:
    """Bank, or Covertype with its published 54 columns, cut to so many rows as the paper does; others as they are."""
    options = {"bank": f"bank:rows={rows}", "covtype": f"covtype:one_hot=true,rows={rows}"}
    return options.get(name, name)


def design(name: str, variant: str = "tabvfl", *, guests: int = GUESTS, **settings: Any) -> Experiment:
    """A design whose latent vectors are to be judged by the pipeline of Fig. 4. Nobody attacks it."""
    chosen = {"variant": variant, "evaluate": True, **SHORT, **settings}
    return Experiment(
        protocol="tabvfl",
        attack="random-guess",
        control="negative",
        data=source(name),
        parties=guests,
        partition="equal-blocks",
        aux=0.0,
        shares=SHARES,
        record="none",
        set=chosen,
    )


def failing(name: str, chance: float, remedy: str = "cache") -> Experiment:
    """Table IV: two guests that are offline for an epoch with this probability."""
    return design(name, guests=2, **FAILING, p_fail=chance, on_failure=remedy)


def watched(attack: str, *, knows: tuple[str, ...] = (), **fields: Any) -> Experiment:
    """The host watches the pretraining of five guests on breast-cancer and attacks the first of them."""
    settings = {**OBSERVED, **fields.pop("set", {})}
    defaults: dict[str, Any] = {"data": CANCER, "party": "guest1", "partition": "equal-blocks"}
    return Experiment(
        protocol="tabvfl",
        attack=attack,
        parties=GUESTS,
        shares=SHARES,
        knows=knows,
        set=settings,
        **{**defaults, **fields},
    )
