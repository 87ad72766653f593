"""RAP (Zhang et al., 'Random Projection is What You Need for Vertical Federated Learning'): its claims, one by one.

Where a statement is literally true but suggests more than it says, both readings are judged. `within_paper=False` marks
an adversary that knows more than the case at hand grants.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vflaudit.claims.base import Attacked, Claim, Computed, above, at_most, hidden, leaks
from vflaudit.claims.rap import blind, numbers
from vflaudit.claims.rap.categories import PEOPLE, clients
from vflaudit.claims.rap.figures import figures
from vflaudit.claims.rap.utility import UTILITY
from vflaudit.lab.experiment import Experiment

SMALL = "breast-cancer, wine, diabetes (real data, smaller than the paper's), four clients"
ALONE, INFORMED = "the server", f"the server, knowing {PEOPLE} other people"
CATEGORICAL = clients()
CATEGORICAL_DATA = ", ".join(one.what for one in CATEGORICAL)
FLOOR = 0.1  # an advantage in R2 or AUC up to this still counts as hidden


def _attack(
    what: str, attack: str, knows: tuple[str, ...] = (), *, within_paper: bool = True, **fields: Any
) -> Attacked:
    values = {"protocol": "rap", "parties": 4, "party": "client1", **fields}
    return Attacked(what, Experiment(attack=attack, knows=knows, **values), within_paper)


def _claim(
    id: str, section: str, statement: str, reading: Any, refuted_if: str, rule: Any, *evidence: Any, **more: Any
) -> Claim:
    return Claim(
        "rap", id, section, statement, reading, refuted_if, more.pop("measured_on", SMALL), evidence, rule, **more
    )


CASES = (
    _claim(
        "case-1",
        "3, case 1",
        "Without information about the features the server can only guess",
        "literal",
        "a guess without knowledge gains more than 0.1 in R2",
        hidden(FLOOR),
        _attack("breast-cancer, random guess", "random-guess"),
        _attack("wine, random guess", "random-guess", data="wine"),
        measured_on="breast-cancer, wine (real); no other attack gives values without knowledge",
    ),
    _claim(
        "case-1-implied",
        "3, case 1",
        "Without information about the features the server learns nothing about them, not even up to names and scale",
        "implied",
        "columns up to order, sign and scale, or who shares categories or a class, are found beyond chance by over 0.1",
        hidden(FLOOR),
        Computed("breast-cancer, FastICA", blind.separated_columns, "|correlation| beyond chance", ALONE),
        Computed("independent skewed columns, FastICA", blind.separated_skewed, "|correlation| beyond chance", ALONE),
        Computed("wine, behind the pseudo feature", blind.stripped_column, "|correlation| beyond chance", ALONE),
        *(
            Computed(f"{one.what}, equal rows", partial(blind.grouped_people, client=one), "adjusted Rand index", ALONE)
            for one in CATEGORICAL
        ),
        Computed("breast-cancer, label codes paired", blind.paired_codes, "adjusted Rand index", ALONE),
        measured_on=f"breast-cancer, wine (real), synthetic skewed columns; categories: {CATEGORICAL_DATA}",
    ),
    _claim(
        "case-2-literal",
        "3, case 2",
        "If the server knows the means, infinitely many reconstruction matrices fit",
        "literal",
        "the matrices that fit do not form a space of positive dimension",
        above(0),
        Computed("breast-cancer, client1", numbers.free_dimensions_given_mean, "free dimensions of R"),
    ),
    _claim(
        "case-2-implied",
        "3, case 2",
        "A server that knows the distribution of the features cannot reconstruct them",
        "implied",
        "the advantage in R2 exceeds 0.1 for some real dataset",
        hidden(FLOOR),
        _attack("Gaussian columns", "blind-separation", ("distribution=400",), data="synthetic:rows=2000,features=16"),
        _attack(
            "skewed columns", "blind-separation", ("distribution=400",), data="synthetic:rows=2000,features=16,skew=2"
        ),
        _attack("breast-cancer", "blind-separation", ("distribution=170",)),
        _attack("digits", "blind-separation", ("distribution=500",), data="digits", parties=8),
        measured_on="breast-cancer, digits (real), synthetic Gaussian and skewed columns",
    ),
    _claim(
        "case-3a-literal",
        "3, case 3a",
        "With fewer known rows than columns infinitely many reconstruction matrices fit",
        "literal",
        "the matrices that fit do not form a space of positive dimension",
        above(0),
        Computed("breast-cancer, 4 of 8 columns' rows", numbers.free_dimensions_given_rows, "free dimensions of R"),
    ),
    _claim(
        "case-3a-implied",
        "3, case 3a",
        "A server that knows fewer people than columns, ids included, cannot reconstruct the features",
        "implied",
        "the advantage in R2 exceeds 0.1 with half as many known rows as columns",
        hidden(FLOOR),
        _attack("breast-cancer, 4 rows of 8 columns", "known-sample-reconstruction", ("known-samples=4,ids",)),
        _attack("wine, 2 rows of 4 columns", "known-sample-reconstruction", ("known-samples=2,ids",), data="wine"),
    ),
    _claim(
        "case-3b-without-ids",
        "3, case 3b",
        "Even with as many known people as columns the server cannot solve R unless a client tells it their ids",
        "literal",
        "the advantage in R2 exceeds 0.1 without ids; knowing moments or other people besides is a condition",
        hidden(FLOOR),
        _attack("breast-cancer, 12 known rows alone", "leverage-matching", ("known-samples=12",)),
        _attack("breast-cancer, 60 known rows alone", "leverage-matching", ("known-samples=60",)),
        _attack(
            "breast-cancer, 12 rows and 170 others",
            "leverage-matching",
            ("known-samples=12", "distribution=170"),
            within_paper=False,
        ),
        _attack(
            "breast-cancer, 12 rows and moments",
            "leverage-matching",
            ("known-samples=12", "moments"),
            within_paper=False,
        ),
        _attack(
            "wine, 8 rows and moments",
            "leverage-matching",
            ("known-samples=8", "moments"),
            data="wine",
            within_paper=False,
        ),
    ),
    _claim(
        "case-3b-with-ids",
        "3, case 3b",
        "With as many known people as columns, and their ids, R is unique and the features leak",
        "literal",
        "the advantage in R2 is at most 0.9",
        leaks(0.9),
        _attack("breast-cancer, 9 rows of 8 columns", "known-sample-reconstruction", ("known-samples=9,ids",)),
        _attack("wine, 5 rows of 4 columns", "known-sample-reconstruction", ("known-samples=5,ids",), data="wine"),
    ),
    _claim(
        "splitnn-leaks-likewise",
        "3, after case 3",
        "SplitNN leaks under the same collusion",
        "literal",
        "the advantage in R2 is at most 0.1",
        leaks(FLOOR),
        _attack(
            "breast-cancer, 12 rows with ids", "representation-inversion", ("known-samples=12,ids",), protocol="splitnn"
        ),
    ),
    _claim(
        "shuffle",
        "3, after case 3",
        "Secure shuffling hides the ids from the server even if it colludes with clients",
        "implied",
        "the advantage in R2 after shuffling exceeds 0.1; moments beyond the known rows are a condition",
        hidden(FLOOR),
        _attack(
            "breast-cancer, colluding client2 links its rows",
            "colluder-linking",
            ("known-samples=12,ids",),
            corrupts=("server", "client2"),
            defenses=("secure-shuffle",),
        ),
        _attack(
            "breast-cancer, leverage with moments",
            "leverage-matching",
            ("known-samples=12", "moments"),
            defenses=("secure-shuffle",),
            within_paper=False,
        ),
    ),
)

SPECIAL = (
    _claim(
        "scale-without-pseudo-feature",
        "2.3",
        "A single numeric feature without a pseudo feature leaks to a server that knows its mean",
        "literal",
        "the advantage in R2 is at most 0.9",
        leaks(0.9),
        _attack(
            "wine, one column each, raw units",
            "mean-scale-recovery",
            ("means",),
            data="wine",
            parties=13,
            set={"pseudo_feature": False, "standardise": False},
        ),
    ),
    _claim(
        "pseudo-feature",
        "2.3",
        "The pseudo feature prevents the server from decoding a client's only column",
        "literal",
        "the advantage in R2 exceeds 0.1",
        hidden(FLOOR),
        _attack(
            "wine, one column each, raw units",
            "pseudo-feature-stripping",
            ("means", "distribution=50"),
            data="wine",
            parties=13,
            set={"standardise": False},
        ),
        _attack(
            "breast-cancer, one column each, raw units",
            "pseudo-feature-stripping",
            ("means", "distribution=150"),
            parties=30,
            set={"standardise": False},
        ),
        _attack(
            "breast-cancer, one column each, standardised",
            "pseudo-feature-stripping",
            ("distribution=150",),
            parties=30,
        ),
    ),
    _claim(
        "pseudo-label",
        "2.3",
        "The pseudo label hides a numeric label from the server",
        "literal",
        "the server finds a combination of the two columns that correlates with the label by more than 0.5",
        at_most(0.5),
        Computed("diabetes, server alone", numbers.pseudo_label_correlation, "|correlation| with the label"),
    ),
    _claim(
        "label-codes",
        "2.3",
        "Mapping C classes to 2C random codes prevents label leakage",
        "literal",
        "the advantage in AUC exceeds 0.1",
        hidden(FLOOR),
        _attack("breast-cancer, class frequencies known", "label-code-pairing", ("class-priors",), party=None),
        _attack("wine, one labelled row per class or so", "label-code-pairing", ("labels=6",), data="wine", party=None),
        _attack("digits, 30 labelled rows", "label-code-pairing", ("labels=30",), data="digits", party=None),
    ),
    _claim(
        "one-hot-columns",
        "2.3",
        "Categories as one-hot columns times a Gaussian matrix cannot be read by the server, even if it knows the "
        "distribution (case 2)",
        "literal",
        "categories are named rightly for over 0.1 more of the cells than without messages",
        hidden(FLOOR),
        *(
            Computed(one.what, one.named_beyond_chance, "category accuracy beyond baseline", INFORMED)
            for one in CATEGORICAL
        ),
        measured_on=f"{CATEGORICAL_DATA}; the attack was developed on Adult",
    ),
    _claim(
        "no-risk-between-clients",
        "3",
        "No data can leak from one client to another, because clients exchange nothing",
        "literal",
        "a client receives a message",
        at_most(0),
        Computed("breast-cancer, training and serving", numbers.messages_to_clients, "messages received by clients"),
    ),
)

ALGEBRA = (
    _claim(
        "corollary-1",
        "2.2, corollary 1",
        "A random Gaussian square matrix is invertible with probability 1",
        "literal",
        "one in a hundred such matrices cannot be inverted in double precision",
        above(0.99),
        Computed("300 matrices, F = 1..100", numbers.full_rank_share, "share invertible"),
        measured_on="random matrices",
    ),
    _claim(
        "corollary-2",
        "2.2, corollary 2",
        "Distances are kept within 1 +- epsilon with the stated probability",
        "literal",
        "the measured probability falls more than 0.01 below the stated bound for some F and epsilon",
        above(-0.01),
        Computed("F = 2..300, epsilon = 0.1..0.9", numbers.worst_margin_of_distances, "smallest margin over the bound"),
        measured_on="random matrices",
    ),
    _claim(
        "singular-values-near-1",
        "2.2, after corollary 2",
        "The singular values of the (scaled) Gaussian matrix are likely to be close to 1, so its inverse is stable",
        "literal",
        "at most half of them lie within 0.8..1.2",
        above(0.5),
        Computed("F = 8, 30, 100", numbers.share_of_singular_values_near_one, "share within 0.8..1.2"),
        measured_on="random matrices",
    ),
)

CLAIMS = (*CASES, *SPECIAL, *ALGEBRA, *UTILITY)

__all__ = ["CLAIMS", "figures"]
