"""vFedSec ('Efficient secure aggregation for vertical federated learning via Secure Layer'): its claims, one by one.

The paper's threat model is honest-but-curious clients and server, collusion of the server with passive parties
included (5.1). `within_paper=False` marks what goes beyond it: a corrupted active party, a model trained until it
memorises, encryption that is better packed than the paper's.
"""

from __future__ import annotations

from typing import Any

from vflaudit.claims.base import Attacked, Claim, Compared, Computed, above, at_most, hidden, leaks, within
from vflaudit.claims.vfedsec import encryption, numbers
from vflaudit.claims.vfedsec.figures import figures as figures
from vflaudit.lab.experiment import Experiment

BANK, ADULT = numbers.paper_data("bank"), numbers.paper_data("adult")
FLOOR = 0.1  # an advantage in R2 or AUC up to this still counts as hidden
MEMBERSHIP_FLOOR = 0.05
NOISE = "synthetic:rows=500,features=40,signal=0.5"  # hard to learn, easy to memorise
MEMORISING: dict[str, Any] = {"optimiser": "adam", "model": "mlp", "epochs": 60, "batch_size": 64}


def _experiment(attack: str, data: str, **fields: Any) -> Experiment:
    split: dict[str, Any] = {"parties": 3} if data == "breast-cancer" else {"partition": "vfedsec"}
    values: dict[str, Any] = {"protocol": "vfedsec", "party": "passive1", **split, **fields}
    return Experiment(attack=attack, data=data, **values)


def _attack(
    what: str, attack: str, data: str = "breast-cancer", *, within_paper: bool = True, **fields: Any
) -> Attacked:
    return Attacked(what, _experiment(attack, data, **fields), within_paper)


def _membership(**settings: Any) -> Experiment:
    """The released model, trained until it memorises."""
    values = {**MEMORISING, **settings}
    return _experiment(
        "loss-threshold",
        NOISE,
        parties=3,
        partition="round-robin",
        corrupts=(),
        knows=("model=black-box",),
        party=None,
        set=values,
    )


def _useful(what: str, data: str, **settings: Any) -> Compared:
    """Accuracy with masks less accuracy of unsecured split learning."""
    first, second = (
        _experiment("random-guess", data, control="negative", set={"security": how, **settings})
        for how in ("masked", "clear")
    )
    return Compared(what, first, second, lambda result: result.utility["accuracy"], "difference in accuracy")


def _claim(
    id: str, section: str, statement: str, reading: Any, refuted_if: str, rule: Any, *evidence: Any, on: str = ""
) -> Claim:
    used = {e.data for part in evidence for e in part.experiments} or {"breast-cancer"}
    where = on or numbers.measured_on(*used)
    return Claim("vfedsec", id, section, statement, reading, refuted_if, where, evidence, rule)


TRAINING = (
    _claim(
        "lossless",
        "1, 5.1, 7",
        "Masks do not change training",
        "literal",
        "a weight differs from the same fixed-point training without masks",
        at_most(0),
        Computed("breast-cancer", numbers.largest_change, "largest difference of a weight"),
    ),
    _claim(
        "as-accurate",
        "abstract, 1",
        "Secured training is as accurate as unsecured split learning",
        "implied",
        "accuracy differs by more than half a point",
        within(0.005),
        _useful("bank", numbers.paper_data("bank", numbers.MANY), optimiser="adam"),
        _useful("adult", numbers.paper_data("adult", numbers.MANY), optimiser="adam"),
        _useful("breast-cancer", "breast-cancer", optimiser="adam", batch_size=64),
    ),
)

MASKS = (
    _claim(
        "uniform",
        "5.1, lemma 5.1",
        "Masked values look uniform given their sum",
        "literal",
        "a classifier tells two inputs with equal sums with an AUC above 0.6",
        at_most(0.1),
        Computed("three clients, 400 samples each", numbers.uniformity_auc, "AUC - 0.5", adversary="the server"),
        on="made-up inputs, the protocol's own masks with keys from the system",
    ),
    _claim(
        "uniform-messages",
        "5.1, lemma 5.1",
        "What each client sends passes tests of uniformity",
        "literal",
        "more than a fifth of the clients fail at the 1% level",
        at_most(0.2),
        Computed("breast-cancer", numbers.rejected_messages, "share of clients that fail", adversary="the server"),
    ),
    _claim(
        "confidential",
        "3",
        "A client's output stays confidential unless all other clients are corrupted",
        "literal",
        "the masks of one of two honest clients can be removed",
        hidden(FLOOR),
        _attack(
            "all corrupted but two of different clusters",
            "mask-collusion",
            corrupts=("server", "active", "passive2", "passive4"),
        ),
    ),
    _claim(
        "confidential-fellows",
        "3",
        "Two honest clients of one cluster are enough to hide each other's output",
        "implied",
        "the advantage in R2 exceeds 0.1: of two fellows only one has a row, so their sum is its value",
        hidden(FLOOR),
        _attack(
            "all corrupted but the two of one cluster",
            "mask-collusion",
            corrupts=("server", "active", "passive3", "passive4"),
        ),
    ),
    _claim(
        "all-others",
        "3",
        "If all other clients are corrupted, a client's output can be unmasked",
        "literal",
        "the advantage in R2 does not exceed 0.1",
        leaks(FLOOR),
        _attack(
            "all others",
            "mask-collusion",
            corrupts=("server", "active", "passive2", "passive3", "passive4"),
        ),
    ),
)

SERVER = (
    _claim(
        "reconstruction",
        "5.1",
        "The server cannot reconstruct clients' data from what it gets",
        "literal",
        "the advantage in R2 exceeds 0.1 for the server alone",
        hidden(FLOOR),
        _attack("bank, job and more, Z alone", "secure-layer-forward", BANK, party="passive3", set={"epochs": 5}),
        _attack("adult, race and more, Z alone", "secure-layer-forward", ADULT, set={"epochs": 5}),
        _attack("breast-cancer, Z alone", "secure-layer-forward", set={"epochs": 5}),
    ),
    _claim(
        "gradients",
        "4.2, 5.1",
        "Masked gradients of a cluster tell the server nothing about its rows",
        "literal",
        "the advantage in R2 exceeds 0.1 for the server alone; Z serves only to find a row again in the next epoch",
        hidden(FLOOR),
        _attack("breast-cancer, batches of 32", "gradient-algebra", set={"batch_size": 32, "forward": False}),
        _attack(
            "bank, batches of 32",
            "gradient-algebra",
            BANK,
            party="passive3",
            set={"batch_size": 32, "epochs": 2, "forward": False},
        ),
        _attack(
            "bank, batches of 256 as in the paper",
            "gradient-algebra",
            BANK,
            party="passive3",
            set={"epochs": 10, "forward": False},
        ),
    ),
    _claim(
        "both",
        "5.1",
        "Sums of outputs and of gradients together do not give the data away",
        "literal",
        "the advantage in R2 exceeds 0.1 for the server alone",
        hidden(FLOOR),
        _attack("bank, the paper's batches", "gradient-algebra", BANK, party="passive3", set={"epochs": 5}),
        _attack("adult, the paper's batches", "gradient-algebra", ADULT, set={"epochs": 5}),
    ),
    _claim(
        "collusion",
        "5.1",
        "The method withstands collusion between the aggregator and passive parties",
        "literal",
        "the advantage in R2 exceeds 0.1",
        hidden(FLOOR),
        _attack(
            "server and a fellow of the cluster",
            "gradient-algebra",
            corrupts=("server", "passive2"),
            set={"batch_size": 32},
        ),
        _attack(
            "server and the other cluster",
            "secure-layer-forward",
            BANK,
            party="passive3",
            corrupts=("server", "passive1", "passive2"),
            set={"epochs": 5},
        ),
        _attack(
            "server and the active party",
            "secure-layer-forward",
            BANK,
            party="passive3",
            corrupts=("server", "active"),
            set={"epochs": 5},
            within_paper=False,
        ),
    ),
    _claim(
        "membership",
        "5.1",
        "The trained model does not tell who was in the training data",
        "implied",
        "the AUC exceeds 0.55",
        hidden(MEMBERSHIP_FLOOR),
        _attack(
            "adult, Adam, ten epochs",
            "loss-threshold",
            ADULT,
            corrupts=(),
            knows=("model=black-box",),
            party=None,
            set={"optimiser": "adam"},
        ),
        Attacked("until it memorises", _membership(), within_paper=False),
    ),
    _claim(
        "membership-masks",
        "5.1",
        "Masks protect from membership inference",
        "literal",
        "unsecured training has an AUC that is not higher by more than 0.05",
        above(0.05),
        Compared(
            "until it memorises",
            _membership(security="clear"),
            _membership(security="masked"),
            lambda result: result.score,
            "AUC without masks less AUC with them",
        ),
    ),
    _claim(
        "labels-alone",
        "4.2",
        "From labels alone the server cannot infer anything useful",
        "literal",
        "the advantage in R2 exceeds 0.1 for a server that knows other people with their labels",
        hidden(FLOOR),
        _attack("breast-cancer, passive1", "features-from-labels", knows=("distribution=130",)),
        _attack("breast-cancer, passive3", "features-from-labels", knows=("distribution=130",), party="passive3"),
        _attack("adult, education", "features-from-labels", ADULT, knows=("distribution=400",), party="passive3"),
    ),
)

CLIENTS = (
    _claim(
        "labels-stay",
        "4.2",
        "Labels go to the server alone: passive parties do not learn them",
        "implied",
        "the advantage in AUC exceeds 0.1 for one passive party, from one pass",
        hidden(FLOOR),
        _attack(
            "breast-cancer, one batch with all rows, class frequencies known",
            "label-from-gradient",
            corrupts=("passive1",),
            party=None,
            knows=("class-priors",),
            set={"batch_size": 512, "epochs": 1},
        ),
        _attack("bank, nothing known beforehand", "label-from-gradient", BANK, corrupts=("passive1",), party=None),
    ),
    _claim(
        "ids-hidden",
        "4.2",
        "Sample ids stay hidden from parties that do not hold them, and from the aggregator",
        "literal",
        "a non-holder opens an id, or one can be read from what the aggregator relays",
        at_most(0),
        Computed(
            "breast-cancer, passive parties",
            numbers.opened_by_others,
            "share of others' ids opened",
            adversary="a passive party",
        ),
        Computed(
            "breast-cancer, aggregator", numbers.opened_by_aggregator, "share of ids readable", adversary="the server"
        ),
    ),
)

COSTS = (
    _claim(
        "linear-growth",
        "6.2, table 3",
        "A client's overhead grows linearly with clients and batch",
        "literal",
        "CPU grows with an exponent above 1.15",
        at_most(1.15),
        Computed("clients, 8 to 64", numbers.growth_clients, "exponent"),
        Computed("batch, 512 to 4096", numbers.growth_batch, "exponent"),
        on="masking of 64 outputs per row on this machine",
    ),
    _claim(
        "small-overhead",
        "6.2, tables 1 and 2",
        "The overhead is a relatively small part of the total, in CPU and in traffic",
        "literal",
        "security costs more than half of a party's CPU time or traffic",
        at_most(0.5),
        Computed("bank's columns, active party, CPU", numbers.cpu_overhead_active, "share of CPU"),
        Computed("bank's columns, passive party, CPU", numbers.cpu_overhead_passive, "share of CPU"),
        Computed("bank's columns, passive party, traffic", numbers.byte_overhead, "share of bytes"),
        on=f"a setup phase and five rounds of {numbers.BATCH} rows, columns of bank's widths, this machine",
    ),
)

ENCRYPTION = (
    _claim(
        "faster-than-he",
        "abstract, 6.2, table 1",
        "At least 690 times less CPU than homomorphic encryption",
        "literal",
        "the ratio is below 690; a better packing than the paper's is a condition",
        above(690),
        Computed("SEAL number by number, active", encryption.paper_way_active, "CPU ratio, extrapolated from 8x8"),
        Computed("SEAL number by number, passive", encryption.paper_way_passive, "CPU ratio, extrapolated from 8x8"),
        Computed("Paillier, passive", encryption.paillier_passive, "CPU ratio, extrapolated from 8x8"),
        Computed("SEAL packed, active", encryption.packed_active, "CPU ratio, measured", within_paper=False),
        Computed("SEAL packed, passive", encryption.packed_passive, "CPU ratio, measured", within_paper=False),
        on="one forward pass of bank's widths, batches of 256, this machine; keys and decryption left out as in 6.2",
    ),
    _claim(
        "less-traffic-than-he",
        "abstract, 6.2, table 2",
        "At least 9.6 times less traffic than homomorphic encryption",
        "literal",
        "the ratio is below 9.6; a better packing than the paper's is a condition",
        above(9.6),
        Computed("Paillier", encryption.bytes_paillier, "byte ratio, extrapolated from 8 numbers"),
        Computed("SEAL packed", encryption.bytes_packed, "byte ratio, measured", within_paper=False),
        on="results of 256 rows and 64 outputs on their way to the server",
    ),
)

CLAIMS = (*TRAINING, *MASKS, *SERVER, *CLIENTS, *COSTS, *(ENCRYPTION if encryption.INSTALLED else ()))
