"""The Secure Layer's parts: fixed point, keys, and masks that cancel."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chi2, kstest

from vflaudit.errors import InputError
from vflaudit.protocols.vfedsec import masks
from vflaudit.protocols.vfedsec.batch_ids import open_ids, seal_ids
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.keys import KeyRing, KeySource
from vflaudit.protocols.vfedsec.masks import add_masks, keystream, unmask

UINTS = st.sampled_from([np.uint32, np.uint64])
PURPOSES: tuple[masks.Purpose, ...] = ("forward", "gradient", "serving")
SHAPES = hnp.array_shapes(max_dims=3, min_side=0, max_side=9)


def names(count: int) -> list[str]:
    return ["active", *(f"passive{i}" for i in range(1, count))]


def agreed(group: list[str], generation: int = 0, seed: int | None = 0) -> dict[str, KeyRing]:
    """Everybody's keys after one setup phase."""
    source = KeySource(seed)
    rings = {name: KeyRing(name, [o for o in group if o != name], generation, source) for name in group}
    sent = {name: ring.public_keys() for name, ring in rings.items()}
    for name, ring in rings.items():
        ring.agree({other: sent[other][name] for other in ring.others})
    return rings


def mask_keys(ring: KeyRing) -> dict[str, bytes]:
    return {other: ring.mask_key(other) for other in ring.others}


def uniform(rng: np.random.Generator, shape: Any, dtype: Any) -> np.ndarray:
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


# fixed point


@st.composite
def formats(draw: Any) -> FixedPoint:
    bits = draw(st.sampled_from([32, 64]))
    return FixedPoint(bits, draw(st.integers(0, bits - 1)), draw(st.integers(1, 1000)))


@given(fixed=formats(), data=st.data())
def test_sums_are_off_by_at_most_half_a_step_per_term(fixed: FixedPoint, data: Any) -> None:
    """Checked in exact rational arithmetic, also for sums at the very edge of the range."""
    count = data.draw(st.integers(1, min(fixed.terms, 6)))
    size = st.floats(-fixed.largest, fixed.largest) | st.sampled_from([-fixed.largest, fixed.largest, 0.0])
    values = np.array(data.draw(st.lists(size, min_size=count, max_size=count)))
    total = np.zeros(1, dtype=fixed.dtype)
    for value in values:
        total += fixed.encode(np.array([value]))
    whole = int(total.view(np.int32 if fixed.bits == 32 else np.int64)[0])
    exact = sum((Fraction(value) for value in values.tolist()), Fraction(0))
    assert abs(Fraction(whole, 2**fixed.fraction) - exact) <= Fraction(count, 2 ** (fixed.fraction + 1))
    decoded = Fraction(float(fixed.decode(total)[0]))
    rounding = 0 if abs(whole) <= 2**53 else abs(decoded) * Fraction(1, 2**52)
    assert abs(decoded - exact) <= Fraction(fixed.error) + rounding


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("terms", [1, 3, 64])
def test_the_full_range_never_wraps_and_one_step_more_is_refused(bits: Any, terms: int) -> None:
    fixed = FixedPoint(bits, 16, terms)
    for edge in (fixed.largest, -fixed.largest):
        total = np.zeros(2, dtype=fixed.dtype)
        for _ in range(terms):
            total += fixed.encode(np.full(2, edge))
        np.testing.assert_allclose(fixed.decode(total), terms * edge, rtol=1e-15)
        beyond = math.nextafter(edge, math.copysign(math.inf, edge))
        with pytest.raises(InputError, match="cannot be encoded"):
            fixed.encode(np.array([0.0, beyond]))
    # largest is not smaller than it need be: with one step more, the sum could leave the signed half (float64 apart)
    assert (fixed.largest / fixed.resolution + 1) * terms * (1 + 2**-52) >= 2 ** (bits - 1) - terms


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -3e4])
def test_what_does_not_fit_is_told_with_range_and_remedy(value: float) -> None:
    with pytest.raises(InputError, match=re.escape(f"the value {value:g} cannot")) as error:
        FixedPoint(32, 16, 2).encode(np.array([1.0, value, 2.0]))
    assert "16384" in str(error.value) and "smaller fraction or bits=64" in str(error.value)


def test_half_steps_round_to_even_and_negatives_are_the_upper_half() -> None:
    encoded = FixedPoint(32, 1, 1).encode(np.array([0.25, 0.75, -0.25, -0.75, -0.5]))
    assert encoded.dtype == np.uint32
    assert encoded.tolist() == [0, 2, 0, 2**32 - 2, 2**32 - 1]
    assert FixedPoint(64, 0, 1).encode(np.array(-1.0)).tolist() == 2**64 - 1


def test_encoded_values_can_be_masked_whatever_the_layout_of_the_input() -> None:
    values = np.arange(12.0).reshape(3, 4)
    for view in (values.T, values[:, ::2], np.asfortranarray(values), values.astype(np.float32)):
        encoded = FixedPoint(32, 0, 1).encode(view)
        assert encoded.flags.c_contiguous and encoded.flags.writeable
        np.testing.assert_array_equal(encoded, view)


@pytest.mark.parametrize(("bits", "fraction", "terms"), [(16, 4, 1), (32, 32, 1), (64, -1, 1), (32, 8, 0)])
def test_impossible_formats_are_refused(bits: Any, fraction: int, terms: int) -> None:
    with pytest.raises(InputError, match="not possible"):
        FixedPoint(bits, fraction, terms)


def test_decoding_wants_the_type_of_the_format() -> None:
    with pytest.raises(InputError, match="expected uint32"):
        FixedPoint(32, 8, 1).decode(np.zeros(2, dtype=np.uint64))


# keys


@given(count=st.integers(2, 5), generation=st.integers(0, 9), seed=st.none() | st.integers(0, 99))
def test_both_sides_agree_and_no_two_secrets_are_equal(count: int, generation: int, seed: int | None) -> None:
    group = names(count)
    rings, later = agreed(group, generation, seed), agreed(group, generation + 1, seed)
    secrets = []
    for one, two in combinations(group, 2):
        assert rings[one].mask_key(two) == rings[two].mask_key(one)
        assert rings[one].id_key(two) == rings[two].id_key(one)
        for ring in (rings[one], later[one]):
            secrets += [ring.mask_key(two), ring.id_key(two)]
    assert len(set(secrets)) == len(secrets) == 2 * count * (count - 1)
    assert all(len(secret) == 32 for secret in secrets)
    public = [key.tobytes() for ring in rings.values() for key in ring.public_keys().values()]
    public += [key.tobytes() for ring in later.values() for key in ring.public_keys().values()]
    assert len(set(public)) == 2 * count * (count - 1)  # one key pair per ordered pair and generation


def test_the_generation_is_part_of_the_secrets() -> None:
    """Two clients that mistake the generation share nothing, although their key pairs fit."""
    one, two = KeyRing("a", ["b"], 0, KeySource(0)), KeyRing("b", ["a"], 1, KeySource(0))
    one.agree({"b": two.public_keys()["a"]})
    two.agree({"a": one.public_keys()["b"]})
    assert one.mask_key("b") != two.mask_key("a") and one.id_key("b") != two.id_key("a")


def test_a_seed_repeats_keys_and_the_system_does_not() -> None:
    group = names(2)
    key = lambda seed: agreed(group, 0, seed)["active"].mask_key("passive1")
    assert key(3) == key(3) != key(4)
    assert key(None) != key(None)
    assert KeySource(3).take(8, "a") == KeySource(3).take(8, "a") != KeySource(3).take(8, "b")
    assert KeySource(None).take(8, "a") != KeySource(None).take(8, "a")


LOW_ORDER = (bytes(32), bytes([1] + 31 * [0]), bytes([0xEC] + 30 * [0xFF] + [0x7F]))  # 0, 1 and p - 1


@pytest.mark.parametrize(
    ("received", "words"),
    [
        ({}, "expected ['passive1']"),
        ({"passive1": bytes(32), "passive2": bytes(32)}, "expected ['passive1']"),
        ({"passive1": bytes(31)}, "is not 32 bytes"),
        *(({"passive1": point}, "low order") for point in LOW_ORDER),
    ],
)
def test_bad_public_keys_are_refused(received: dict[str, bytes], words: str) -> None:
    ring = KeyRing("active", ["passive1"], 0, KeySource(0))
    with pytest.raises(InputError, match=re.escape(words)):
        ring.agree({name: np.frombuffer(key, dtype=np.uint8) for name, key in received.items()})
    with pytest.raises(InputError, match="not agreed"):
        ring.mask_key("passive1")


def test_keys_are_agreed_once_and_only_with_others() -> None:
    rings = agreed(names(2))
    with pytest.raises(InputError, match="already"):
        rings["active"].agree({"passive1": rings["passive1"].public_keys()["active"]})
    with pytest.raises(InputError, match="shares no key with 'server'"):
        rings["active"].id_key("server")
    with pytest.raises(InputError, match="names must differ"):
        KeyRing("active", ["active"], 0, KeySource(0))


def test_no_repr_and_no_error_shows_a_key() -> None:
    """Everything printable of a key ring, its source, masks and sealed batches: no run of 4 key bytes in any form."""
    source = KeySource(123456789)
    group = names(3)
    private = [source.take(32, "key", one, two, "0") for one in group for two in group if one != two]
    rings = agreed(group, 0, 123456789)
    ring = rings["active"]
    keys = mask_keys(ring)
    ids = {other: ring.id_key(other) for other in ring.others}
    batch = seal_ids(np.arange(2), [["passive1", "passive2"]], ids, 0, source)
    texts = [repr(ring), str(ring), repr(source), str(source), f"{vars(source).keys()}"]
    values = np.zeros(3, dtype=np.uint32)
    for call in (
        lambda: ring.agree({other: np.zeros(32, dtype=np.uint8) for other in ring.others}),
        lambda: ring.mask_key("nobody"),
        lambda: add_masks(values, "active", {"passive1": keys["passive1"]}, group, 0, "forward"),
        lambda: add_masks(values, "active", keys | {"passive1": keys["passive1"][:31]}, group, 0, "forward"),
        lambda: open_ids(batch, "passive1", 0, ids["passive2"], 0),
        lambda: open_ids(batch, "passive1", 0, ids["passive1"], 1),
        lambda: seal_ids(np.arange(2), [["passive1", "other"]], ids, 0, source),
    ):
        with pytest.raises(InputError) as error:
            call()
        texts += [str(error.value), repr(error.value)]
        assert error.value.__cause__ is None
    text = " ".join(texts)
    assert "123456789" not in text
    for key in [*private, *keys.values(), *ids.values()]:
        for start in range(0, 29):
            part = key[start : start + 4]
            assert part.hex() not in text and repr(part)[2:-1] not in text
            assert ", ".join(map(str, part)) not in text and " ".join(map(str, part)) not in text


def test_the_private_state_holds_the_mask_keys() -> None:
    ring = agreed(names(3), 4)["passive1"]
    secrets = ring.secrets()
    assert set(secrets) == {"mask key 4 active", "mask key 4 passive2"}
    assert secrets["mask key 4 active"].dtype == np.uint8
    assert secrets["mask key 4 active"].tobytes() == ring.mask_key("active")


# masks


@given(
    count=st.integers(1, 7),
    shape=SHAPES,
    dtype=UINTS,
    round=st.integers(0, 2**56 - 1),
    purpose=st.sampled_from(PURPOSES),
)
def test_masks_cancel_and_unmasking_is_exact(
    count: int, shape: tuple[int, ...], dtype: Any, round: int, purpose: masks.Purpose
) -> None:
    group = names(count)
    rings, rng = agreed(group), np.random.default_rng(round % 1000)
    plain = {name: uniform(rng, shape, dtype) for name in group}
    masked = {name: values.copy() for name, values in plain.items()}
    for name, values in masked.items():
        add_masks(values, name, mask_keys(rings[name]), group, round, purpose)
    pure = {name: masked[name] - plain[name] for name in group}
    assert not unmask(pure, group).any()  # sum of all masks is 0 in Z_R
    exact = sum(values.astype(object) for values in plain.values()) % (int(np.iinfo(dtype).max) + 1)
    result = unmask(masked, group)
    assert result.dtype == dtype and result.shape == shape
    assert (result.astype(object) == exact).all()


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("extra", [-1, 0, 1, 777])
def test_chunks_do_not_show(dtype: Any, extra: int) -> None:
    """Around chunk borders masks are still PRG of later members minus PRG of earlier ones, over the whole array."""
    size = 2 * masks._CHUNK // np.dtype(dtype).itemsize + extra
    group = names(3)
    keys = mask_keys(agreed(group)["passive1"])
    values = np.zeros(size, dtype=dtype)
    add_masks(values, "passive1", keys, group, 5, "gradient")
    expected = np.zeros(size, dtype=dtype)
    for other, sign in (("active", -1), ("passive2", 1)):
        counter = bytes([2]) + (5).to_bytes(7, "big") + bytes(8)
        raw = Cipher(algorithms.AES(keys[other]), modes.CTR(counter)).encryptor().update(bytes(expected.nbytes))
        prg = np.frombuffer(raw, dtype=dtype)
        expected = expected + prg if sign > 0 else expected - prg
        whole = np.empty(size, dtype=dtype)
        keystream(keys[other], whole, 5, "gradient")
        np.testing.assert_array_equal(whole, prg)
    np.testing.assert_array_equal(values, expected)


@given(count=st.integers(2, 6), shape=SHAPES, dtype=UINTS, seed=st.integers(0, 999))
def test_every_input_with_the_same_sum_explains_the_same_transcript(
    count: int, shape: tuple[int, ...], dtype: Any, seed: int
) -> None:
    """Lemma 5.1 by coupling: p -> p' is a bijection of the pair masks, so both inputs have the same distribution.

    The real masks are AES streams; given one transcript and other inputs of equal sum, pair masks are constructed with
    which eq. (3) turns those inputs into that very transcript. Only the chain of neighbours' masks has to change.
    """
    group, rng = names(count), np.random.default_rng(seed)
    rings = agreed(group)
    inputs = [uniform(rng, shape, dtype) for _ in group]
    others = [uniform(rng, shape, dtype) for _ in group[1:]]
    others.append(sum(inputs, np.zeros(shape, dtype)) - sum(others, np.zeros(shape, dtype)))
    transcript = []
    for name, values in zip(group, inputs, strict=True):
        sent = values.copy()
        add_masks(sent, name, mask_keys(rings[name]), group, 0, "forward")
        transcript.append(sent)
    pairs = {}
    for i, j in combinations(range(count), 2):
        pairs[i, j] = np.empty(shape, dtype=dtype)
        keystream(rings[group[i]].mask_key(group[j]), pairs[i, j], 0, "forward")
    carried = np.zeros(shape, dtype=dtype)
    for i in range(count - 1):
        carried = carried + (inputs[i] - others[i])
        pairs[i, i + 1] = pairs[i, i + 1] + carried
    for i in range(count):
        noise = np.zeros(shape, dtype=dtype)
        for j in range(count):
            if j != i:
                noise = noise + pairs[i, j] if j > i else noise - pairs[j, i]
        np.testing.assert_array_equal(others[i] + noise, transcript[i])


ADDRESSES = st.tuples(st.integers(0, 2**56 - 1), st.sampled_from(PURPOSES))


@given(one=ADDRESSES, two=ADDRESSES, blocks=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_counter_blocks_of_different_rounds_or_purposes_never_meet(one: Any, two: Any, blocks: tuple[int, int]) -> None:
    """Block t of a stream is its first counter block plus t modulo 2^128; t < 2^64 never carries into the domain."""
    counters = [
        (int.from_bytes(masks.domain(*address) + bytes(8), "big") + block) % 2**128
        for address, block in zip((one, two), blocks, strict=True)
    ]
    assert [counter >> 64 for counter in counters] == [int.from_bytes(masks.domain(*a), "big") for a in (one, two)]
    assert (counters[0] == counters[1]) == ((one, blocks[0]) == (two, blocks[1]))


def test_neighbouring_streams_share_no_block() -> None:
    """Actual bytes: 3 purposes, rounds next to each other and next to byte borders, 512 blocks each, all different."""
    key, seen = KeySource(0).take(32, "test"), []
    rounds = (0, 1, 2, 254, 255, 256, 257, 65535, 65536, 2**32 - 1, 2**32, 2**56 - 1)
    for purpose in PURPOSES:
        for round in rounds:
            out = np.empty(1024, dtype=np.uint64)
            keystream(key, out, round, purpose)
            seen.append(out.reshape(-1, 2))
    blocks = np.concatenate(seen)
    assert len(blocks) == 3 * len(rounds) * 512
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_every_round_and_purpose_has_its_own_stream_in_add_masks() -> None:
    """The positive control of the test above, through the function that the protocol calls."""
    group = names(2)
    keys = mask_keys(agreed(group)["active"])

    def mask(round: int, purpose: masks.Purpose) -> bytes:
        values = np.zeros(8, dtype=np.uint64)
        add_masks(values, "active", keys, group, round, purpose)
        return values.tobytes()

    every = [mask(round, purpose) for round in range(4) for purpose in PURPOSES]
    assert len(set(every)) == len(every)
    assert mask(3, "serving") == every[-1]  # the same address repeats: reuse is the caller's mistake


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masked_values_are_uniform(dtype: Any) -> None:
    """What one client sends, whatever it says (here: zeros, and the largest number), is uniform in Z_R.

    20 fixed rounds; in each a chi-square test of the highest and of the lowest bytes (255 degrees of freedom) and a KS
    test of the numbers over R. That makes 240 tests over both types at level 1e-6 each: were the streams truly random,
    the chance of a false alarm is at most 2.4e-4. Seeds are fixed, so the outcome is the same in every run.
    """
    rings, group, level, count = agreed(names(3)), names(3), 1e-6, 1 << 14
    for round in range(20):
        for start in (0, np.iinfo(dtype).max):
            values = np.full(count, start, dtype=dtype)
            add_masks(values, "passive1", mask_keys(rings["passive1"]), group, round, "forward")
            bytes_of = values.view(np.uint8).reshape(count, -1)
            for column in (0, -1):
                seen = np.bincount(bytes_of[:, column], minlength=256)
                statistic = ((seen - count / 256) ** 2 / (count / 256)).sum()
                assert chi2.sf(statistic, 255) > level
            assert kstest(values / float(np.iinfo(dtype).max), "uniform").pvalue > level


def test_the_uniformity_tests_can_fail() -> None:
    """Unmasked fixed-point values and masks that use half the range are far from uniform by the same tests."""
    rng, count = np.random.default_rng(0), 1 << 14
    plain = FixedPoint(32, 16, 3).encode(rng.standard_normal(count))
    half = uniform(rng, count, np.uint32) >> np.uint32(1)
    for values in (plain, half):
        seen = np.bincount(values.view(np.uint8).reshape(count, -1)[:, -1], minlength=256)
        assert chi2.sf(((seen - count / 256) ** 2 / (count / 256)).sum(), 255) < 1e-6
        assert kstest(values / float(2**32 - 1), "uniform").pvalue < 1e-6


def test_masks_go_nowhere_silently() -> None:
    """Arrays that cannot be masked in place are refused, not copied."""
    group = names(2)
    keys = mask_keys(agreed(group)["active"])
    frozen = np.zeros(4, dtype=np.uint32)
    frozen.flags.writeable = False
    for values in (np.zeros((4, 4), dtype=np.uint32)[:, ::2], np.zeros(4), np.zeros(4, dtype=np.int32), frozen):
        with pytest.raises(InputError, match="contiguous writable"):
            add_masks(values, "active", keys, group, 0, "forward")
    values = np.zeros(4, dtype=np.uint32)
    with pytest.raises(InputError, match="not in"):
        add_masks(values, "server", keys, group, 0, "forward")
    with pytest.raises(InputError, match="no mask key for passive2"):
        add_masks(values, "active", keys, names(3), 0, "forward")
    with pytest.raises(InputError, match="each once"):
        add_masks(values, "active", keys, [*group, "active"], 0, "forward")
    with pytest.raises(InputError, match="round -1"):
        add_masks(values, "active", keys, group, -1, "forward")
    with pytest.raises(InputError, match="no purpose 'test'"):
        add_masks(values, "active", keys, group, 0, "test")  # type: ignore[arg-type]
    assert not values.any()


def test_the_server_notices_missing_additional_and_different_messages() -> None:
    values = np.zeros((2, 3), dtype=np.uint32)
    good = {"active": values, "passive1": values}
    for masked, words in (
        ({"active": values}, "each once"),
        ({**good, "passive2": values}, "each once"),
        ({**good, "passive1": values.T}, "expected equal shapes"),
        ({**good, "passive1": values.astype(np.uint64)}, "expected equal shapes"),
        ({name: value.astype(np.float64) for name, value in good.items()}, "expected equal shapes"),
    ):
        with pytest.raises(InputError, match=words):
            unmask(masked, names(2))
    assert unmask(good, names(2)).shape == (2, 3)
