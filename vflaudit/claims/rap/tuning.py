"""Learning rates for RAP's accuracy claims, tuned per dataset, model and method (RAP 4.1) and written down here.

The rate with the best validation score of RAP's grid, averaged over tuning seeds that claims are never judged on. Test
rows play no part. The paper tunes the batch size too (0.1% to 1% of the rows); here it is 1%, at least 32.
`python -m vflaudit.claims.rap.tuning` measures the table again and prints it; rates of datasets that are not on this
computer are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vflaudit import load_protocol
from vflaudit.claims.rap.data import COVTYPE, HIGGS, STAND_INS, here
from vflaudit.core.loading import load_dataset
from vflaudit.core.transcript import Recording
from vflaudit.errors import InputError
from vflaudit.lab.perform import one_thread

METHODS = {"mlp": ("rap", "splitnn", "centralized"), "lr": ("rap", "centralized")}  # what the claims compare
FIRST_TUNING_SEED = 90
# small validation sets need more seeds: 5 of breast-cancer's, tried first, chose a rate of 3 for SplitNN
SEEDS = {"breast-cancer": 10, "diabetes": 5, HIGGS: 3, COVTYPE: 1, STAND_INS[HIGGS]: 1, STAND_INS[COVTYPE]: 1}
MODELS = {"breast-cancer": ("mlp", "lr"), HIGGS: ("mlp", "lr"), STAND_INS[HIGGS]: ("mlp", "lr")}  # others: mlp

RATES: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("breast-cancer", "mlp"): {"rap": 0.001, "splitnn": 0.001, "centralized": 0.001},
    ("breast-cancer", "lr"): {"rap": 0.001, "centralized": 0.01},
    ("diabetes", "mlp"): {"rap": 0.001, "splitnn": 0.001, "centralized": 0.001},
    (HIGGS, "mlp"): {"rap": 0.01, "splitnn": 0.001, "centralized": 0.001},
    (HIGGS, "lr"): {"rap": 0.01, "centralized": 0.001},
    (COVTYPE, "mlp"): {"rap": 0.001, "splitnn": 0.01, "centralized": 0.01},
    (STAND_INS[HIGGS], "mlp"): {"rap": 0.01, "splitnn": 0.001, "centralized": 0.01},
    (STAND_INS[HIGGS], "lr"): {"rap": 0.01, "centralized": 0.001},
    (STAND_INS[COVTYPE], "mlp"): {"rap": 0.001, "splitnn": 0.001, "centralized": 0.001},
}


def tuned(data: str, protocol: str, model: str = "mlp") -> dict[str, Any]:
    """The settings of a method on a dataset: model and tuned rate."""
    return {"model": model, "learning_rate": RATES[data, model][protocol]}


def validation_scores(data: str, protocol: str, model: str, seeds: range) -> dict[float, float]:
    """Mean validation accuracy (or minus RMSE) of every rate of the grid; minus infinity where training diverges."""
    from vflaudit.protocols.training import GRID

    scores = {}
    tables = {seed: load_dataset(data, parties=4, aux=0.0, seed=seed) for seed in seeds}
    for rate in GRID:
        target = load_protocol(protocol, model=model, learning_rate=rate)
        try:
            found = [target.run(table, seed=seed, recording=Recording.none()).utility for seed, table in tables.items()]
        except InputError:  # it diverged: large steps do
            scores[rate] = -np.inf
            continue
        scores[rate] = float(np.mean([u.get("validation_accuracy", -u.get("validation_rmse", 0.0)) for u in found]))
    return scores


def best_rate(scores: Mapping[float, float]) -> float:
    """The rate with the best score; the smaller one if two are equally good."""
    return max(sorted(scores), key=lambda rate: scores[rate])


def main() -> None:
    """Measure the table again."""
    with one_thread():
        for data, count in SEEDS.items():
            if data in STAND_INS and not here(data):
                print(f"    # {data} is not on this computer")
                continue
            for model in MODELS.get(data, ("mlp",)):
                seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)
                rates = {name: best_rate(validation_scores(data, name, model, seeds)) for name in METHODS[model]}
                print(f"    {(data, model)}: {rates},", flush=True)


if __name__ == "__main__":
    main()
