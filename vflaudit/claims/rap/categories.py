"""Clients with categorical columns only, for RAP's claims about one-hot columns (2.3).

The attack on them was developed on Adult; it is judged on Bank and covtype, or on a synthetic table where they are not
on this computer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from attacks.frequency import FrequencyAnalysis
from vflaudit import load_protocol
from vflaudit.claims.rap.data import BANK, COVTYPE, STAND_INS, here
from vflaudit.core.adversary import Adversary, DistributionSample
from vflaudit.core.games import Reconstruction
from vflaudit.core.loading import load_dataset, load_table
from vflaudit.core.run import Run

PEOPLE = 2000  # of the reserved pool, whom the server knows


@dataclass(frozen=True)
class CategoricalClient:
    """A client that holds these columns of a dataset, all of them categorical; another client holds the rest."""

    what: str
    data: str
    columns: tuple[str, ...]
    party: str = "client1"

    def run(self, seed: int) -> Run:
        """RAP on it; one epoch, because training changes no message."""
        return _run(self.data, self.columns, self.party, seed)

    def named_beyond_chance(self, seed: int) -> float:
        """Share of categories that frequency analysis names rightly, beyond the best guess without messages."""
        run = self.run(seed)
        view = run.view(Adversary({"server"}, [DistributionSample(PEOPLE)]))
        guess = FrequencyAnalysis(party=self.party).run(view, seed=seed)
        metrics: Mapping[str, float] = Reconstruction(party=self.party).score(run, guess).metrics
        return float(metrics["category_accuracy"] - metrics["category_accuracy_baseline"])


@lru_cache(maxsize=2)  # a run of tens of thousands of people is large
def _run(data: str, columns: Sequence[str], party: str, seed: int) -> Run:
    table = load_table(data)
    rest = [column.name for column in table.columns if column.name not in columns]
    split = {party: list(columns), "client2": rest}
    return load_protocol("rap", max_epochs=1).run(load_dataset(table, split=split, seed=seed), seed=seed)


def clients() -> tuple[CategoricalClient, ...]:
    """Bank's categorical columns in the three groups of its own description, and both of covtype's; or a stand-in."""
    found = []
    if here(BANK):
        groups = {
            "person": ("job", "marital", "education"),
            "credit": ("default", "housing", "loan"),
            "contact": ("contact", "month", "poutcome"),
        }
        found += [CategoricalClient(f"bank, {name} columns", BANK, columns) for name, columns in groups.items()]
    if here(COVTYPE):
        found.append(CategoricalClient("covtype, area and soil", COVTYPE, ("Wilderness_Area", "Soil_Type")))
    if not found:
        data = STAND_INS[BANK]
        names = [column.name for column in load_table(data).columns if column.kind == "categorical"][:3]
        found.append(CategoricalClient("synthetic, three categorical columns", data, tuple(names)))
    return tuple(found)
