"""What a protocol costs: rounds, messages and bytes (exact), CPU seconds (measured), time on a network.

The network model is deliberately simple: a round costs one latency, then the bytes of its busiest party at
the given bandwidth, then the CPU time of its slowest party. So parties compute in parallel within a round;
sending and receiving share one link (full duplex is ignored); computing and transferring never overlap; there
is no loss, congestion or overhead below the message. It ranks protocols; it predicts no deployment's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from vflaudit.errors import InputError, unknown


@dataclass(frozen=True)
class Traffic:
    """Messages and their serialised bytes."""

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True)
class Costs:
    """A run's costs: per party, and along the critical path (the busiest party of each round)."""

    rounds: int
    sent: Mapping[str, Traffic]
    received: Mapping[str, Traffic]
    cpu: Mapping[str, float]
    critical_bytes: int
    critical_cpu: float

    @property
    def total(self) -> Traffic:
        """All messages of all parties, each counted once."""
        return sum(self.sent.values(), Traffic())

    def summary(self) -> dict[str, Any]:
        """What is the same in every run with the same seed: rounds, messages, bytes."""
        parties = {
            party: {
                "sent": {"messages": self.sent[party].messages, "bytes": self.sent[party].bytes},
                "received": {"messages": self.received[party].messages, "bytes": self.received[party].bytes},
            }
            for party in self.sent
        }
        total = self.total
        whole = {"rounds": self.rounds, "messages": total.messages, "bytes": total.bytes}
        return whole | {"critical_bytes": self.critical_bytes, "parties": parties}

    def timing(self) -> dict[str, Any]:
        """What depends on the machine: CPU seconds, and the estimated time on every preset network."""
        return {
            "cpu_seconds": dict(self.cpu),
            "critical_cpu_seconds": self.critical_cpu,
            "estimated_seconds": {name: network.seconds(self) for name, network in Network.PRESETS.items()},
        }


class Meter:
    """Adds up costs while a protocol runs; `costs()` is the account so far, the open round included."""

    def __init__(self, parties: Iterable[str]) -> None:
        self._sent = {party: [0, 0] for party in parties}
        self._received = {party: [0, 0] for party in self._sent}
        self._cpu = dict.fromkeys(self._sent, 0.0)
        self._closed_rounds = self._closed_bytes = 0
        self._closed_cpu = 0.0
        self._round_bytes: dict[str, int] = {}
        self._round_cpu: dict[str, float] = {}

    def count(self, sender: str, receiver: str, nbytes: int) -> None:
        """One message crossed the wire."""
        for party, account in ((sender, self._sent[sender]), (receiver, self._received[receiver])):
            account[0] += 1
            account[1] += nbytes
            self._round_bytes[party] = self._round_bytes.get(party, 0) + nbytes

    def compute(self, party: str, seconds: float) -> None:
        """A party was busy for some CPU seconds of the open round."""
        self._cpu[party] += seconds
        self._round_cpu[party] = self._round_cpu.get(party, 0.0) + seconds

    def next_round(self) -> None:
        """Close the round: its busiest and its slowest party join the critical path."""
        self._closed_rounds += bool(self._round_bytes)
        self._closed_bytes += max(self._round_bytes.values(), default=0)
        self._closed_cpu += max(self._round_cpu.values(), default=0.0)
        self._round_bytes, self._round_cpu = {}, {}

    def costs(self) -> Costs:
        """The account so far; what is counted later does not change it."""
        return Costs(
            rounds=self._closed_rounds + bool(self._round_bytes),
            sent=MappingProxyType({party: Traffic(*account) for party, account in self._sent.items()}),
            received=MappingProxyType({party: Traffic(*account) for party, account in self._received.items()}),
            cpu=MappingProxyType(dict(self._cpu)),
            critical_bytes=self._closed_bytes + max(self._round_bytes.values(), default=0),
            critical_cpu=self._closed_cpu + max(self._round_cpu.values(), default=0.0),
        )


@dataclass(frozen=True)
class Network:
    """A latency per round and a bandwidth per party; see the module's text for the model and its limits."""

    name: str
    latency_s: float
    bandwidth_bits_per_s: float

    LAN: ClassVar[Network]
    WAN: ClassVar[Network]
    SATELLITE: ClassVar[Network]
    PRESETS: ClassVar[Mapping[str, Network]]

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf:
            raise InputError(f"network {self.name!r}: latency {self.latency_s} is not a number of seconds from 0 up")
        if not 0 < self.bandwidth_bits_per_s < math.inf:
            bandwidth = self.bandwidth_bits_per_s
            raise InputError(f"network {self.name!r}: bandwidth {bandwidth} is not a positive number of bits/s")

    def seconds(self, costs: Costs) -> float:
        """Estimated wall-clock time: latency per round, bytes and CPU along the critical path."""
        transfer = costs.critical_bytes * 8 / self.bandwidth_bits_per_s
        return costs.rounds * self.latency_s + transfer + costs.critical_cpu

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read a preset's name, or "latency=0.03,bandwidth=1e8" (seconds, bits per second)."""
        text = text.strip()
        if "=" not in text:
            if text.lower() not in cls.PRESETS:
                raise unknown("network", text, cls.PRESETS)
            return cls.PRESETS[text.lower()]
        values: dict[str, float] = {}
        for part in text.split(","):
            key, _, number = (piece.strip() for piece in part.partition("="))
            if key not in ("latency", "bandwidth"):
                raise unknown("network setting", key, ("latency", "bandwidth"))
            try:
                values[key] = float(number)
            except ValueError:
                raise InputError(f"network {key} {number!r} is not a number") from None
        if len(values) != 2:
            raise InputError(f"network {text!r} is incomplete: expected something like 'latency=0.03,bandwidth=1e8'")
        return cls(text, values["latency"], values["bandwidth"])


LAN = Network.LAN = Network("lan", latency_s=1e-4, bandwidth_bits_per_s=1e10)
WAN = Network.WAN = Network("wan", latency_s=0.03, bandwidth_bits_per_s=1e8)
SATELLITE = Network.SATELLITE = Network("satellite", latency_s=0.3, bandwidth_bits_per_s=2e7)
PRESETS = Network.PRESETS = MappingProxyType({network.name: network for network in (LAN, WAN, SATELLITE)})
