"""Who was trained on: what papers say about membership inference, and what models tell where a paper says nothing.

vFedSec (5.1) and FedOnce (1, 3, 4.1) speak of membership inference. RAP, APC-VFL and TabVFL do not: what is found there
is judged as `within_paper=False`, so that it can make a verdict conditional and no more. The adversary is an outsider
who queries the released model and trains shadows of its own (the attack that FedOnce cites does so as well), unless a
row says that it is the server. The report draws TPR against the bound of differential privacy from the same results.
"""

from __future__ import annotations

from typing import Any

from vflaudit.claims.base import Attacked, Claim, Compared, Rule, above, at_most, hidden
from vflaudit.claims.membership.evidence import Allowed, leaks_somewhere
from vflaudit.claims.tabvfl.targets import SHORT
from vflaudit.core.sources.local import find_file
from vflaudit.lab.experiment import Experiment
from vflaudit.protocols.fedonce.tables import DELTA

FLOOR = 0.05  # an AUC up to 0.55 still counts as hidden
CANCER, DIGITS = "breast-cancer", "digits"
MADE = "synthetic:rows=3000,features=20,signal=0.5"  # large enough for 1% false alarms
HARD = "synthetic:rows=500,features=40,signal=0.5"  # hard to learn, easy to memorise
PHISHING = find_file("phishing", ("phishing.libsvm", "phishing", "phishing.txt")) is not None  # nothing is downloaded
WORDS = {
    CANCER: "breast-cancer (real)",
    DIGITS: "digits (8x8 images)",
    MADE: "3,000 synthetic rows of 20 columns",
    HARD: "500 synthetic rows of 40 columns, hard to learn and easy to memorise",
    "phishing": "phishing (real, 3,200 rows)",
}
BUDGETS = (2, 4, 8)  # of Table 6
LARGE = (MADE, "phishing") if PHISHING else (MADE,)
LONG: dict[str, Any] = {"optimiser": "adam", "epochs": 60, "batch_size": 64}  # vFedSec until it memorises
MANY, FEW = 10, 5  # seeds: small tables need many, a leak that is large needs few


def _released(protocol: str, data: str, attack: str = "lira", *, parties: int = 4, **settings: Any) -> Experiment:
    """The released model against an outsider; half of the rows are nobody's."""
    return Experiment(
        protocol=protocol,
        attack=attack,
        data=data,
        rows=3200 if data == "phishing" else None,
        parties=parties,
        aux=0.5,
        corrupts=(),
        knows=("model=black-box",),
        record="none",
        set=settings,
    )


def _fedonce(data: str, epsilon: int | None = None) -> Experiment:
    private: dict[str, Any] = {} if epsilon is None else {"variant": "l1", "epsilon": epsilon}
    return _released("fedonce", data, **private)


def _masks(data: str, attack: str) -> Compared:
    """vFedSec with one linear layer per party (A.1), trained long, with the same seeds with and without masks."""
    clear, masked = (_released("vfedsec", data, attack, parties=3, security=how, **LONG) for how in ("clear", "masked"))
    return Compared(
        f"{attack}, {_short(data)}", clear, masked, lambda result: result.score, "AUC without masks less AUC with them"
    )


def _server(attack: str, data: str, party: str | None = None) -> Experiment:
    """The same target, attacked by the server that solves its messages for the rows."""
    return Experiment(protocol="vfedsec", attack=attack, data=data, party=party, parties=3, aux=0.5, set=LONG)


def _silent(paper: str, protocol: str, parties: int, how: str, shadows: int = 16, **settings: Any) -> Claim:
    """A paper that says nothing of membership. Measured as a finding."""
    attacks: dict[str, dict[str, Any]] = {"loss-threshold": {}, "lira": {"shadows": shadows}}
    found = (
        Attacked(f"{attack}, {data}", _released(protocol, data, attack, parties=parties, **settings, **more), False)
        for data in (CANCER, DIGITS)
        for attack, more in attacks.items()
    )
    return _claim(
        f"{protocol}-released-model",
        f"{paper}, which does not speak of it",
        f"{paper}'s released model does not tell who was trained on",
        "implied",
        "the AUC exceeds 0.55; the paper promises nothing here, so that is a finding and a condition",
        hidden(FLOOR),
        *found,
        how=f"; {how}",
    )


def _short(data: str) -> str:
    return {MADE: "3,000 synthetic rows", HARD: "500 synthetic rows"}.get(data, data)


def _claim(
    id: str, section: str, statement: str, reading: Any, refuted_if: str, rule: Rule, *evidence: Any,
    seeds: int = MANY, how: str = "",
) -> Claim:  # fmt: skip
    used = [name for name in WORDS if any(one.data == name for part in evidence for one in part.experiments)]
    where = ", ".join(WORDS[name] for name in used) + how
    return Claim("membership", id, section, statement, reading, refuted_if, where, evidence, rule, seeds)


VFEDSEC = (
    _claim(
        "vfedsec-masks",
        "vFedSec 5.1",
        "vFedSec's masks protect from membership inference",
        "literal",
        "without masks the AUC is not higher by more than 0.05, on tables where the model without masks tells",
        above(FLOOR),
        *(_masks(data, attack) for data in (HARD, DIGITS) for attack in ("loss-threshold", "lira")),
    ),
    _claim(
        "vfedsec-released-model",
        "vFedSec 5.1",
        "vFedSec's trained model, masks in place, does not tell who was trained on",
        "implied",
        "the AUC exceeds 0.55; training for longer than the paper does is a condition",
        hidden(FLOOR),
        *(
            Attacked(f"lira, {_short(data)}, {words}", _released("vfedsec", data, parties=3, **settings), not settings)
            for words, settings in (
                ("as published, ten epochs", {}),
                ("Adam, 60 epochs", {"security": "masked", **LONG}),
            )
            for data in (CANCER, DIGITS, HARD)
        ),
    ),
    _claim(
        "vfedsec-server",
        "vFedSec 5.1",
        "What the server receives does not tell it who was trained on",
        "literal",
        "the server alone gains more than 0.05, in R2 about columns or in AUC about candidates",
        hidden(FLOOR),
        *(
            row
            for data in (CANCER, HARD)
            for row in (
                Attacked(
                    f"columns solved from the messages, {_short(data)}",
                    _server("secure-layer-forward", data, "passive1"),
                ),
                Attacked(f"candidates looked up among the solved rows, {_short(data)}", _server("row-matching", data)),
            )
        ),
        seeds=FEW,
    ),
)

FEDONCE = (
    _claim(
        "fedonce-l0-exposed",
        "FedOnce 1, 3",
        "FedOnce's model, released without protection (L0), is open to membership inference",
        "literal",
        "the AUC is at most 0.55 on every table here (the paper keeps L0 inside the company)",
        leaks_somewhere(FLOOR),
        *(Attacked(f"lira, {_short(data)}", _fedonce(data)) for data in (CANCER, DIGITS, *LARGE)),
        seeds=FEW,
    ),
    _claim(
        "fedonce-l1-protected",
        "FedOnce 3.1, 4.1",
        "FedOnce-L1's released model does not tell who was trained on",
        "literal",
        "the AUC exceeds 0.55 at a budget of Table 6",
        hidden(FLOOR),
        *(
            Attacked(f"lira, {_short(data)}, epsilon {epsilon}", _fedonce(data, epsilon))
            for data in (CANCER, DIGITS, *LARGE)
            for epsilon in BUDGETS
        ),
    ),
    _claim(
        "fedonce-l1-bound",
        "FedOnce 4.1, theorem 4",
        "At 1% false alarms an attack finds no more members of FedOnce-L1 than (epsilon, delta) allows",
        "literal",
        "it finds more; that one attack stays below the bound does not prove the theorem (see the audits of FedOnce)",
        at_most(0.0),
        *(
            Allowed(f"lira, {_short(data)}, epsilon {epsilon}", _fedonce(data, epsilon), epsilon, DELTA.get(data, 1e-5))
            for data in LARGE
            for epsilon in BUDGETS
        ),
    ),
)

SILENT = (
    _silent("RAP", "rap", 4, "trained as the paper does (4.1)"),
    _silent("APC-VFL", "apc-vfl", 2, "30 epochs (the paper gives none)", epochs=30),
    _silent("TabVFL", "tabvfl", 3, "at most 10 and 30 epochs of the paper's 300, 8 shadows", 8, **SHORT),
)

CLAIMS = (*VFEDSEC, *FEDONCE, *SILENT)
