"""What RAP (Zhang et al., 'Random Projection is What You Need for Vertical Federated Learning') says about SplitNN."""

from __future__ import annotations

from typing import Any

from vflaudit.claims.base import Attacked, Claim, Compared, above, hidden, leaks, within
from vflaudit.lab.experiment import Experiment

DATA = "breast-cancer, wine (real data, not the paper's: its six datasets are larger), four clients"


def _attack(what: str, known: int, *, within_paper: bool = True, **fields: Any) -> Attacked:
    experiment = Experiment(
        protocol="splitnn",
        attack="representation-inversion",
        party="client1",
        parties=4,
        knows=(f"known-samples={known},ids",),
        **fields,
    )
    return Attacked(what, experiment, within_paper)


def _accuracy(first: str, second: str, data: str) -> Compared:
    one, other = (
        Experiment(protocol=protocol, attack="random-guess", control="negative", party="client1", parties=4, data=data)
        for protocol in (first, second)
    )
    return Compared(
        f"{first} minus {second}", one, other, lambda result: result.utility["accuracy"], "difference in accuracy"
    )


CLAIMS = (
    Claim(
        paper="splitnn",
        id="leaks-under-collusion",
        section="RAP 3, after case 3",
        statement="If the server knows people's features and a client tells it which rows they are, SplitNN leaks too",
        reading="literal",
        refuted_if="the advantage in R2 over the best guess without messages is at most 0.1",
        measured_on=DATA,
        evidence=(
            _attack("breast-cancer, 50 known people", 50),
            _attack("wine, 50 known people", 50, data="wine"),
        ),
        rule=leaks(0.1),
    ),
    Claim(
        paper="splitnn",
        id="private-bottom-hides-features",
        section="RAP 2.2",
        statement="Because the bottom models are private, the server cannot reconstruct the clients' features",
        reading="implied",
        refuted_if="the server gains more than 0.1 in R2; if it needs known people with their ids, that is a condition",
        measured_on=DATA,
        evidence=(
            _attack("breast-cancer, 5 known people, fewer than the client's columns", 5, within_paper=False),
            _attack("breast-cancer, 10 known people", 10, within_paper=False),
            _attack("wine, 10 known people", 10, within_paper=False, data="wine"),
        ),
        rule=hidden(0.1),
    ),
    Claim(
        paper="splitnn",
        id="as-accurate-as-centralized",
        section="RAP 4.2, table 3",
        statement="SplitNN's accuracy is similar to centralized training (the paper's differ by at most 0.16 points)",
        reading="literal",
        refuted_if="the accuracies differ by more than 2 points either way",
        measured_on="breast-cancer (real data, not the paper's), four clients",
        evidence=(_accuracy("splitnn", "centralized", "breast-cancer"),),
        rule=within(0.02),
        least_seeds=20,
    ),
    Claim(
        paper="splitnn",
        id="more-accurate-than-single",
        section="RAP 4.2, table 3",
        statement="A client alone is less accurate than SplitNN, even the best one",
        reading="literal",
        refuted_if="SplitNN is not more accurate than the best single client",
        measured_on="wine (real data, not the paper's), four clients",
        evidence=(_accuracy("splitnn", "local", "wine"),),
        rule=above(0.0),
        least_seeds=20,
    ),
)
