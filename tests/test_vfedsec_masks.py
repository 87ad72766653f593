"""What vFedSec's masks hide and from whom: collusion, broken masks as controls, distinguishers with their level."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import vflaudit as va
from attacks.base import FeatureAttack
from attacks.broken_masks import FloatMasks, StreamReuse
from attacks.masks import MaskCollusion, messages_by_round, without_known_masks
from attacks.uniformity import byte_test, gaussian_auc, level_test, masked_samples, message_tests, tell_apart
from vflaudit.core import statistics as stats
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.games import Reconstruction, Score
from vflaudit.core.run import Run
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeySource

QUICK: dict[str, Any] = {"randomness": "seed", "batch_size": 64, "epochs": 2}
CLIENTS = ["active", "passive1", "passive2", "passive3", "passive4"]


def secured(data: VerticalDataset, seed: int = 0, **parameters: Any) -> Run:
    return va.load_protocol("vfedsec", **{**QUICK, **parameters}).run(data, seed=seed)


def reconstruct(run: Run, attack: FeatureAttack, party: str, *corrupted: str) -> Score:
    guess = attack.run(run.view(va.Adversary({"server", *corrupted})), seed=run.seed)
    return Reconstruction(party=party).score(run, guess)


def others(*honest: str) -> list[str]:
    return [party for party in CLIENTS if party not in honest]


@pytest.fixture(scope="module")
def three() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=3)


@pytest.fixture(scope="module")
def run(three: VerticalDataset) -> Run:
    return secured(three)


@pytest.fixture(scope="module")
def ideal(three: VerticalDataset) -> Run:
    return va.load_protocol("ideal", like="vfedsec", **QUICK).run(three, seed=0)


# --- collusion ----------------------------------------------------------------------------------------------


def test_known_masks_come_off_to_the_last_bit(three: VerticalDataset, run: Run) -> None:
    """The same run without masks is what a collusion of all others opens."""
    plain = secured(three, security="quantised")
    view = run.view(va.Adversary({"server", *others("passive3")}))
    sent = messages_by_round(plain.view(va.Adversary({"server"})), "masked_output")
    masked = messages_by_round(view, "masked_output")
    serving = {int(m.arrays["round"]) for m in view.transcript.select(kind="masked_output") if m.epoch is None}
    assert len(masked) > 10 and serving
    for number, values in masked.items():
        purpose = "serving" if number in serving else "forward"
        opened = without_known_masks(view, values, ["passive3"], CLIENTS, number, purpose)
        assert np.array_equal(opened, sent[number]["passive3"])
        assert not np.array_equal(values["passive3"], sent[number]["passive3"])


@pytest.mark.parametrize("party", ["passive1", "passive4", "active"])
def test_all_others_open_everything(run: Run, party: str) -> None:
    score = reconstruct(run, MaskCollusion(party=party), party, *others(party))
    assert score.verified and score.score > 1 - 1e-6
    assert score.notes[party]["opened"] == "the party's own values" and score.notes[party]["rows_explained"] == 1.0


def test_two_honest_clients_are_safe_unless_they_are_of_one_cluster(run: Run) -> None:
    for pair in combinations(CLIENTS[1:], 2):
        score = reconstruct(run, MaskCollusion(party=pair[0]), pair[0], *others(*pair))
        if pair in (("passive1", "passive2"), ("passive3", "passive4")):
            assert score.verified and score.score > 1 - 1e-6
            assert score.notes[pair[0]]["opened"] == "the sum of the honest clients of its cluster"
        else:
            assert not score.verified and score.interval[0] <= 0 <= score.interval[1]
            assert score.notes[pair[0]]["opened"] == "nothing"


def test_a_cluster_masks_its_gradients_alone(run: Run) -> None:
    attack = MaskCollusion(party="passive1", channel="gradient")
    score = reconstruct(run, attack, "passive1", "passive2")  # the server and one fellow, nobody else
    assert score.verified and score.score > 0.999  # 32 rows, 64 equations for each of their columns
    without = reconstruct(run, MaskCollusion(party="passive1"), "passive1", "passive2")
    assert not without.verified and without.interval[0] <= 0


def test_too_many_rows_for_a_gradient_are_not_called_verified(three: VerticalDataset) -> None:
    run = secured(three, batch_size=256, epochs=1)
    score = reconstruct(run, MaskCollusion(party="passive1", channel="gradient"), "passive1", "passive2")
    assert not score.verified and 0.1 < score.score < 0.99


@pytest.mark.parametrize("channel", ["forward", "gradient"])
def test_collusion_finds_nothing_in_an_ideal_run(ideal: Run, channel: Any) -> None:
    score = reconstruct(ideal, MaskCollusion(party="passive1", channel=channel), "passive1", *others("passive1"))
    assert score.interval[0] <= 0


def test_collusion_opens_sixty_four_bits_and_one_hot_columns_too() -> None:
    data = va.load_dataset("synthetic:shape=adult,rows=300", partition="vfedsec")
    run = secured(data, modulus_bits=64, fraction_bits=24, epochs=1)
    score = reconstruct(run, MaskCollusion(party="passive1"), "passive1", *others("passive1"))
    assert score.verified and score.metrics["category_accuracy"] == 1.0 and score.score > 1 - 1e-6


# --- broken masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters", [{}, {"batches": "fixed"}, {"batches": "fixed", "rekey_every": 100, "epochs": 6}]
)
def test_a_repeated_stream_opens_every_passive_party(three: VerticalDataset, parameters: dict[str, Any]) -> None:
    run = secured(three, defect="reused-stream", **{"epochs": 3} | parameters)
    for party in ("passive1", "passive4"):
        score = reconstruct(run, StreamReuse(party=party), party)
        assert score.verified and score.score > 0.99 and score.notes[party]["places_exact"] > 100


def test_training_alone_opens_a_party_that_holds_every_row(three: VerticalDataset) -> None:
    run = secured(three, defect="reused-stream", lone_weights="server", batches="fixed", rekey_every=100, epochs=6)
    score = reconstruct(run, StreamReuse(party="active"), "active")
    assert score.score > 0.95 and score.notes["active"]["places_exact"] == 0


def test_fresh_streams_give_nothing_to_subtract(run: Run) -> None:
    score = reconstruct(run, StreamReuse(), "passive1")
    assert not score.verified and score.interval[0] <= 0 <= score.interval[1]
    assert all(note["places"] == 0 for note in score.notes.values())


def test_gaussian_masks_average_out(three: VerticalDataset) -> None:
    parameters: dict[str, Any] = {"defect": "float-masks", "batches": "fixed", "epochs": 12}
    run = secured(three, **parameters)
    by_epochs = [reconstruct(run, FloatMasks(party="passive1", passes=count), "passive1") for count in (1, 4, 12)]
    values = [score.score for score in by_epochs]
    assert values == sorted(values) and values[-1] > 0.7 and by_epochs[-1].interval[0] > 0.6
    wide = reconstruct(secured(three, mask_deviation=5.0, **parameters), FloatMasks(party="passive1"), "passive1")
    assert wide.score < values[-1]


@pytest.mark.parametrize(("defect", "attack"), [("reused-stream", StreamReuse()), ("float-masks", FloatMasks())])
def test_broken_masks_say_nothing_of_people_in_an_ideal_run(
    three: VerticalDataset, defect: str, attack: FeatureAttack
) -> None:
    run = va.load_protocol("ideal", like="vfedsec", defect=defect, **QUICK).run(three, seed=0)
    assert reconstruct(run, attack, "passive1").interval[0] <= 0


def test_broken_masks_train_the_same_model(three: VerticalDataset, run: Run) -> None:
    features = {party: block.values[:50] for party, block in run.data.blocks.items()}
    same = secured(three, defect="reused-stream").model.predict(features)
    near = secured(three, defect="float-masks").model.predict(features)
    assert np.array_equal(same, run.model.predict(features))
    assert np.allclose(near, same, atol=1e-3)
    with pytest.raises(InputError, match="needs security='masked'"):
        secured(three, defect="float-masks", security="clear")


def test_gaussian_masks_are_not_mistaken_for_masked_values(three: VerticalDataset, run: Run) -> None:
    with pytest.raises(InputError, match="security=masked"):
        reconstruct(secured(three, defect="float-masks", epochs=1), MaskCollusion(), "passive1")
    with pytest.raises(InputError, match="defect=float-masks"):
        reconstruct(run, FloatMasks(), "passive1")


# --- distinguishers -----------------------------------------------------------------------------------------


def two_inputs(seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Two inputs of three clients with the same sum: all that the lemma lets the server know."""
    rng = np.random.default_rng(seed)
    one = {f"client{k}": rng.normal(size=4) for k in range(3)}
    moved = rng.normal(size=4)
    return one, one | {"client0": one["client0"] + moved, "client1": one["client1"] - moved}


@pytest.mark.parametrize("seed", [None, 7])
def test_samples_are_what_clients_send(seed: int | None) -> None:
    """Fresh in every sample, and with the right sum."""
    one, _ = two_inputs(0)
    sent = masked_samples(one, 50, KeySource(seed), 3)
    total = sum(FixedPoint(32, 16, 3).encode(values) for values in one.values())
    assert sent.dtype == np.uint32 and (sent.sum(axis=1, dtype=np.uint32) == total).all()
    assert len(np.unique(sent)) > sent.size - 3  # two equal numbers are a chance of 1 in 24 000


def test_every_distinguisher_has_its_level() -> None:
    one, other = two_inputs(0)
    values: dict[str, list[float]] = {"bytes": [], "level": [], "classifier": []}
    for seed in range(200):
        source = KeySource(seed)
        many = masked_samples({"a": np.zeros(2000), "b": np.ones(2000)}, 1, source, 0)[:, 0]
        values["bytes"].append(byte_test(many))
        values["level"].append(level_test(many))
        first, second = (masked_samples(inputs, 60, source, number) for number, inputs in enumerate((one, other), 1))
        values["classifier"].append(tell_apart(first, second, seed, trees=5).p_value)
    for name, p_values in values.items():
        for level in (0.05, 0.5):
            rejected = int(np.sum(np.array(p_values) <= level))
            assert binomtest(rejected, 200, level).pvalue > 0.01, (name, level, rejected)


@pytest.mark.parametrize(("masking", "told"), [("none", 1.0), ("reused-stream", 1.0), ("float-masks", 0.9)])
def test_distinguishers_see_what_is_not_masked_well(masking: Any, told: float) -> None:
    one, other = two_inputs(1)
    source = KeySource(1)
    samples = [
        masked_samples(inputs, 400, source, number, masking=masking, deviation=0.3)
        for number, inputs in enumerate((one, other, one))
    ]
    found = tell_apart(samples[0], samples[1], 0)
    assert found.auc >= told and found.p_value < 1e-6
    bound = stats.epsilon_lower_bound(found.second, found.first, 1e-5, np.random.default_rng(0))
    assert bound.epsilon > 0.3
    assert tell_apart(samples[0], samples[2], 0).p_value > 0.01  # the same input twice is not told apart


def test_masked_messages_pass_and_quantised_ones_do_not(three: VerticalDataset, run: Run) -> None:
    server = va.Adversary({"server"})
    plain = secured(three, security="quantised").view(server)
    for kind in ("masked_output", "masked_gradient"):
        for tests in message_tests(run.view(server), kind).values():
            assert min(tests.values()) > 1e-3
        for tests in message_tests(plain, kind).values():
            assert max(tests.values()) < 1e-9


def test_gaussian_masks_are_told_as_well_as_theory_says() -> None:
    one, other = two_inputs(2)
    moved = other["client0"] - one["client0"]
    for deviation in (0.5, 2.0, 8.0):
        first, second = (
            masked_samples(inputs, 4000, KeySource(3), number, masking="float-masks", deviation=deviation)[:, 0] @ moved
            for number, inputs in enumerate((one, other))
        )
        measured = stats.auc(np.repeat([False, True], 4000), np.concatenate([first, second]))
        expected = gaussian_auc(float(np.linalg.norm(moved)), deviation * np.sqrt(2))  # two masks on each client
        assert abs(measured - expected) < 0.02 and expected > 0.5
    assert gaussian_auc(1.0, 10.0, rounds=10_000) > 0.999
