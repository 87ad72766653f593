"""APC-VFL ('Some representations may be all you need'): its claims, one by one.

The paper's adversary is an honest but curious participant (IV-E), here the active party, which gets everybody's
representations. Its one condition for safety is that encoders stay local: knowing a few people, or other people of the
population, is not excluded by its words, so such adversaries count as its own. `within_paper=False` marks what it
leaves out on purpose, such as the rounds of private set intersection.
"""

from __future__ import annotations

from typing import Any

from vflaudit.claims.apcvfl import numbers
from vflaudit.claims.apcvfl.figures import figures as figures
from vflaudit.claims.apcvfl.numbers import CANCER, Contrast, Told
from vflaudit.claims.apcvfl.targets import ABLATION, APC, COLUMNS, JOINT, LOCAL, SIZES, SPLITNN, TRANSFER
from vflaudit.claims.base import Attacked, Claim, Computed, above, at_most, hidden, leaks
from vflaudit.claims.vfedsec.numbers import paper_data, real
from vflaudit.lab.experiment import Experiment

FLOOR = 0.1  # an advantage in R2 up to this still counts as hidden
CATEGORY_FLOOR = 0.05  # and in the share of right categories
MARGIN = 0.02  # accuracy: one row of fifty
ADULT = paper_data("adult")
WHERE_ADULT = "adult (real; not among the paper's)" if real("adult") else "synthetic columns like Adult's"
WHERE = "breast-cancer (real, the paper's split of columns)"


def _attacked(what: str, attack: str, *, protocol: str = "apc-vfl", defenses: Any = (), **fields: Any) -> Attacked:
    """The active party attacks; 279 rows are shared and 171 are left to be other people of the population."""
    settings = {"folds": None, **fields.pop("set", {})}
    split = {"partition": "apc-vfl"} if "parties" not in fields else {}
    experiment = Experiment(
        protocol=protocol,
        attack=attack,
        data=CANCER,
        party="passive1",
        defenses=defenses,
        set=settings,
        **split,
        **fields,
    )
    return Attacked(what, experiment)


def _adult(column: str, knows: str) -> Told:
    """Adult as vFedSec splits it: race, relationship and more at the first passive party."""
    experiment = Experiment(
        protocol="apc-vfl",
        attack="attribute-inference",
        data=ADULT,
        partition="vfedsec",
        rows=1500,
        party="passive1",
        knows=(knows,),
        set={"column": column, "folds": None, "epochs": 30},
    )
    return Told(f"{column}, knowing {knows.replace('=', ' ')}", experiment, column)


def _compared(what: str, first: Experiment, second: Experiment, metric: str = "fold_accuracy") -> Contrast:
    return Contrast(what, (first,), (second,), lambda result: result.utility[metric], "difference in accuracy")


def _each(first: dict[int, Experiment], second: dict[int, Experiment]) -> list[Contrast]:
    return [_compared(f"{n} columns", first[n], second[n]) for n in COLUMNS]


def _on_average(first: dict[int, Experiment], second: dict[int, Experiment], metric: str) -> Contrast:
    """The mean of the differences over all of COLUMNS: effects of a few tenths of a point drown in single settings."""

    def share(result: Any) -> float:
        return result.utility[metric] / len(COLUMNS)

    what = "mean over 5, 4, 3 and 2 columns"
    return Contrast(what, tuple(first.values()), tuple(second.values()), share, "difference in accuracy")


def _claim(
    id: str,
    section: str,
    statement: str,
    reading: Any,
    refuted_if: str,
    rule: Any,
    *evidence: Any,
    on: str = WHERE,
    seeds: int = 1,
) -> Claim:
    return Claim("apc-vfl", id, section, statement, reading, refuted_if, on, evidence, rule, seeds)


ROUNDS = (
    _claim(
        "one-round",
        "abstract, IV",
        "After alignment one round of communication is enough",
        "literal",
        "the wire counts more than one round after private set intersection",
        at_most(1),
        Computed("after alignment", numbers.rounds_after_alignment, "rounds"),
    ),
    _claim(
        "one-round-in-all",
        "abstract, III",
        "One round of communication is all there is",
        "implied",
        "the wire counts more than one round; private set intersection, which the paper assumes, is a condition",
        at_most(1),
        Computed("with private set intersection", numbers.all_rounds, "rounds", within_paper=False),
    ),
    _claim(
        "fewer-rounds",
        "abstract, eq. 10, table III",
        "SplitNN needs 84 rounds or more where APC-VFL needs one",
        "literal",
        "the ratio is below 84 with 100 aligned rows, the least of the table",
        above(83),
        Computed("after alignment", numbers.fewer_rounds, "ratio of rounds"),
        Computed("with it at both", numbers.fewer_rounds_with_alignment, "ratio of rounds", within_paper=False),
    ),
    _claim(
        "independent",
        "IV-D",
        "The active party classifies new rows without anybody else",
        "literal",
        "a message follows the representations, or the model asks for others' columns",
        at_most(0),
        Computed("new rows", numbers.messages_to_classify, "messages"),
    ),
)

REPRESENTATIONS = (
    _claim(
        "alike",
        "IV-E",
        "Representations alone do not tell which people are alike in the passive party's columns",
        "implied",
        "the rank correlation of distances exceeds that of own columns by more than 0.1, with nothing known beforehand",
        hidden(FLOOR),
        Computed("distances between rows", numbers.distance_advantage, "rank correlation gained", "the active party"),
    ),
    _claim(
        "safe-without-pairs",
        "IV-E",
        "It is safe to share representations as long as the function is kept local: nobody in the table is known",
        "literal",
        "the advantage in R2 exceeds 0.1 for an active party that knows other people of the population",
        hidden(FLOOR),
        _attacked("50 other people", "isometric-alignment", knows=("distribution=50",)),
        _attacked("170 other people", "isometric-alignment", knows=("distribution=170",)),
        _attacked(
            "170 other people, together with another passive party",
            "isometric-alignment",
            knows=("distribution=170",),
            corrupts=("active", "passive2"),
            parties=3,
        ),
    ),
    _claim(
        "safe-with-pairs",
        "IV-E",
        "It is safe to share representations as long as the function is kept local: a few people are known",
        "literal",
        "the advantage in R2 exceeds 0.1 for an active party that knows some shared people's columns",
        hidden(FLOOR),
        _attacked("5 known", "known-sample-reconstruction", knows=("known-samples=5,ids",)),
        _attacked("10 known", "known-sample-reconstruction", knows=("known-samples=10,ids",)),
        _attacked("30 known", "known-sample-reconstruction", knows=("known-samples=30,ids",)),
        _attacked("30 known, learned", "representation-inversion", knows=("known-samples=30,ids",)),
    ),
    _claim(
        "many-functions",
        "IV-E",
        "That there are infinitely many functions is what protects: a secret rotation on top protects still more",
        "implied",
        "the advantage in R2 exceeds 0.1 although a passive party turns its representation in secret",
        hidden(FLOOR),
        _attacked(
            "170 other people", "isometric-alignment", knows=("distribution=170",), defenses=("random-rotation",)
        ),
        _attacked(
            "30 known",
            "known-sample-reconstruction",
            knows=("known-samples=30,ids",),
            defenses=("random-rotation",),
        ),
    ),
    _claim(
        "attributes",
        "IV-E",
        "A sensitive attribute cannot be told from a representation",
        "implied",
        "the right category is named more often than without messages by more than 5 points",
        hidden(CATEGORY_FLOOR),
        _adult("race", "distribution=400"),
        _adult("relationship", "distribution=400"),
        _adult("race", "known-samples=30,ids"),
        _adult("relationship", "known-samples=30,ids"),
        on=WHERE_ADULT,
    ),
)

IDS = (
    _claim(
        "alignment",
        "III",
        "Alignment tells nothing about rows that are not shared",
        "literal",
        "an id of the passive party that the active party does not hold can be found in its messages",
        at_most(0),
        Computed("ids of others", numbers.told_strangers, "share of ids found", "the active party"),
    ),
    _claim(
        "members",
        "III, IV-E",
        "Taking part does not tell who is in a passive party's table",
        "implied",
        "the active party learns it for more than a tenth of its own rows",
        hidden(0.1),
        Computed("its own rows", numbers.told_members, "share of rows that it learns about", "the active party"),
    ),
)

ACCURACY = (
    _claim(
        "as-accurate-as-splitnn",
        "abstract, table III",
        "Accuracy is comparable to SplitNN's when all rows are aligned",
        "literal",
        "accuracy is lower by more than two points",
        above(-MARGIN),
        *(_compared(f"{n} aligned rows", JOINT[n], SPLITNN[n], "accuracy") for n in SIZES),
        seeds=20,
    ),
    _claim(
        "better-with-few-rows",
        "V-B b, table III",
        "With few aligned rows it is better than SplitNN",
        "literal",
        "accuracy with 100 aligned rows is not higher",
        above(0),
        _compared("100 aligned rows", JOINT[100], SPLITNN[100], "accuracy"),
        seeds=20,
    ),
    _claim(
        "better-than-local",
        "V-B a, figure 6",
        "The federation beats a model on the active party's own columns",
        "literal",
        "accuracy over folds is not higher",
        above(0),
        *_each(APC, LOCAL),
        seeds=10,
    ),
    _claim(
        "more-with-fewer-columns",
        "V-B a, figure 6",
        "The fewer columns the active party has, the more it gains",
        "literal",
        "the gain over the local model with two columns is not larger than with five",
        above(0),
        Contrast(
            "two columns against five",
            (APC[2], LOCAL[5]),
            (LOCAL[2], APC[5]),
            lambda result: result.utility["fold_accuracy"],
            "difference of gains in accuracy",
        ),
        seeds=10,
    ),
    _claim(
        "distillation-helps",
        "V-B a, figure 6",
        "Distillation, and so the federation, adds to what an encoder of own columns gives",
        "literal",
        "accuracy over folds is not higher than without distillation",
        above(0),
        _on_average(APC, ABLATION, "fold_accuracy"),
        seeds=10,
    ),
    _claim(
        "better-than-vfedtrans",
        "V-B a, figure 6",
        "It consistently beats VFedTrans",
        "literal",
        "accuracy over folds is not higher",
        above(0),
        *_each(APC, TRANSFER),
        seeds=10,
    ),
    _claim(
        "new-rows",
        "V-B a, figure 7",
        "The advantage over the local model persists on rows outside the federation",
        "literal",
        "accuracy on 62 new rows is not higher",
        above(0),
        _on_average(APC, LOCAL, "accuracy"),
        seeds=10,
    ),
    _claim(
        "overcomplete",
        "IV-B, figure 4",
        "Overcomplete representations are better than undercomplete ones",
        "literal",
        "probing accuracy (algorithm 1) is not higher",
        above(0),
        Computed("active party, 128 against 3", numbers.overcomplete_active, "difference in accuracy"),
        Computed("passive party, 256 against 12", numbers.overcomplete_passive, "difference in accuracy"),
    ),
)

RIVALS = (
    _claim(
        "fedsvd-active",
        "II, on VFedTrans",
        "FedSVD's result does not give a passive party's columns to the active one",
        "implied",
        "the advantage in R2 exceeds 0.1",
        hidden(FLOOR),
        _attacked("170 other people", "factor-reconstruction", protocol="vfedtrans", knows=("distribution=170",)),
        _attacked("30 known", "factor-reconstruction", protocol="vfedtrans", knows=("known-samples=30,ids",)),
    ),
    _claim(
        "vfedpca-active",
        "II, on VFedTrans",
        "VFedPCA's result does not give a passive party's columns to the active one",
        "implied",
        "the advantage in R2 exceeds 0.1",
        hidden(FLOOR),
        _attacked(
            "40 known",
            "factor-reconstruction",
            protocol="vfedtrans",
            knows=("known-samples=40,ids",),
            set={"representation": "vfedpca"},
        ),
    ),
    _claim(
        "vfedpca-server",
        "II, on VFedTrans",
        "VFedPCA's server does not learn how alike a party's people are",
        "implied",
        "it knows more than a tenth of the products between rows",
        hidden(0.1),
        Computed("vectors and values", numbers.vfedpca_server, "share of the Gram matrix", "the server"),
    ),
    _claim(
        "fedsvd-server",
        "II, on VFedTrans",
        "FedSVD's decomposing server alone learns no column",
        "literal",
        "R2 exceeds 0.1",
        hidden(FLOOR),
        Computed("the masked sum", numbers.fedsvd_apart, "R2", "the server"),
    ),
    _claim(
        "fedsvd-two-servers",
        "II, on VFedTrans",
        "FedSVD's two servers together know everything, so they must not talk",
        "literal",
        "R2 does not exceed 0.9",
        leaks(0.9),
        Computed("masks taken off", numbers.fedsvd_together, "R2", "the server and the key server"),
    ),
)

CLAIMS = (*ROUNDS, *REPRESENTATIONS, *IDS, *ACCURACY, *RIVALS)
