"""GradientAlgebra: the sum of a cluster's gradients that vFedSec's server gets is linear in the cluster's rows.

The server computes the gradient D at Z and receives G = D' X of every cluster of two or more clients (4.2): `hidden`
equations for each column, about the batch's rows. They determine X if the batch is no larger than the rank of D, and
over several epochs otherwise, as every epoch adds equations about the same people. The forward equations Z = X W' are
about the same X, and both are solved as one.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import FeatureAttack, Requirement
from attacks.joint_rows import SURE, Equations, Joint
from attacks.one_hot import DEVIATIONS
from attacks.secure_forward import forward, once
from attacks.secure_mlp import solve_mlp
from attacks.secure_people import (
    SINGLE,
    SLACK,
    People,
    Seen,
    believable,
    cluster_guesses,
    confirmed,
    doubled,
    refine,
    residuals,
)
from attacks.secure_rounds import AT_SERVER, SOLVABLE, clusters
from vflaudit.core.dataset import Array
from vflaudit.core.view import View
from vflaudit.errors import InputError

SENT = Requirement(
    "a cluster's gradients: clusters of two or more clients, as a client alone updates locally and sends none "
    "(vFedSec 4.2; clients_per_cluster=2, or lone_weights=server with optimiser=sgd)",
    lambda view: _sends(view),
)


def _sends(view: View) -> bool:
    """Whether the server learns the gradient of some honest client's slice."""
    parameters = view.spec.parameters
    told = parameters["lone_weights"] == "server" and parameters["optimiser"] == "sgd"
    return any((len(cluster) > 1 or told) and set(cluster) & set(view.victims) for cluster in clusters(view))


class GradientAlgebra(FeatureAttack):
    """Solve the sum of a cluster's gradients for its rows, over as many epochs as the batch size takes."""

    name: ClassVar[str] = "gradient-algebra"
    requires: ClassVar[tuple[Requirement, ...]] = (AT_SERVER, SOLVABLE, SENT)
    forward: bool = Field(True, description="use the Secure Layer's output too; without, it only links rows by it")
    sweeps: int = Field(8, ge=1, description="times that rows and replayed private weights are refined in turn")
    priors: int = Field(5, ge=0, description="times that the columns' covariance is estimated from the rows found")
    steps: int = Field(100, ge=1, description="steps of conjugate gradients for batches that are reshuffled")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        people = People(view)
        sums = people.rounds[0].sums if people.parameters["model"] == "mlp" else gradients(people)[0]
        victims = tuple(party for party in self.victims(view) if self.forward or people.first(party) in sums)
        if not victims:
            raise InputError(f"attack {self.name!r}: {self.party!r} sends no gradient, and forward=false")
        if people.parameters["model"] == "mlp":
            table, good, notes = solve_mlp(
                people, forward=self.forward, gradient=True, priors=self.priors, steps=self.steps
            )
            features = cluster_guesses(people, snapped(people, believable(people, table)), victims)
            return {"features": features, "verified": confirmed(people, good, own=False), "notes": notes}
        exact = np.zeros(len(people.places), dtype=bool)

        def solve(weights: Array, target: Array, rows: Array) -> Array:
            values, exact[rows] = forward(people, weights, target, rows)
            return values

        table, seen = people.solve_first(solve)
        done, good = exact.copy(), exact

        def improve(seen: list[Seen], table: Array, noise: float) -> tuple[Array, Array]:
            system = System(people, seen, table, done, forward=True)
            better, sure = system.solve(noise, self.steps, self.priors)
            return better, np.asarray(sure.all(axis=1))

        def first(seen: list[Seen], table: Array, noise: float) -> tuple[Array, Array]:
            return once(people, seen, table)

        if not exact.all():
            table, found, seen = refine(people, table, first, improve, self.sweeps)
            good = found | done
        if self.forward:
            system = System(people, seen, table, done, forward=True)
        else:
            system, table, good = self.left(people, table, sure=bool(exact.all()))
        if self.forward and float(residuals(seen, table).max()) > DEVIATIONS * people.noise:
            good = exact
        good = good & (system.misfit(table) <= DEVIATIONS) & system.agrees(table)
        return {
            "features": cluster_guesses(people, snapped(people, believable(people, table)), victims),
            "verified": confirmed(people, good, own=self.forward),
            "notes": {
                "batch": int(people.parameters["batch_size"]),
                "open_rows": len(system.rows),
                **system.joint(people.noise).notes(),
                "explained_by_one_epoch": float(exact.mean()),
                "explained": float(good.mean()),
            },
        }

    def left(self, people: People, linked: Array, *, sure: bool) -> tuple[System, Array, Array]:
        """Gradients alone: the equations, the table, and which rows they determine.

        Z links the rows of `linked`, unless `sure` with errors. So as many epochs count, and gradients count as much,
        as predicts the first epoch's Z best, which is not among the equations.
        """
        found: list[tuple[float, System, Array, Array]] = []
        for epochs in doubled(people.epochs):
            seen = people.follow(linked, epochs)
            system = System(people, seen, linked, np.zeros(len(linked), dtype=bool), forward=False)
            for slack in (1.0,) if sure else SLACK:
                table, known = system.solve(people.noise, self.steps, self.priors, slack)
                table = np.where(system.reached, table, linked)
                error = float(np.sqrt(np.mean(residuals(seen[: people.opening], table) ** 2)))
                found.append((error, system, table, np.asarray(known[:, system.reached].all(axis=1))))
        return min(found, key=lambda one: one[0])[1:]


def snapped(people: People, table: Array) -> Array:
    """Known cells put in, and one-hot groups rounded where one category leads by more than half."""
    table = np.where(people.known, people.values, table)
    for group in people.groups:
        ranked = np.sort(table[:, group], axis=1)
        clear = np.flatnonzero(ranked[:, -1] - ranked[:, -2] > 0.5) if len(group) > 1 else np.arange(0)
        best = group[table[np.ix_(clear, group)].argmax(axis=1)]
        table[np.ix_(clear, group)] = 0.0
        table[clear, best] = 1.0
    return table


def gradients(people: People) -> list[dict[str, Array]]:
    """For every round, the gradient of each slice's weight that the server learns, (hidden, columns)."""
    found: list[dict[str, Array]] = []
    rate, plain = people.parameters["learning_rate"], people.parameters["optimiser"] == "sgd"
    for number, one in enumerate(people.rounds):
        sums = {first: values.reshape(one.joined.shape[1], -1) for first, values in one.sums.items()}
        later = people.rounds[number + 1].weights if number + 1 < len(people.rounds) else {}
        for first in people.lone & set(later) if plain else ():
            columns = people.columns[first]
            size = one.joined.shape[1] * (columns.stop - columns.start)
            moved = (one.weights[first] - later[first])[:size] / rate  # SGD: the step is the gradient
            sums[first] = moved.reshape(one.joined.shape[1], -1)
        found.append(sums)
    return found


class System:
    """All equations of a run about the cells that are open: rows that are not done, columns not known of everybody.

    What a corrupted client knows of some rows of its cluster is left open, which keeps the structure that makes the
    equations fall apart, and serves as a check of the solution.
    """

    def __init__(self, people: People, seen: list[Seen], table: Array, done: Array, forward: bool) -> None:
        self.people, self.seen, self.table, self.done, self.forward = people, seen, table, done, forward
        self.sums = gradients(people)
        self.reached = np.zeros(people.width, dtype=bool)
        for first in self.sums[0]:
            self.reached[people.columns[first]] = True
        self.rows, self.columns = np.flatnonzero(~done), np.flatnonzero(~people.known.all(axis=0))
        sizes = [float(np.abs(value).max()) for value in self.sums[0].values()]
        step = 2.0 ** -people.parameters["fraction_bits"]
        # where every client's copy of the slope has its own noise, only their mean is used: who holds a row is unknown
        blurred = people.noisy_gradient * people.scale * math.sqrt(people.parameters["batch_size"])
        rounding = step * math.sqrt(people.parameters["clients_per_cluster"] / 12)
        self.noise = math.hypot(rounding, SINGLE * max(sizes), blurred)
        if people.lone & set(self.sums[0]):
            self.noise = max(self.noise, 2.0**-25 / people.parameters["learning_rate"])  # single precision weights
        place = np.full(len(people.places), -1)
        place[self.rows] = np.arange(len(self.rows))
        rounds = [self._equations(number, one, place) for number, one in enumerate(seen)]
        fixed = people.parameters["batches"] == "fixed" or len(seen) == people.opening
        self.sets = [one.rows for one in rounds[: people.opening]] if fixed else [np.arange(len(self.rows))]
        self.rounds = rounds

    def whole(self, number: int) -> Array | None:
        """The gradient over all columns side by side; none where some slice's is missing."""
        found = self.sums[number]
        if set(found) != set(self.sums[0]):
            return None  # a lone client's last step is never told
        whole = np.zeros((self.people.rounds[0].joined.shape[1], self.people.width))
        for first, value in found.items():
            whole[:, self.people.columns[first]] = value
        return whole

    def _equations(self, number: int, one: Seen, place: Array) -> Equations:
        here = place[one.people]
        mine = here >= 0
        known = self.people.values[one.people].copy()
        known[:, self.columns] = 0.0
        known[~mine] = self.table[one.people[~mine]]
        slope, whole = one.round.gradient, self.whole(number)
        assert slope is not None
        target = (one.target - known @ one.weights.T)[mine]
        gradient = None if whole is None else ((whole - slope.T @ known) * self.reached)[:, self.columns]
        return Equations(here[mine], one.weights[:, self.columns], target, slope[mine], gradient)

    def agrees(self, table: Array) -> Array:
        """Rows whose solution is near what corrupted clients know of them; in doubt they all are."""
        gap = np.where(self.people.known, np.abs(table - self.people.values), 0.0)
        return np.asarray((gap <= 5 * SURE * self.people.scale).all(axis=1))

    def misfit(self, table: Array) -> float:
        """The largest root mean square residual of a round's gradients, in units of the noise."""
        worst = 0.0
        for number, one in enumerate(self.seen):
            whole, slope = self.whole(number), one.round.gradient
            if whole is not None and slope is not None:
                gap = (whole - slope.T @ table[one.people])[:, self.reached]
                worst = max(worst, float(np.sqrt(np.mean(gap**2))) / self.noise)
        return worst

    def joint(self, noise: float, slack: float = 1.0) -> Joint:
        """The equations as one system: `noise` of Z and replayed weights, `slack` a factor on that of the gradients."""
        rights = noise if self.forward else None
        return Joint(self.rounds, self.sets, self.reached[self.columns], slack * self.noise, rights)

    def solve(self, noise: float, steps: int, priors: int, slack: float = 1.0) -> tuple[Array, Array]:
        """The most likely table, and which cells are determined."""
        mean, precision = (value[self.columns] for value in self.people.prior())
        here = np.ix_(self.rows, self.columns)
        start = self.table[here] if self.forward else None  # gradients alone must not begin at what Z told
        cells, known = self.joint(noise, slack).solve(
            mean, precision[:, self.columns], self.people.scale, priors, steps, start
        )
        table, sure = self.table.copy(), np.ones_like(self.people.known)
        table[here], sure[here] = cells, known
        return table, sure
