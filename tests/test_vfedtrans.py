"""VFedTrans: FedSVD loses nothing and hides each table, VFedPCA nears the joint components, both are distilled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire
from vflaudit.protocols.vfedtrans.fedsvd import fedsvd, orthogonal
from vflaudit.protocols.vfedtrans.protocol import VFedTrans
from vflaudit.protocols.vfedtrans.vfedpca import vfedpca
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter


def small(**more):
    return VFedTrans(**{"epochs": 2, "hidden_layers": (8,), "folds": 3, "randomness": "seed", **more})


def tables(rng, rows, widths):
    names = ["active", *(f"passive{k}" for k in range(1, len(widths)))]
    return {name: rng.standard_normal((rows, width)) for name, width in zip(names, widths, strict=True)}


def wire_for(found):
    return Wire([*found, "server", "key_server"], Transcript())


@given(
    rows=st.integers(3, 30),
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    block=st.sampled_from((4, 1000)),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_fedsvd_is_lossless(rows, widths, block, seed):
    """The active party gets the left singular vectors of the joint table: they rebuild its Gram matrix exactly."""
    data = tables(np.random.default_rng(seed), rows, widths)
    wire = wire_for(data)
    found = fedsvd(wire, data, None, block=block, send_values=True, seed=seed)
    joint = np.hstack(list(data.values()))
    (message,) = wire.transcript.select(kind="factors")
    values = message.arrays["values"]
    np.testing.assert_allclose(values, np.linalg.svd(joint, compute_uv=False), atol=1e-9)
    np.testing.assert_allclose((found.values * values**2) @ found.values.T, joint @ joint.T, atol=1e-8)


def test_fedsvd_server_gets_the_masked_sum_and_no_summand():
    data = tables(np.random.default_rng(0), 40, (3, 5))
    wire = wire_for(data)
    fedsvd(wire, data, 4, block=1000, send_values=False, seed=0)
    (message,) = wire.transcript.select(kind="factors")
    assert set(message.arrays) == {"left"} and message.arrays["left"].shape == (40, 4) and message.rows is None
    sent = [m.arrays["values"] for m in wire.transcript.select(kind="masked")]
    assert [m.dtype for m in sent] == [np.uint64] * 2
    total = (sent[0] + sent[1]).view(np.int64) / 2.0**40
    joint = np.hstack(list(data.values()))
    np.testing.assert_allclose(
        np.linalg.svd(total, compute_uv=False), np.linalg.svd(joint, compute_uv=False), atol=1e-9
    )
    assert not np.allclose(np.abs(total), np.abs(joint), atol=0.1)
    for one in sent:  # a summand alone is uniform in Z_R: 2^63 in size, not a few units
        assert np.abs(one.view(np.int64) / 2.0**40).mean() > 1e6
    assert {m.receiver for m in wire.transcript.select(sender="key_server")} == {"active", "passive1"}
    assert not any(m.receiver == "key_server" for m in wire.transcript)


def test_masks_are_orthogonal_in_blocks():
    matrix = orthogonal(10, 4, np.random.default_rng(0))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(10), atol=1e-12)
    assert np.count_nonzero(matrix) == 16 + 16 + 4


def test_vfedpca_with_one_local_iteration_finds_the_joint_components():
    rng = np.random.default_rng(0)
    data = tables(rng, 50, (4, 6))
    left, _, right = np.linalg.svd(np.hstack(list(data.values())), full_matrices=False)
    spread = left * np.array([30, 12, 5, 2, 1, 0.5, 0.4, 0.3, 0.2, 0.1]) @ right
    data = {"active": spread[:, :4], "passive1": spread[:, 4:]}
    wire = wire_for(data)
    found = vfedpca(wire, data, np.arange(50), 2, periods=40, iterations=1, seed=0).values
    assert np.abs(left[:, 0] @ found[:, 0]) > 0.999 and np.abs(left[:, 1] @ found[:, 1]) > 0.99
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-8)
    assert len(list(wire.transcript.select(sender="passive1", kind="component"))) == 80
    assert all(m.rows is None for m in wire.transcript.select(receiver="server"))
    assert all(m.rows is not None for m in wire.transcript.select(sender="server"))


def test_vfedpca_stops_where_nothing_is_left():
    data = {"active": np.outer(np.arange(6.0), [1.0, 2.0]), "passive1": np.zeros((6, 1))}
    found = vfedpca(wire_for(data), data, np.arange(6), None, periods=3, iterations=5, seed=0).values
    assert found.shape == (6, 3) and np.isfinite(found).all()
    assert np.abs(found[:, 0] @ np.arange(6) / np.linalg.norm(np.arange(6))) == pytest.approx(1)


@pytest.mark.parametrize("representation", ["fedsvd", "vfedpca"])
def test_as_a_protocol(representation):
    data = va.load_dataset("breast-cancer", parties=3, overlap=0.8, rows=200)
    protocol = small(representation=representation, components=3, periods=2)
    run = protocol.run(data, seed=0)
    helpers = ("server", "key_server") if representation == "fedsvd" else ("server",)
    assert run.spec.parties == ("active", "passive1", "passive2", *helpers)
    assert run.states["active"].parameters["g3.encoder.2.weight"].shape == (3, 8)
    assert 0.4 < run.utility["accuracy"] <= 1 and run.utility["aligned_rows"] == len(run.data.aligned("train"))
    assert not any(
        m.sender.startswith("passive") and m.receiver == "active" and m.rows is not None for m in run.transcript
    )
    for corrupts in ({"active"}, {"server"}):
        adversary = va.Adversary(corrupts, [va.KnownSamples(10)])
        assert_isolated(run, adversary)
        assert_secrets_do_not_matter(run, adversary)
    assert_deterministic(protocol, data)
    own = run.data.blocks["active"].values
    assert run.model.predict({"active": own}).shape == (len(own), 2)


def test_width_defaults_to_all_columns():
    run = small(epochs=1).run(va.load_dataset("wine", parties=2))
    assert run.states["active"].parameters["g3.encoder.2.weight"].shape == (13, 8)
