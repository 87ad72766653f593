"""Numbers behind FedOnce's claims about rounds, training time and many parties."""

from __future__ import annotations

from functools import cache

from vflaudit import load_protocol
from vflaudit.core.loading import load_dataset
from vflaudit.core.run import Run
from vflaudit.core.sources.local import find_file
from vflaudit.core.transcript import Recording
from vflaudit.lab.experiment import Experiment


def has_mnist() -> bool:
    """Whether mnist is under $VFLAUDIT_DATA."""
    return find_file("mnist", ("train-images-idx3-ubyte", "train-images.idx3-ubyte")) is not None


@cache
def trained(seed: int, variant: str, data: str = "breast-cancer") -> Run:
    """One run with four parties."""
    return load_protocol("fedonce", variant=variant).run(load_dataset(data, parties=4, seed=seed), seed=seed)


def rounds(seed: int, variant: str) -> float:
    """Rounds of training on the wire."""
    return trained(seed, variant).utility["training_rounds"]


def messages(seed: int, variant: str) -> float:
    """The most messages that a guest sends or gets before serving begins."""
    run = trained(seed, variant)
    guests = [party for party in run.data.parties if party != "host"]
    rows = run.data.aligned("train")
    sent = [m for m in run.transcript if m.rows is not None and set(m.rows.tolist()) <= set(rows.tolist())]
    return float(max(sum(party in (m.sender, m.receiver) for m in sent) for party in guests))


def time_ratio(seed: int, data: str) -> float:
    """Seconds of FedOnce-L0 over those of SplitNN: the slowest guest and then the host; in SplitNN they take turns."""
    made = load_dataset(data, parties=4, aux=0.0, seed=seed)
    spent = {}
    for variant in ("l0", "splitnn"):
        cpu = load_protocol("fedonce", variant=variant).run(made, seed=seed, recording=Recording.none()).costs.cpu
        spent[variant] = cpu["host"] + max(cpu[party] for party in cpu if party != "host")
    return spent["l0"] / spent["splitnn"]


def many(data: str, parties: int) -> Experiment:
    """L0 with many parties; networks are small and guests train for ten epochs, so that hundreds can."""
    settings = {"guest_model": "fc", "guest_hidden": "30x30", "host_hidden": "30", "dimension": 3, "guest_epochs": 10,
                "guest_batch": 32, "host_epochs": 100, "host_batch": 32, "frequency": 1,
                "guest_learning_rate": 1e-3, "host_learning_rate": 1e-3}  # fmt: skip
    rows = 2000 if data == "mnist" else None
    return Experiment(
        protocol="fedonce", attack="random-guess", control="negative", data=data, parties=parties, aux=0.0, rows=rows,
        set={"variant": "l0", **settings},
    )  # fmt: skip
