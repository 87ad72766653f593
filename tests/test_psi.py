"""Private set intersection: the right answer at every party, and messages that tell nothing else."""

import hashlib
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError
from vflaudit.protocols.psi.curve import PRIME, Blinding, hash_points, on_curve
from vflaudit.protocols.psi.intersect import intersect

NO_OPENMINED = pytest.mark.skipif(find_spec("private_set_intersection") is None, reason="extra `psi` is not installed")
METHODS = [pytest.param("diffie-hellman"), pytest.param("openmined", marks=NO_OPENMINED)]
QUICK = settings(max_examples=25, deadline=None)
IDS = st.lists(st.one_of(st.text(max_size=6), st.sampled_from(["a", "b", "ä", "ä", "名前", "", " a"])), max_size=8)
SETS = st.lists(IDS, min_size=1, max_size=4)


def meet(sets, method="diffie-hellman", seed=None):
    names = ["active", *(f"passive{number}" for number in range(1, len(sets)))]
    wire = Wire(names, Transcript())
    found = intersect(wire, dict(zip(names, sets, strict=True)), "active", method=method, seed=seed)
    return wire, found


@pytest.mark.parametrize("method", METHODS)
@given(sets=SETS)
@example(sets=[[], []])
@example(sets=[["a", "a", "b"], ["b", "b", "a"], ["a"]])
@example(sets=[["\ud800", "x\x00", "x", "é", "e\u0301"], ["e\u0301", "\ud800", "x\x00"]])
@QUICK
def test_everybody_finds_the_plain_intersection(method, sets):
    wanted = sorted(set.intersection(*map(set, sets)))
    _, found = meet(sets, method)
    for ids, places in zip(sets, found.places.values(), strict=True):
        assert [ids[place] for place in places] == wanted
        assert all(ids.index(ids[place]) == place for place in places)  # a repeated id stands at its first place


def shape_of(wire):
    return [
        (m.sender, m.receiver, m.step, m.kind, [(name, array.shape) for name, array in sorted(m.arrays.items())])
        for m in wire.transcript
    ]


@pytest.mark.parametrize("method", METHODS)
@given(
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=3),
    shared=st.sets(st.text(max_size=5), max_size=4),
    texts=st.data(),
)
@QUICK
def test_messages_depend_on_other_ids_by_their_number_alone(method, counts, shared, texts):
    """Replace all ids that are not shared: the same messages of the same sizes, and the same final message.

    What is compared is everything but the content of blinded points, which keys randomise (tested below). Ids that are
    not in the intersection of all are in one set only here, so the sizes along the chain stay as well.
    """

    def sets(prefix):
        other = texts.draw(st.text(max_size=12))
        return [
            [*sorted(shared), *(f"{prefix}{party}/{number}{other}" for number in range(count))]
            for party, count in enumerate(counts)
        ]

    first, second = (meet(sets(prefix), method)[0] for prefix in ("one of party ", "another of party "))
    assert shape_of(first) == shape_of(second)
    final = [
        [m.arrays["digests"].tobytes() for m in wire.transcript.select(kind="psi_shared")] for wire in (first, second)
    ]
    assert final[0] == final[1]


def test_no_message_repeats_what_ids_hash_to_and_keys_change_every_point():
    sets = [[f"a{n}" for n in range(20)], [f"a{n}" for n in range(10, 40)], [f"a{n}" for n in range(15, 50)]]
    plain = {point for ids in sets for point in hash_points(ids)}
    seen = []
    for _ in range(2):
        wire, found = meet(sets)
        points = {
            row.tobytes()
            for m in wire.transcript
            for name, array in m.arrays.items()
            if name in ("leader", "own", "others")
            for row in array
        }
        assert not points & plain
        keys = [kept["psi key"].tobytes() for kept in found.secrets.values()]
        assert len(set(keys)) == 3 and all(len(key) == 32 for key in keys)
        seen.append(points)
    assert seen[0] and not seen[0] & seen[1]


def test_blinded_points_do_not_show_on_which_curve_an_id_fell():
    """Plain hashes as points would: half of them are on the twist, and stay there under every key."""
    ids = [f"person {number}" for number in range(200)]
    blind = Blinding(bytes(range(32)))
    raw = [hashlib.sha256(name.encode()).digest() for name in ids]
    side = [on_curve((int.from_bytes(point, "little") % 2**255) % PRIME) for point in raw]
    blinded = [on_curve(int.from_bytes(point, "little")) for point in blind(raw)]
    assert 60 < sum(side) < 140 and side == blinded
    for points in (hash_points(ids), blind(hash_points(ids))):
        assert all(on_curve(int.from_bytes(point, "little")) for point in points)


def test_hash_is_the_map_of_the_standard():
    """Elligator 2 as RFC 9380 (6.7.1) defines it: u = -A / (1 + 2 r^2), or -u - A where that is on the twist."""
    for name, point in zip(["", "x", "名前"], hash_points(["", "x", "名前"]), strict=True):
        digest = hashlib.sha512(b"vflaudit psi, curve25519, elligator 2: " + name.encode()).digest()
        r = int.from_bytes(digest, "big")
        u = int.from_bytes(point, "little")
        assert u in {
            -486662 * pow(1 + 2 * r * r, -1, PRIME) % PRIME,
            (486662 * pow(1 + 2 * r * r, -1, PRIME) - 486662) % PRIME,
        }
        assert pow(u**3 + 486662 * u**2 + u, (PRIME - 1) // 2, PRIME) == 1


def test_blinding_commutes_and_refuses_points_of_low_order():
    a, b = Blinding(bytes(range(32))), Blinding(bytes(range(1, 33)))
    points = hash_points(["x", "y"])
    assert a(b(points)) == b(a(points)) != points
    with pytest.raises(InputError, match="low order"):
        a([bytes(32)])


def test_places_in_a_list_are_uniform_over_keys():
    """The place of one id among four, in the leader's list and in the other's: 25% each over 400 keys (chi-square)."""
    ids = ["a", "b", "c", "d"]
    points = hash_points(ids)
    places = Counter()
    for number in range(400):
        blinded = Blinding(hashlib.sha256(f"key {number}".encode()).digest())(points)
        places[sorted(blinded).index(blinded[0])] += 1
    assert sum((places[place] - 100) ** 2 / 100 for place in range(4)) < 16.3  # 99.9% of chi-square with 3


def test_leader_learns_sizes_but_not_which_ids_matched_on_the_way():
    """Four ids match the first party, one of them the second: the leader gets the four in an order it cannot know."""
    sets = [list("abcdef"), list("abcdxy"), list("a")]
    orders = set()
    for seed in range(12):
        wire, found = meet(sets, seed=seed)
        (answer,) = wire.transcript.select(sender="passive1", kind="psi_answer")
        points = [row.tobytes() for row in answer.arrays["leader"]]
        assert all(before < after for before, after in pairwise(points))  # sorted by blinded value
        keys = {party: Blinding(kept["psi key"].tobytes()) for party, kept in found.secrets.items()}
        both = keys["passive1"](keys["active"](hash_points(sets[0])))
        orders.add(tuple(sets[0][both.index(point)] for point in points))
        (asked,) = wire.transcript.select(sender="active", receiver="passive2", kind="psi_blinded")
        assert asked.arrays["leader"].shape == (4, 32)
        assert [sets[0][place] for place in found.places["active"]] == ["a"]
    assert len(orders) > 6


def test_two_parties_need_three_messages_and_seeds_repeat():
    first, again = (meet([["a", "b"], ["b"]], seed=3)[0] for _ in range(2))
    assert [m.kind for m in first.transcript] == ["psi_blinded", "psi_answer", "psi_shared"]
    assert first.transcript.digest() == again.transcript.digest()
    assert first.transcript.digest() != meet([["a", "b"], ["b"]], seed=4)[0].transcript.digest()
    assert meet([["a", "b"], ["b"]])[0].transcript.digest() != meet([["a", "b"], ["b"]])[0].transcript.digest()


def test_a_leader_without_ids_is_told():
    with pytest.raises(InputError, match="leader 'nobody'"):
        intersect(Wire(["a", "b"], Transcript()), {"a": [], "b": []}, "nobody")


@NO_OPENMINED
def test_both_implementations_agree_on_larger_sets():
    rng = np.random.default_rng(0)
    sets = [[str(number) for number in rng.permutation(400)[:250]] for _ in range(3)]
    found = [meet(sets, method)[1].places for method in ("diffie-hellman", "openmined")]
    for party in found[0]:
        np.testing.assert_array_equal(found[0][party], found[1][party])
    assert len(found[0]["active"]) > 50


def test_missing_library_is_told_in_one_sentence(monkeypatch):
    from vflaudit.protocols.psi import openmined

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(openmined, "import_module", absent)
    with pytest.raises(InputError, match=r"vflaudit\[psi\]"):
        meet([["a"], ["a"]], "openmined")
