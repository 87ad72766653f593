"""vFedSec as a target: its messages, its exactness, what each party learns of a batch, and what it never sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_isolation import check

import vflaudit as va
from attacks.secure_rounds import clusters, server_rounds
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Run
from vflaudit.core.wire import Message
from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec.channel import check_round
from vflaudit.testing import assert_deterministic
from vflaudit.testing.strategies import vertical_datasets

QUICK: dict[str, Any] = {"randomness": "seed", "batch_size": 64, "epochs": 2}
SERVER = va.Adversary({"server"})


def secured(data: VerticalDataset, seed: int = 0, **parameters: Any) -> Run:
    return va.load_protocol("vfedsec", **{**QUICK, **parameters}).run(data, seed=seed)


@pytest.fixture(scope="module")
def three() -> VerticalDataset:
    return va.load_dataset("breast-cancer", parties=3)


@pytest.fixture(scope="module")
def run(three: VerticalDataset) -> Run:
    return secured(three)


@pytest.mark.parametrize(("shape", "widths"), [("bank", (57, 3, 20)), ("adult", (27, 63, 16))])
def test_the_papers_split_has_the_papers_widths(shape: str, widths: tuple[int, ...]) -> None:
    data = va.load_dataset(f"synthetic:shape={shape},rows=60", partition="vfedsec")
    made = va.load_protocol("vfedsec").prepare(data)
    assert made.parties == ("active", "passive1", "passive2", "passive3", "passive4")
    found = tuple(made.block(party).width for party in ("active", "passive1", "passive3"))
    assert found == widths and made.label_owner == "active"


def test_a_cluster_shares_columns_scale_and_rows(three: VerticalDataset) -> None:
    made = va.load_protocol("vfedsec", clients_per_cluster=3).prepare(three)
    assert made.parties == ("active", *(f"passive{k}" for k in range(1, 7)))
    for cluster in (("passive1", "passive2", "passive3"), ("passive4", "passive5", "passive6")):
        assert made.cluster(cluster[0]) == cluster
        present = np.stack([made.block(party).present for party in cluster])
        assert (present.sum(axis=0) == 1).all() and present.any(axis=1).all()
    train = made.aligned("train")
    assert np.array_equal(train, made.split["train"])
    whole = made.cluster_values("passive1")[train]
    assert np.allclose(whole.mean(axis=0), 0, atol=1e-9) and np.allclose(whole.std(axis=0), 1)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_masks_do_not_change_training_by_one_bit(three: VerticalDataset, model: str, optimiser: str) -> None:
    masked = secured(three, model=model, optimiser=optimiser)
    bare = secured(three, model=model, optimiser=optimiser, security="quantised")
    assert masked.model.parameters.keys() == bare.model.parameters.keys()
    for name, value in masked.model.parameters.items():
        assert np.array_equal(value, bare.model.parameters[name])
    assert masked.utility == bare.utility
    assert masked.transcript.digest() != bare.transcript.digest()


@pytest.mark.parametrize("fraction", [12, 16, 20])
def test_quantisation_costs_no_more_than_its_error(three: VerticalDataset, fraction: int) -> None:
    """One round with SGD: weights differ from unsecured split learning by what rounding allows, and not by nothing."""
    settings = {"epochs": 1, "batch_size": 512, "fraction_bits": fraction}
    exact, fixed = secured(three, security="clear", **settings), secured(three, **settings)
    # A cluster's gradient is a sum of two values rounded to 2^-fraction; Z of five. The latter passes through the
    # network once: its effect on a gradient that is a mean over rows stays below it for weights below one.
    allowed = 0.01 * (2 + 5) * 2.0 ** -(fraction + 1) + 1e-7
    worst = max(float(np.abs(fixed.model.parameters[n] - v).max()) for n, v in exact.model.parameters.items())
    assert 0 < worst <= allowed


def test_serving_goes_through_the_wire_and_the_model_agrees(run: Run) -> None:
    rows = run.data.aligned("test")
    features = {party: run.data.cluster_values(party)[rows] for party in run.data.parties}
    accuracy = (run.model.predict(features).argmax(axis=1) == run.data.labels[rows]).mean()
    assert accuracy == run.utility["accuracy"]
    assert sum(len(m.arrays["values"]) for m in run.transcript.select(kind="prediction")) == len(rows) + len(
        run.data.aligned("validation")
    )


def test_the_servers_sums_are_the_products_of_all_clients(run: Run) -> None:
    """Z, labels and the sums of gradients are what eq. 2 and section 4.2 say, for the rows behind the places."""
    assert run.order is not None
    view = run.view(SERVER)
    for found in server_rounds(view)[:3]:
        rows = run.order[found.places]
        assert found.labels is not None and np.array_equal(found.labels, run.data.labels[rows])
        assert found.gradient is not None
        for first in ("passive1", "passive3"):
            columns = run.data.cluster_values(first)[rows]
            total = found.sums[first].reshape(64, -1)
            assert np.abs(total - found.gradient.T @ columns).max() < 2 * 2.0**-17 + 1e-6
        if found.number == 0:
            active = found.weights["active"]
            weights = {"active": active[: 64 * 10].reshape(64, 10)}
            weights |= {first: found.weights[first].reshape(64, -1) for first in ("passive1", "passive3")}
            joined = sum(run.data.cluster_values(party)[rows] @ w.T for party, w in weights.items())
            # PyTorch lists a Linear's weight before its bias
            assert np.abs(found.joined - joined - active[-64:]).max() < 5 * 2.0**-17 + 1e-5


def test_swapping_who_holds_a_row_does_not_change_what_the_server_can_compute(three: VerticalDataset) -> None:
    """Same sums, same view up to the masks: who of a cluster holds a row is hidden from the server."""
    protocol = va.load_protocol("vfedsec", **QUICK)
    made = protocol.prepare(three)
    blocks = dict(made.blocks)
    blocks["passive1"], blocks["passive2"] = (
        replace(made.block("passive2"), values=made.cluster_values("passive1")),
        replace(made.block("passive1"), values=made.cluster_values("passive1")),
    )
    swapped = protocol.run(replace(made, blocks=blocks), seed=0)
    straight = protocol.run(made, seed=0)
    pairs = list(zip(server_rounds(straight.view(SERVER)), server_rounds(swapped.view(SERVER)), strict=True))
    assert len(pairs) == 10
    for one, other in pairs:
        assert np.abs(one.joined - other.joined).max() < 1e-3  # only rounding: the two parts round apart
        assert np.abs(one.sums["passive1"] - other.sums["passive1"]).max() < 1e-3


def test_who_learns_which_rows_a_batch_has(run: Run) -> None:
    assert run.order is not None
    assert all(message.rows is None for message in run.transcript)
    assert np.array_equal(run.states["active"].secrets["schedule"], run.order)
    assert not run.states["server"].secrets
    for party in ("passive1", "passive2", "passive3", "passive4"):
        schedule = run.states[party].secrets["schedule"]
        mine = schedule >= 0
        assert np.array_equal(schedule[mine], run.order[mine])
        assert np.array_equal(mine, (run.order >= 0) & run.data.block(party).present[run.order])


def test_new_keys_every_k_rounds(three: VerticalDataset) -> None:
    for every in (1, 3, 100):
        made = secured(three, rekey_every=every, epochs=1)
        total = 5 + sum(1 for _ in made.transcript.select(kind="prediction"))  # five training batches, then serving
        setups = sum(1 for _ in made.transcript.select(sender="active", kind="public_keys"))
        assert setups == -(-total // every)


def test_a_client_alone_in_its_cluster_sends_no_gradient(three: VerticalDataset) -> None:
    alone = secured(three, clients_per_cluster=1)
    assert not list(alone.transcript.select(kind="masked_gradient"))
    sent = list(alone.transcript.select(kind="weights"))
    assert len(sent) == 3 and all(m.arrays["round"] == 0 for m in sent)
    returned = secured(three, clients_per_cluster=1, lone_weights="server")
    for name, value in alone.model.parameters.items():
        assert np.array_equal(value, returned.model.parameters[name])
    assert len(list(returned.transcript.select(kind="weights", receiver="server"))) == 3 * 10


def test_averaging_over_clients_is_a_smaller_step(three: VerticalDataset) -> None:
    kept, halved = (secured(three, average=how, epochs=1, batch_size=512) for how in ("batch", "clients"))
    start = next(kept.transcript.select(receiver="passive1", kind="weights")).arrays["values"].reshape(64, 10)
    moved = [made.states["passive1"].parameters["secure.weight"] - start for made in (kept, halved)]
    # a client loads what the server broadcast for serving: the weights after one step
    assert np.allclose(moved[0], 2 * moved[1], atol=1e-7) and np.abs(moved[0]).max() > 1e-5


def test_fixed_batches_repeat_and_reshuffled_ones_do_not(three: VerticalDataset) -> None:
    for kind, same in (("fixed", True), ("reshuffled", False)):
        made = secured(three, batches=kind)
        assert made.order is not None
        first, second = made.order[: 5 * 64], made.order[5 * 64 : 10 * 64]
        assert np.array_equal(first, second) == same
        assert np.array_equal(np.sort(first[first >= 0]), np.sort(second[second >= 0]))


def test_keys_never_appear(three: VerticalDataset, tmp_path: Any) -> None:
    """Pair keys live in the clients' own states and nowhere else: not in a message, a print, a saved transcript."""
    made = secured(three, epochs=1)
    keys = [
        value.tobytes()
        for state in made.states.values()
        for name, value in state.secrets.items()
        if name.startswith("mask key")
    ]
    assert len(keys) >= 20 and all(len(key) == 32 for key in keys)
    everything = b"".join(a.tobytes() for message in made.transcript for a in message.arrays.values())
    printed = repr(made.states) + repr(made) + repr(made.view(va.Adversary({"server", "passive1"}))) + str(made.spec)
    for key in keys:
        assert key not in everything
        assert key.hex() not in printed and str(list(key)[:6])[1:-1] not in printed
    made.transcript.save(tmp_path / "saved")
    saved = b"".join(path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file())
    assert not any(key in saved for key in keys)


def test_keys_come_from_the_system_unless_asked(three: VerticalDataset) -> None:
    one, two = (secured(three, epochs=1, randomness="os") for _ in range(2))
    assert one.transcript.digest() != two.transcript.digest()
    for name, value in one.model.parameters.items():
        assert np.array_equal(value, two.model.parameters[name])
    assert va.load_protocol("vfedsec").parameters()["randomness"] == "os"


def test_a_value_out_of_range_is_told(three: VerticalDataset) -> None:
    with pytest.raises(InputError, match="fraction"):
        secured(three, fraction_bits=31)
    wide = secured(three, fraction_bits=31, modulus_bits=64, epochs=1)
    assert next(wide.transcript.select(kind="masked_output")).arrays["values"].dtype == np.uint64


@pytest.mark.parametrize(
    ("told", "fine"), [({"round": np.array(3)}, True), ({"round": np.array(2)}, False), ({}, False)]
)
def test_a_message_of_another_round_is_refused(told: dict[str, np.ndarray], fine: bool) -> None:
    if fine:
        assert check_round(dict(told), 3, "x") == {}
        return
    with pytest.raises(InputError, match="not of round 3"):
        check_round(dict(told), 3, "x")


@pytest.mark.parametrize("what", ["dropped", "repeated", "exchanged", "tampered"])
def test_tampering_on_the_way_is_noticed(three: VerticalDataset, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's relay drops, repeats, exchanges or changes sealed ids, and the passive party refuses the batch."""
    from vflaudit.protocols.vfedsec import channel

    honest, before = channel.open_ids, {}

    def relay(batch: dict[str, np.ndarray], me: str, *more: Any) -> np.ndarray:
        ids = np.array(batch["ids"])
        if what == "dropped":
            ids = ids[:, 1:]
        elif what == "repeated":
            ids = before.setdefault(me, batch)["ids"] if me in before else ids
        elif what == "exchanged":
            ids[:, [0, 1]] = ids[:, [1, 0]]
        else:
            ids[0, 0, -1] ^= 1
        before.setdefault(me, batch)
        return honest({**batch, "ids": ids}, me, *more)

    monkeypatch.setattr(channel, "open_ids", relay)
    with pytest.raises(InputError, match="changed or replayed"):
        secured(three)


def test_cnn_and_mlp_on_image_slices() -> None:
    data = va.load_dataset("digits", parties=2, partition="slices", rows=300)
    for model, hidden in (("cnn", 600), ("mlp", 128)):
        made = secured(data, model=model, epochs=1, clients_per_cluster=2)
        assert next(made.transcript.select(kind="masked_output")).arrays["values"].shape[1] == hidden
        assert 0 <= made.utility["accuracy"] <= 1
        assert made.model.predict(_pool(made)).shape == (90, 10)
    with pytest.raises(InputError, match="slices"):
        secured(va.load_dataset("wine", parties=2), model="cnn")


def _pool(made: Run) -> dict[str, np.ndarray]:
    assert made.data.aux is not None
    return {party: block.values for party, block in made.data.aux.blocks.items()}


def test_regression_works(three: VerticalDataset) -> None:
    made = secured(va.load_dataset("diabetes", parties=2), optimiser="adam", epochs=5)
    assert 0 < made.utility["rmse"] < 200


@settings(max_examples=20)
@given(data=vertical_datasets(), source=st.data(), security=st.sampled_from(["masked", "quantised", "clear"]))
def test_views_are_isolated(data: VerticalDataset, source: st.DataObject, security: str) -> None:
    if len(data.parties) < 2 or not all(block.present.all() for block in data.blocks.values()):
        with pytest.raises(InputError, match="vfedsec"):
            secured(data)
        return
    if len(data.split["train"]):
        check(secured(data, epochs=1, hidden=3, batch_size=16, security=security), source.draw)


def test_runs_repeat_with_a_seed(three: VerticalDataset) -> None:
    assert_deterministic(va.load_protocol("vfedsec", **QUICK), three)


def test_one_party_is_not_enough() -> None:
    with pytest.raises(InputError, match="two parties"):
        secured(va.load_dataset("wine", parties=1))
    with pytest.raises(InputError, match="overlap"):
        secured(va.load_dataset("wine", parties=3, overlap=0.7))


def test_what_is_public_tells_the_clusters(run: Run) -> None:
    assert clusters(run.view(SERVER)) == [("active",), ("passive1", "passive2"), ("passive3", "passive4")]
    assert isinstance(next(iter(run.transcript)), Message)
