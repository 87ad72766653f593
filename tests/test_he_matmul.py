"""Homomorphic encryption (vFedSec 6.2): the schemes, the protocol that uses them, and what they cost.

Paillier keys have 512 bits here, for speed; the default is 2048.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vflaudit as va
from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Run
from vflaudit.errors import InputError
from vflaudit.protocols import he_costs
from vflaudit.protocols.he_matmul import HEMatmul
from vflaudit.protocols.homomorphic import (
    SCHEMES,
    KeyPair,
    SchemeName,
    from_arrays,
    generate,
    load_key,
    to_arrays,
)
from vflaudit.testing import assert_deterministic, assert_isolated, assert_secrets_do_not_matter

for library in ("phe", "tenseal"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'vflaudit[he]'")

WAYS: list[tuple[SchemeName, int, float]] = [  # scheme, degree, largest error for rows of norm 3 or less
    ("paillier", 4096, 1e-6),
    ("ckks-naive", 4096, 2e-7),
    ("ckks-packed", 4096, 2e-5),
    ("ckks-packed", 8192, 2e-7),
]
SMALL = {"key_bits": 512, "hidden": 5, "batch_size": 16, "rounds": 3, "learning_rate": 0.5}
PRECISE = {"modulus_bits": 64, "fraction_bits": 40}  # so that only encryption can make a difference


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request: pytest.FixtureRequest) -> tuple[KeyPair, float]:
    scheme, degree, error = request.param
    return generate(scheme, key_bits=512, degree=degree), error


@pytest.fixture(scope="module")
def packed() -> KeyPair:
    return generate("ckks-packed")


@pytest.fixture(scope="module")
def small() -> VerticalDataset:
    return va.load_dataset("synthetic:rows=70,features=6", parties=2)


def matrices(*shape: int, seed: int = 0) -> tuple[Array, Array]:
    rng, (rows, width, hidden) = np.random.default_rng(seed), shape
    return rng.uniform(-1, 1, (rows, width)), rng.uniform(-1, 1, (width, hidden))


# --- the schemes --------------------------------------------------------------------------------------------


def test_a_product_of_two_parties_decrypts_to_the_plain_one(way: tuple[KeyPair, float]) -> None:
    pair, error = way
    key, (x, w), (y, v) = pair.public, matrices(5, 4, 3), matrices(5, 2, 3, seed=1)
    x[1], x[:, 2] = 0.0, 0.0  # a row that somebody else holds, and a category that nobody has
    first, second = key.multiply(x, key.encrypt_weights(w)), key.multiply(y, key.encrypt_weights(v))
    total = key.load(key.dump(key.refresh(key.add(first, second))), (5, 3))
    assert np.abs(pair.decrypt(total) - (x @ w + y @ v)).max() < error
    assert np.abs(pair.decrypt(first) - x @ w).max() < error  # adding left it as it was


def test_a_batch_in_which_a_party_holds_nothing(way: tuple[KeyPair, float]) -> None:
    pair, error = way
    key, (x, w) = pair.public, matrices(2, 3, 2)
    nothing = key.multiply(np.zeros((2, 3)), key.encrypt_weights(w))
    total = key.add(nothing, key.multiply(x, key.encrypt_weights(w)))
    assert np.abs(pair.decrypt(key.refresh(total)) - x @ w).max() < error


def test_encrypting_the_product_at_once(way: tuple[KeyPair, float]) -> None:
    pair, error = way
    x, w = matrices(4, 3, 2)
    once = pair.public.encrypt(x @ w)
    assert np.abs(pair.decrypt(pair.public.add(once, once)) - 2 * x @ w).max() < error


@settings(max_examples=12)
@given(rows=st.integers(1, 90), width=st.integers(1, 5), hidden=st.integers(1, 200), seed=st.integers(0, 99))
def test_packing_puts_every_number_in_its_place(packed: KeyPair, rows: int, width: int, hidden: int, seed: int) -> None:
    x, w = matrices(rows, width, hidden, seed=seed)
    product = packed.public.multiply(x, packed.public.encrypt_weights(w))
    assert len(product.parts) == -(-rows // (2048 // hidden))
    assert np.abs(packed.decrypt(product) - x @ w).max() < 2e-5


def test_the_papers_widest_layer_is_precise(packed: KeyPair) -> None:
    x, w = he_costs.example(32, 197, 128)  # Taobao's active party
    assert np.abs(packed.decrypt(packed.public.multiply(x, packed.public.encrypt_weights(w))) - x @ w).max() < 5e-5


@pytest.mark.parametrize("scheme", ["paillier", "ckks-naive"])
def test_only_a_refreshed_product_hides_that_rows_are_equal(scheme: str) -> None:
    pair = generate(scheme, key_bits=512)
    x, w = matrices(1, 2, 1)
    product = pair.public.multiply(np.vstack([x, x]), pair.public.encrypt_weights(w))
    first, second = pair.public.dump(product)
    assert first == second
    first, second = pair.public.dump(pair.public.refresh(product))
    assert first != second


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_seed_repeats_bytes_and_never_randomness(scheme: str) -> None:
    def sent(seed: int, party: str) -> list[bytes]:
        pair = generate(scheme, key_bits=512, seed=seed)
        key = load_key(scheme, pair.public.key_bytes(), seed=seed, use=(party,))
        same = np.full((1, 2), 0.5)
        return [*key.dump(key.encrypt(same)), *key.dump(key.encrypt(same)), pair.public.key_bytes(), pair.secret]

    first = sent(0, "active")
    assert first == sent(0, "active")
    assert len(set(first)) == len(first)  # SEAL under a seed would encrypt twice with the same randomness
    assert set(first[:-2]).isdisjoint(sent(0, "passive1")[:-2])
    assert set(first).isdisjoint(sent(1, "active"))


def test_keys_without_a_seed_differ() -> None:
    assert len({generate(scheme, key_bits=512).secret for scheme in SCHEMES for _ in range(2)}) == 2 * len(SCHEMES)


def test_bad_messages_and_values_are_refused(way: tuple[KeyPair, float]) -> None:
    pair, _ = way
    key = pair.public
    sent = key.dump(key.encrypt(np.ones((1, 1))))
    assert from_arrays(to_arrays(sent)) == sent
    arrays = to_arrays(sent)
    with pytest.raises(InputError, match="cut short"):
        from_arrays({**arrays, "ciphertexts": arrays["ciphertexts"][:-1]})
    with pytest.raises(InputError, match="encrypted message"):
        key.load([b"\x05nonsense"], (1, 1))
    with pytest.raises(InputError, match="encrypted message"):
        key.load(sent * 2, (1, 1))
    for value in (np.nan, np.inf, 2 * key.limit):
        with pytest.raises(InputError, match="cannot be encrypted"):
            key.encrypt(np.array([[value]]))
    assert str(pair.secret[:8]) not in repr(pair)


@pytest.mark.parametrize(("scheme", "library"), [("paillier", "phe"), ("ckks-packed", "tenseal")])
def test_a_missing_library_is_named_with_its_extra(scheme: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (library, f"{library}.sealapi"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"'{library}': pip install 'vflaudit\[he\]'"):
        generate(scheme, key_bits=512)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'ckks-packed'"):
        generate("ckks-pack")
    with pytest.raises(InputError, match="degree=1024"):
        generate("ckks-packed", degree=1024)


# --- the protocol -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clear(small: VerticalDataset) -> Run:
    return HEMatmul(security="clear", **SMALL).run(small, seed=0)


@pytest.mark.parametrize(
    "settings",
    [{"scheme": "paillier"}, {"degree": 8192}, {}, {"encrypts": "product"}, {"refresh": False}],
    ids=str,
)
def test_the_model_is_that_of_the_unsecured_twin(small: VerticalDataset, clear: Run, settings: dict[str, Any]) -> None:
    run = HEMatmul(**SMALL, **PRECISE, **settings).run(small, seed=0)
    start = HEMatmul(**{**SMALL, "learning_rate": 1e-12}, security="clear").run(small, seed=0)
    moved = [np.abs(value - start.model.parameters[name]).max() for name, value in clear.model.parameters.items()]
    apart = [np.abs(value - run.model.parameters[name]).max() for name, value in clear.model.parameters.items()]
    assert max(moved) > 0.05
    assert max(apart) < 1e-5
    assert run.utility == pytest.approx(clear.utility, abs=1e-6)


def test_the_server_gets_the_sum_and_never_a_part(small: VerticalDataset, clear: Run) -> None:
    run = HEMatmul(**SMALL, **PRECISE).run(small, seed=0)
    assert run.spec.parties == ("server", "active", "passive1", "passive2")
    kinds = {(m.sender, m.kind) for m in run.transcript if m.receiver == "server"}
    assert {(party, "encrypted_output") for party in run.spec.parties[1:]} <= kinds
    assert not any(kind == "output" for _, kind in kinds)
    for step in range(3):
        joined = [m.arrays["values"] for m in run.transcript if m.kind == "decrypted_sum"][step]
        plain = [m.arrays["values"] for m in clear.transcript if m.kind == "output"][3 * step : 3 * step + 3]
        assert np.abs(joined - np.sum(plain, axis=0)).max() < 2e-5


def test_the_secret_key_stays_with_the_active_party(small: VerticalDataset) -> None:
    run = HEMatmul(**{**SMALL, "rounds": 1, "rekey_every": 2}, scheme="paillier").run(small, seed=0)
    held = {
        party: [value.tobytes() for name, value in state.secrets.items() if name.startswith("homomorphic key")]
        for party, state in run.states.items()
    }
    keys = held.pop("active")
    assert len(set(keys)) == len(keys) >= 2  # renewed every second round, prediction included
    assert not any(held.values())
    sent = [array.tobytes() for message in run.transcript for array in message.arrays.values()]
    halves = [half for key in keys for half in (key[:32], key[32:])]
    assert not any(half in content for half in halves for content in sent)


@pytest.mark.parametrize("scheme", ["paillier", "ckks-packed"])
def test_the_invariants_of_every_protocol(small: VerticalDataset, scheme: SchemeName) -> None:
    few = {**SMALL, "rounds": 1, "batch_size": 64, "hidden": 2}  # under a seed, every CKKS ciphertext takes a while
    protocol = HEMatmul(**few, scheme=scheme, randomness="seed")
    assert_deterministic(protocol, small)
    run, adversary = protocol.run(small, seed=0), va.Adversary(corrupts={"server"})
    assert_isolated(run, adversary)
    assert_secrets_do_not_matter(run, adversary)


def test_a_product_that_does_not_fit_is_refused(small: VerticalDataset) -> None:
    with pytest.raises(InputError, match="degree=8192"):
        HEMatmul(**{**SMALL, "learning_rate": 1e4}).run(small, seed=0)


# --- the costs ----------------------------------------------------------------------------------------------


def test_extrapolation_counts_scalar_products_and_says_so() -> None:
    narrow, wide = (he_costs.cpu_seconds("paillier", 4, width, 8, extrapolate=True, key_bits=512) for width in (8, 24))
    assert narrow.extrapolated and wide.extrapolated
    assert wide.seconds == pytest.approx(3 * narrow.seconds)
    assert narrow.seconds == pytest.approx(he_costs.slice_seconds("paillier", 4, key_bits=512))
    whole = he_costs.cpu_seconds("ckks-packed", 40, 3, 64, extrapolate=False)
    assert not whole.extrapolated and whole.seconds > 0
    assert whole.error is not None and 0 < whole.error < 2e-5


def test_bytes_are_those_of_real_ciphertexts() -> None:
    key = generate("ckks-packed").public
    x, w = matrices(64, 8, 64)
    real = sum(map(len, key.dump(key.multiply(x, key.encrypt_weights(w)))))
    told, extrapolated = he_costs.traffic("ckks-packed", 64, 64)
    assert told == pytest.approx(real, rel=0.01) and not extrapolated  # compression varies with the content
    assert he_costs.traffic("paillier", 64, 64, key_bits=512) == (64 * 64 * (1 + 2 * 512 // 8), True)
    assert he_costs.masked_bytes(64, 64) == he_costs.masked(np.zeros((64, 64))).nbytes


def test_masks_in_loops_are_the_masks() -> None:
    product = he_costs.example(9, 4, 4)[0]
    assert (he_costs.masked(product) == he_costs.masked(product, loops=True)).all()
    assert set(he_costs.secure_layer_seconds(8, 4, repeats=1)) == {"active", "passive"}
