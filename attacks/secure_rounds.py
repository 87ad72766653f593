"""What vFedSec's server rightfully gets, round by round, read from its messages: sums, labels, gradients, weights.

The server unmasks sums by adding up masked values (vFedSec eq. 2); everything here it computes in an honest run too.
It knows a row only by its place in a batch, `number * batch_size + position`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attacks.base import Requirement
from vflaudit.core.dataset import Array
from vflaudit.core.transcript import Message
from vflaudit.core.view import View
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.masks import unmask

AT_SERVER = Requirement(
    "vFedSec's server and its messages (protocol vfedsec with security=masked or quantised, --corrupts server)",
    lambda view: (
        "server" in view.adversary.corrupts
        and next(view.transcript.select(receiver="server", kind="masked_output"), None) is not None
    ),
)

SOLVABLE = Requirement(
    "a local module that can be solved layer by layer (model=linear or mlp; in a cnn, pooling and batch "
    "normalisation tie the rows of a batch together)",
    lambda view: view.spec.parameters["model"] in ("linear", "mlp"),
)


@dataclass(eq=False)
class Round:
    """One round at the server. `weights` and `sums` are flat vectors by the first party of a cluster."""

    number: int
    epoch: int | None
    places: Array
    joined: Array  # Z, float64 (batch, hidden)
    labels: Array | None = None
    gradients: dict[str, Array] = field(default_factory=dict)  # of the loss at Z, as sent to each client
    weights: dict[str, Array] = field(default_factory=dict)
    sums: dict[str, Array] = field(default_factory=dict)

    @property
    def gradient(self) -> Array | None:
        """The gradient at Z; on average, where a defense adds noise to every copy of it."""
        return np.mean(list(self.gradients.values()), axis=0) if self.gradients else None


def clusters(view: View) -> list[tuple[str, ...]]:
    """Who shares a feature space: public, as everybody's columns are."""
    found: dict[tuple[object, ...], list[str]] = {}
    for party, columns in view.spec.columns.items():
        found.setdefault(columns, []).append(party)
    return [tuple(parties) for parties in found.values()]


def fixed_point(view: View, terms: int) -> FixedPoint:
    """The number format of the run, for a sum of so many values."""
    parameters = view.spec.parameters
    return FixedPoint(parameters["modulus_bits"], parameters["fraction_bits"], terms)


def added_noise(view: View, hook: str) -> float:
    """The deviation of the noise that defenses add to every number of a message at this hook: it is public."""
    found = [one for one in view.spec.parameters.get("defenses", ()) if one["name"] == "gaussian-noise"]
    return math.sqrt(sum(one["sigma"] ** 2 for one in found if one["at"] == hook))


def hidden_width(view: View) -> int:
    """Outputs of the Secure Layer."""
    message = next(view.transcript.select(kind="masked_output"))
    return int(message.arrays["values"].shape[1])


def server_rounds(view: View, *, training: bool = True) -> list[Round]:
    """Every recorded round in order: training rounds, or those of serving."""
    groups = clusters(view)
    clients = [party for cluster in groups for party in cluster]
    rounds: list[Round] = []
    for number, messages in _by_round(view).items():
        outputs = {message.sender: message.arrays["values"] for message in messages if message.kind == "masked_output"}
        if set(outputs) != set(clients):
            continue  # not recorded whole
        epoch = messages[-1].epoch
        if (epoch is None) == training:
            continue
        joined = fixed_point(view, len(clients)).decode(unmask(outputs, clients))
        first = number * int(view.spec.parameters["batch_size"])
        found = Round(number, epoch, np.arange(first, first + len(joined)), joined)
        _read(view, found, messages, groups)
        rounds.append(found)
    return rounds


def _by_round(view: View) -> Mapping[int, list[Message]]:
    found: dict[int, list[Message]] = {}
    for message in view.transcript.select(touching=("server",)):
        if "round" in message.arrays:
            found.setdefault(int(message.arrays["round"]), []).append(message)
    return found


def _read(view: View, found: Round, messages: list[Message], groups: list[tuple[str, ...]]) -> None:
    """Fill in labels, the gradient, weights that the server sent or got, and the sums of clusters' gradients."""
    first = {party: cluster[0] for cluster in groups for party in cluster}
    masked: dict[str, dict[str, Array]] = {}
    for message in messages:
        values = message.arrays.get("values")
        if values is None:
            continue
        if message.kind == "labels":
            found.labels = values
        elif message.kind == "gradient":
            found.gradients[message.receiver] = values.astype(np.float64)
        elif message.kind == "weights" and message.sender == "server":
            found.weights[first[message.receiver]] = values.astype(np.float64)
        elif message.kind == "masked_gradient":
            masked.setdefault(first[message.sender], {})[message.sender] = values
    for cluster in groups:
        if cluster[0] in masked:
            parts = masked[cluster[0]]
            found.sums[cluster[0]] = fixed_point(view, len(cluster)).decode(unmask(parts, cluster))
