"""Why vFedSec's masks are fresh in every round and uniform in Z_R: attacks on two ways to get that wrong.

Both need nothing but the server. They open single clients' messages, which correct masks never allow; on correct masks
they notice that they fail and guess nothing (`StreamReuse`) or have nothing to read (`FloatMasks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.masks import LINEAR, cluster_of, messages_by_round, one_hot_groups, plausible, rounding, weight_of
from attacks.one_hot import solve_rows
from attacks.secure_rounds import AT_SERVER, Round, fixed_point, server_rounds
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.transcript import Message
from vflaudit.core.view import View
from vflaudit.protocols.vfedsec.clusters import ACTIVE

NOISY = Requirement(
    "vFedSec's server and real numbers under masks (protocol vfedsec with defect=float-masks, --corrupts server)",
    lambda view: next(view.transcript.select(receiver="server", kind="noisy_output"), None) is not None,
)


def prior_scale(view: View) -> float:
    """How large numbers may be before anything is known of them."""
    return 1.0 if view.spec.standardised else 100.0


@dataclass(frozen=True, eq=False)
class Changes:
    """One client's messages under one generation of keys, less the first of them: W_t x_t - W_0 x_0."""

    places: Array  # (rounds, positions)
    weights: Sequence[Array]
    people: Sequence[int]  # rounds with the same number have the same rows
    changes: Array  # (later rounds, positions, hidden)


class StreamReuse(FeatureAttack):
    """Cancel a repeated PRG stream: the difference of two rounds has no mask, for every client by itself.

    Within a generation of keys a client's messages differ by W_t x_t - W_s x_s at each position of the batch. A passive
    party sends zeros for rows that it does not hold: there its message is the mask itself. So each message of a
    position is tried as its mask, and it is the mask if it makes all others products of W_t with rows. Where no message
    is, the rows of all rounds are solved together, as deviations from the mean of those found so far; what they have in
    common then shows only as far as training moved W.
    """

    name: ClassVar[str] = "stream-reuse"
    requires: ClassVar[tuple[Requirement, ...]] = (AT_SERVER, LINEAR)
    rounds: int = Field(40, ge=2, description="rounds under one generation of keys that are solved together")
    candidates: int = Field(8, ge=0, description="messages of a position that are tried as its mask")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        rounds, sent = server_rounds(view), messages_by_round(view, "masked_output")
        features, notes = {}, {}
        for party in self.victims(view):
            generations: dict[int, list[Round]] = {}
            for found in rounds:
                if weight_of(view, found, party) is not None:
                    generations.setdefault(found.number // int(view.spec.parameters["rekey_every"]), []).append(found)
            open_: list[Changes] = []
            exact: list[tuple[Array, Array]] = []
            for together in generations.values():
                for start in range(0, len(together), self.rounds):
                    some = together[start : start + self.rounds]
                    self._generation(view, party, some, [sent[found.number][party] for found in some], open_, exact)
            made = [*self._open(view, party, open_, exact), *exact]  # the later one counts where a row is guessed twice
            none = np.zeros((0, len(view.spec.columns[party])))
            places = np.concatenate([np.arange(0), *[part[0] for part in made]])
            features[party] = RowGuess(places, np.concatenate([none, *[part[1] for part in made]]), shuffled=True)
            counts = {"places_exact": sum(len(part[0]) for part in exact), "places": len(places)}
            notes[party] = {"streams_repeat": bool(made), **counts}
        return {
            "features": features,
            "verified": all(note["streams_repeat"] for note in notes.values()),
            "notes": notes,
        }

    def _generation(
        self,
        view: View,
        party: str,
        rounds: Sequence[Round],
        sent: Sequence[Array],
        open_: list[Changes],
        exact: list[tuple[Array, Array]],
    ) -> None:
        """Solve one client's messages under one generation of keys; the last batch of an epoch has fewer positions."""
        start = 0
        for end in sorted({len(values) for values in sent}):
            kept = [place for place, values in enumerate(sent) if len(values) >= end]
            if len(kept) > 1:
                stack = np.stack([sent[place][start:end] for place in kept])  # (rounds, positions, hidden)
                places = np.stack([rounds[place].places[start:end] for place in kept])
                self._positions(view, party, [rounds[place] for place in kept], stack, places, open_, exact)
            start = end

    def _positions(
        self,
        view: View,
        party: str,
        rounds: Sequence[Round],
        stack: Array,
        places: Array,
        open_: list[Changes],
        exact: list[tuple[Array, Array]],
    ) -> None:
        points = fixed_point(view, 1)
        if not plausible(points, points.decode(stack[1:] - stack[0])):
            return
        slices = [known for found in rounds if (known := weight_of(view, found, party)) is not None]
        left = np.arange(stack.shape[1])
        for candidate in range(min(len(stack), self.candidates)):
            if not len(left):
                break
            values, good, empty = self._against(view, party, slices, stack[:, left], stack[candidate, left])
            sure = good.all(axis=0) & (len(stack) > 2)  # of two messages alone, rows and their difference look alike
            for number in range(len(stack)):
                here = sure & ~empty[number]
                exact.append((places[number, left[here]], values[number, here]))
            left = left[~sure]
        if len(left):
            biases = np.stack([bias for _, bias in slices])[:, None]
            changes = points.decode(stack[1:, left] - stack[0, left]) - (biases[1:] - biases[0])
            weights = [weight for weight, _ in slices]
            open_.append(Changes(places[:, left], weights, _people(view, rounds), changes))

    def _open(
        self, view: View, party: str, open_: list[Changes], exact: list[tuple[Array, Array]]
    ) -> list[tuple[Array, Array]]:
        """The most likely rows where no mask is known."""
        width, points = len(view.spec.columns[party]), fixed_point(view, 1)
        known = np.concatenate([np.zeros((0, width)), *[rows for _, rows in exact]])
        mean, spread = np.zeros(width), np.full(width, prior_scale(view))
        if len(known) > width:
            mean, spread = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-3)
        made = []
        for part in open_:
            rows = joint_rows(part, mean, spread, rounding(points, part.changes))
            made += [(part.places[number], rows[person]) for number, person in enumerate(part.people)]
        return made

    def _against(
        self, view: View, party: str, slices: Sequence[tuple[Array, Array]], stack: Array, mask: Array
    ) -> tuple[Array, Array, Array]:
        """Suppose that this is the mask: every round's rows, whether they explain the message, and which are empty."""
        points, groups = fixed_point(view, 1), one_hot_groups(view, party)
        values = np.zeros((*stack.shape[:2], len(view.spec.columns[party])))
        empty = (stack == mask).all(axis=2)
        good = empty.copy()
        for number, (weight, bias) in enumerate(slices):
            here = ~empty[number]
            if here.any():
                targets = points.decode(stack[number, here] - mask[here]) - bias
                made = solve_rows(weight, targets, groups, rounding(points, targets), prior_scale(view))
                values[number, here], good[number, here] = made.values, made.explained
        return values, good, empty


def _people(view: View, rounds: Sequence[Round]) -> list[int]:
    """Which of these rounds have the same rows: those of the same batch, if batches are fixed."""
    if view.spec.parameters["batches"] != "fixed":
        return list(range(len(rounds)))
    names = [found.number % batches_per_epoch(view) for found in rounds]
    return [sorted(set(names)).index(name) for name in names]


def batches_per_epoch(view: View) -> int:
    """How many training batches an epoch has."""
    epochs = [found.epoch for found in training_messages(view)]
    return sum(epoch == epochs[0] for epoch in epochs)


def training_messages(view: View) -> list[Message]:
    """One message of every training round, in order."""
    for kind in ("masked_output", "noisy_output"):
        found = [
            message for message in view.transcript.select(receiver="server", kind=kind) if message.epoch is not None
        ]
        if found:
            return [message for message in found if message.sender == found[0].sender]
    return []


def joint_rows(part: Changes, mean: Array, spread: Array, noise: float) -> Array:
    """The most likely rows, (people, positions, columns), for columns with these means and deviations."""
    hidden, width = part.weights[0].shape
    count = max(part.people) + 1
    design = np.zeros((len(part.weights) - 1, hidden, count, width))
    targets = part.changes.copy()
    for number, weight in enumerate(part.weights[1:]):
        design[number, :, part.people[number + 1]] += weight * spread
        design[number, :, part.people[0]] -= part.weights[0] * spread
        targets[number] -= (weight - part.weights[0]) @ mean
    flat = np.moveaxis(targets, 1, 0).reshape(targets.shape[1], -1)
    rows = solve_rows(design.reshape(-1, count * width), flat, [], noise).values
    return np.moveaxis(rows.reshape(-1, count, width), 1, 0) * spread + mean


class FloatMasks(FeatureAttack):
    """Average Gaussian masks away: they have a size, and a client's rows come back in every epoch.

    The most likely row under a normal prior, from all of a client's noisy products of that row. The server follows rows
    over epochs only where batches are fixed; otherwise every place stands for itself.
    """

    name: ClassVar[str] = "float-masks"
    requires: ClassVar[tuple[Requirement, ...]] = (NOISY, LINEAR)
    passes: int | None = Field(None, ge=1, description="look at so many epochs only; none: at all")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        clients = len(view.spec.columns)
        deviation = float(view.spec.parameters["mask_deviation"]) * math.sqrt(clients - 1)
        sent = messages_by_round(view, "noisy_output")
        rounds = [int(message.arrays["round"]) for message in training_messages(view)]
        per_epoch, size = batches_per_epoch(view), int(view.spec.parameters["batch_size"])
        rounds = rounds[: None if self.passes is None else self.passes * per_epoch]
        fixed = view.spec.parameters["batches"] == "fixed"
        features = {}
        for party in self.victims(view):
            weights = _sent_weights(view, party)
            width = len(view.spec.columns[party])
            parts = []
            for first in rounds[: per_epoch if fixed else None]:
                again = [number for number in (rounds[first::per_epoch] if fixed else [first]) if number in weights]
                if again:
                    design = np.vstack([weights[number] for number in again])
                    targets = np.hstack([sent[number][party] for number in again])
                    values = solve_rows(design, targets, [], deviation, prior_scale(view)).values
                    parts.append((first * size + np.arange(len(targets)), values))
            places = np.concatenate([np.arange(0), *[part[0] for part in parts]])
            values = np.concatenate([np.zeros((0, width)), *[part[1] for part in parts]])
            features[party] = RowGuess(places, values, shuffled=True)
        return {"features": features, "notes": {"deviation": deviation, "epochs": len(rounds) // per_epoch}}


def _sent_weights(view: View, party: str) -> dict[int, Array]:
    """W of the party's cluster in every round in which the server sent it; the bias is left out."""
    first, width = cluster_of(view, party)[0], len(view.spec.columns[party])
    found = {}
    for message in view.transcript.select(sender="server", receiver=first, kind="weights"):
        values = message.arrays["values"].astype(np.float64)
        hidden = len(values) // (width + int(first == ACTIVE))
        found[int(message.arrays["round"])] = values[: hidden * width].reshape(hidden, width)
    return found
