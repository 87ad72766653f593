"""vFedSec's masks against a server that colludes with clients (section 3: 'unless all other clients are corrupted').

A corrupted client knows the masks that it shares with everybody. What is left on an honest client's message are the
masks between honest clients, which cancel in the sum of all of them and nowhere else. Within a cluster that sum is
no protection: clients of a cluster hold disjoint rows and send zeros for the others, so in each row of the sum there is
the value of one client only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.one_hot import solve_rows
from attacks.secure_people import People, Replica
from attacks.secure_rounds import AT_SERVER, Round, clusters, fixed_point, server_rounds
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.view import View
from vflaudit.protocols.vfedsec.fixed_point import FixedPoint
from vflaudit.protocols.vfedsec.masks import Purpose, add_masks

LINEAR = Requirement(
    "vFedSec with model=linear: then a client's products are linear in its columns",
    lambda view: view.spec.parameters.get("model") == "linear",
)
SINGLE = 4e-7  # relative rounding error of products in single precision


def messages_by_round(view: View, kind: str) -> dict[int, dict[str, Array]]:
    """What every client sent to the server under this kind, by round."""
    found: dict[int, dict[str, Array]] = {}
    for message in view.transcript.select(receiver="server", kind=kind):
        found.setdefault(int(message.arrays["round"]), {})[message.sender] = message.arrays["values"]
    return found


def cluster_of(view: View, party: str) -> tuple[str, ...]:
    """Everybody with the party's columns."""
    return next(cluster for cluster in clusters(view) if party in cluster)


def weight_of(view: View, found: Round, party: str) -> tuple[Array, Array] | None:
    """W of the party's cluster and its bias as the server sent them in this round; none if it did not."""
    values = found.weights.get(cluster_of(view, party)[0])
    if values is None:
        return None
    hidden, width = found.joined.shape[1], len(view.spec.columns[party])
    size = hidden * width  # a linear module is nothing but its Secure Layer slice
    return values[:size].reshape(hidden, width), values[size:] if len(values) > size else np.zeros(hidden)


def one_hot_groups(view: View, party: str) -> list[Array]:
    """Positions of the party's one-hot columns, group by group."""
    found: dict[str, list[int]] = {}
    for position, column in enumerate(view.spec.columns[party]):
        if column.kind == "indicator" and column.group is not None:
            found.setdefault(column.group, []).append(position)
    return [np.array(group) for group in found.values()]


def rounding(points: FixedPoint, values: Array) -> float:
    """The deviation of what quantisation and single precision add to a product."""
    return math.hypot(points.resolution / math.sqrt(12), SINGLE * float(np.sqrt(np.mean(values**2))))


def plausible(points: FixedPoint, values: Array) -> bool:
    """Whether decoded values are small as products are: of uniform ones, each is so with a chance of 1 in 64."""
    return bool(np.abs(values).max() * 64 <= points.resolution * 2 ** (points.bits - 1))


def without_known_masks(
    view: View, sent: Mapping[str, Array], whose: Sequence[str], group: Sequence[str], number: int, purpose: Purpose
) -> Array:
    """The sum in Z_R of what `whose` sent, less all masks that they share with corrupted clients of the group."""
    generation = number // int(view.spec.parameters["rekey_every"])
    total = np.zeros_like(sent[whose[0]])
    for party in whose:
        for other in group:
            if other in view.states and other != party:
                key = view.states[other].secrets[f"mask key {generation} {party}"].tobytes()
                pair = [name for name in group if name in (party, other)]
                add_masks(total, other, {party: key}, pair, number, purpose)  # the other's half cancels the party's
        np.add(total, sent[party], out=total)
    return total


class MaskCollusion(FeatureAttack):
    """Remove the masks that corrupted clients share with the victim, then solve its products for its columns.

    First the victim's own message is tried, then the sum of the honest clients of its cluster. Either counts only if
    everything in it is small: with one honest mask left on it, it is uniform in Z_R. If neither is, nothing is guessed.
    A sum over several clusters is not divided here: that is what secure-layer-forward does with what the server gets in
    any case. `channel=gradient` opens the masked gradients. Only the clients of a cluster mask those together, so there
    the server and the victim's fellows suffice, whoever else is honest.

    `verified` says that masks were removed and that exactly the rows of corrupted fellows came out as zero; for
    gradients, that the solution explains them to the last digit although chance would not.
    """

    name: ClassVar[str] = "mask-collusion"
    requires: ClassVar[tuple[Requirement, ...]] = (AT_SERVER, LINEAR)
    channel: Literal["forward", "gradient"] = Field("forward", description="which masked messages to open")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        features, notes, verified = {}, {}, []
        for party in self.victims(view):
            guess, note = self._victim(view, party)
            features[party], notes[party] = guess, note
            verified.append(note["confirmed"])
        return {"features": features, "verified": all(verified), "notes": notes}

    def _victim(self, view: View, party: str) -> tuple[RowGuess, dict[str, Any]]:
        cluster = cluster_of(view, party)
        fellows = [name for name in cluster if name not in view.adversary.corrupts]
        width = len(view.spec.columns[party])
        for whose in ([party], fellows):
            opened = self._open(view, whose, cluster)
            if opened is None:
                continue
            label = "the party's own values" if whose == [party] else "the sum of the honest clients of its cluster"
            if self.channel == "forward":
                solved = _from_products(view, party, opened)
                confirmed = all(_zeros_confirmed(view, found, values, cluster) for found, values in opened)
            else:
                solved = _from_gradients(view, party, cluster, opened)
                confirmed = all(bool(part.explained.all()) for part in solved)
            places, rows, exact = (np.concatenate(part) for part in zip(*map(astuple, solved), strict=True))
            note = {"opened": label, "rows": len(rows), "rows_explained": float(exact.mean()), "confirmed": confirmed}
            return RowGuess(places, rows, shuffled=True), note
        return RowGuess(np.arange(0), np.zeros((0, width)), shuffled=True), {"opened": "nothing", "confirmed": False}

    def _open(self, view: View, whose: list[str], cluster: tuple[str, ...]) -> list[tuple[Round, Array]] | None:
        """What these clients sent in the first epoch, added up and without masks; none if masks are left."""
        forward = self.channel == "forward"
        group = [name for part in clusters(view) for name in part] if forward else list(cluster)
        sent = messages_by_round(view, "masked_output" if forward else "masked_gradient")
        points, opened = fixed_point(view, len(group)), []
        rounds = server_rounds(view)
        for found in rounds:
            if found.epoch != rounds[0].epoch or not set(whose) <= set(sent.get(found.number, {})):
                continue
            purpose: Purpose = "forward" if forward else "gradient"
            values = points.decode(without_known_masks(view, sent[found.number], whose, group, found.number, purpose))
            if not plausible(points, values):
                return None
            opened.append((found, values))
        return opened or None


def _held_by_fellows(view: View, found: Round, cluster: tuple[str, ...]) -> Array:
    """Which rows of the batch a corrupted client of the cluster holds."""
    held = np.zeros(len(found.places), dtype=bool)
    for name in cluster:
        if name in view.states:
            held |= view.states[name].secrets["schedule"][found.places] >= 0
    return held


def _zeros_confirmed(view: View, found: Round, values: Array, cluster: tuple[str, ...]) -> bool:
    """Whether exactly the rows that corrupted fellows hold are zero."""
    return values.shape[0] == len(found.places) and np.array_equal(
        ~values.any(axis=1), _held_by_fellows(view, found, cluster)
    )


@dataclass(frozen=True, eq=False)
class Found:
    """Rows of one round, and which of them the equations confirm."""

    places: Array
    rows: Array
    explained: Array


def _from_products(view: View, party: str, opened: list[tuple[Round, Array]]) -> list[Found]:
    """Rows x from products W x (plus the active party's bias), round by round.

    A client alone in its cluster updates W in private; the server, who knows the first W and now the rows, replays it.
    """
    replica = Replica(People(view), party) if len(cluster_of(view, party)) == 1 else None
    scale, groups, solved = 1.0 if view.spec.standardised else 100.0, one_hot_groups(view, party), []
    for found, values in opened:
        known = weight_of(view, found, party)
        if known is None:
            assert replica is not None
            bias = replica.bias
            known = _float64(replica.weight), np.zeros(1) if bias is None else _float64(bias)
        held = values.any(axis=1)
        targets = values[held] - known[1]
        made = solve_rows(known[0], targets, groups, rounding(fixed_point(view, 1), targets), scale)
        solved.append(Found(found.places[held], made.values, made.explained))
        if replica is not None and held.all():
            replica.step(found, made.values)
    return solved


def _float64(parameter: Any) -> Array:
    return np.asarray(parameter.detach().numpy(), dtype=np.float64)


def _from_gradients(view: View, party: str, cluster: tuple[str, ...], opened: list[tuple[Round, Array]]) -> list[Found]:
    """Rows of a batch from G = grad_Z' X, column by column; exact if they are no more than the rank of grad_Z.

    Otherwise rows are the smallest deviations from the column means that explain G. The means are the generalised
    least-squares estimate from all rounds.
    """
    width, scale = len(view.spec.columns[party]), 1.0 if view.spec.standardised else 100.0
    systems, above, below = [], np.zeros(width), 0.0
    for found, values in opened:
        assert found.gradient is not None
        mine = ~_held_by_fellows(view, found, cluster)
        given, summed = found.gradient[mine].T, values.reshape(-1, width)
        noise = rounding(fixed_point(view, 1), summed)
        inverse = np.linalg.pinv(given, rcond=10 * noise / float(np.linalg.norm(given, 2)))
        shared = given.sum(axis=1)
        weight = inverse.T @ (inverse @ shared)
        above, below = above + weight @ summed, below + float(weight @ shared)
        systems.append((found.places[mine], given, summed, shared, noise))
    mean, solved = above / below, []
    for places, given, summed, shared, noise in systems:
        made = solve_rows(given, (summed - np.outer(shared, mean)).T, [], noise, scale)
        explained = np.full(len(places), bool(made.explained.all()))
        solved.append(Found(places, made.values.T + mean, explained))
    return solved
