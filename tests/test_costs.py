"""Costs against examples worked out by hand."""

from __future__ import annotations

import json
import time

import pytest

from vflaudit.core.costs import LAN, PRESETS, SATELLITE, WAN, Meter, Network, Traffic
from vflaudit.core.transcript import Transcript
from vflaudit.core.wire import Wire
from vflaudit.errors import InputError


def example() -> Meter:
    """First a sends b 100 and c 50, b sends a 10 (CPU: a 1, b 2); then c sends b 400 (CPU: b 3, c 1)."""
    meter = Meter(["a", "b", "c"])
    meter.count("a", "b", 100)
    meter.count("a", "c", 50)
    meter.count("b", "a", 10)
    meter.compute("a", 1.0)
    meter.compute("b", 2.0)
    meter.next_round()
    meter.count("c", "b", 400)
    meter.compute("b", 3.0)
    meter.compute("c", 1.0)
    return meter


def test_accounts_per_party_and_direction() -> None:
    costs = example().costs()
    assert costs.sent == {"a": Traffic(2, 150), "b": Traffic(1, 10), "c": Traffic(1, 400)}
    assert costs.received == {"a": Traffic(1, 10), "b": Traffic(2, 500), "c": Traffic(1, 50)}
    assert costs.cpu == {"a": 1.0, "b": 5.0, "c": 1.0}
    assert costs.total == Traffic(4, 560)


def test_critical_path_takes_the_busiest_party_of_each_round() -> None:
    costs = example().costs()
    assert costs.rounds == 2
    assert costs.critical_bytes == 160 + 400  # a in the first round (150 + 10), b or c in the second
    assert costs.critical_cpu == 2.0 + 3.0


def test_costs_are_a_snapshot() -> None:
    meter = example()
    before = meter.costs()
    meter.count("a", "b", 1)
    meter.next_round()
    assert before.rounds == 2 and before.sent["a"] == Traffic(2, 150)
    assert meter.costs().total == Traffic(5, 561)
    with pytest.raises(TypeError):
        before.sent["a"] = Traffic()  # type: ignore[index]


def test_nothing_costs_nothing() -> None:
    costs = Meter(["a"]).costs()
    assert costs.rounds == 0 and WAN.seconds(costs) == 0.0


def test_network_seconds_by_hand() -> None:
    costs = example().costs()
    assert Network("slow", 0.5, 80.0).seconds(costs) == pytest.approx(2 * 0.5 + 560 * 8 / 80 + 5.0)
    assert WAN.seconds(costs) == pytest.approx(0.06 + 4480 / 1e8 + 5.0)
    assert LAN.seconds(costs) < WAN.seconds(costs) < SATELLITE.seconds(costs)


def test_summary_is_deterministic_and_timing_is_apart() -> None:
    costs = example().costs()
    summary = json.loads(json.dumps(costs.summary()))
    assert summary["rounds"] == 2 and summary["messages"] == 4 and summary["bytes"] == 560
    assert summary["parties"]["b"] == {
        "sent": {"messages": 1, "bytes": 10},
        "received": {"messages": 2, "bytes": 500},
    }
    assert "second" not in json.dumps(summary) and "cpu" not in json.dumps(summary)
    timing = json.loads(json.dumps(costs.timing()))
    assert timing["cpu_seconds"] == {"a": 1.0, "b": 5.0, "c": 1.0}
    assert timing["critical_cpu_seconds"] == 5.0
    assert set(timing["estimated_seconds"]) == {"lan", "wan", "satellite"} == set(PRESETS)


def test_networks_parse() -> None:
    assert Network.parse("wan") is WAN and Network.parse(" LAN ") is LAN
    custom = Network.parse("latency=0.03, bandwidth=1e8")
    assert (custom.latency_s, custom.bandwidth_bits_per_s) == (0.03, 1e8)
    assert Network.PRESETS is PRESETS and Network.SATELLITE is SATELLITE


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("wam", "'wan'"),
        ("", "satellite"),
        ("latencies=1,bandwidth=1", "'latency'"),
        ("latency=fast,bandwidth=1", "'fast'"),
        ("latency=1", "incomplete"),
        ("latency=-1,bandwidth=1", "latency -1"),
        ("latency=nan,bandwidth=1", "latency nan"),
        ("latency=0,bandwidth=0", "bandwidth 0"),
        ("latency=0,bandwidth=inf", "bandwidth inf"),
    ],
)
def test_bad_networks_are_told_in_a_sentence(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Network.parse(text)


def test_cpu_time_goes_to_the_party_and_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 10.0, 11.0, 20.0, 25.0])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    wire = Wire(["server", "client1", "client2"], Transcript())
    with wire.computing("server"), wire.computing("server"):  # nested: one account, 2 s
        pass
    with wire.computing("client1"):  # 1 s in the same round
        wire.send("client1", "server", "x", {})
    wire.next_round()
    with pytest.raises(RuntimeError), wire.computing("client1"):  # 5 s, counted although it failed
        raise RuntimeError
    costs = wire.costs
    assert costs.cpu == {"server": 2.0, "client1": 6.0, "client2": 0.0}
    assert costs.critical_cpu == 2.0 + 5.0


def test_parties_do_not_compute_inside_each_other() -> None:
    wire = Wire(["server", "client1", "client2"], Transcript())
    with wire.computing("server"), pytest.raises(InputError, match="inside"), wire.computing("client1"):
        pass
    with pytest.raises(InputError, match="'client1'"), wire.computing("clint1"):
        pass
