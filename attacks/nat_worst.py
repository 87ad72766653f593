"""People for whom one person turns everybody else's clipped gradient around.

Differential privacy speaks of every table. In this one, all honest people switch on the same single hidden unit and
have long feature vectors, so that a clipped gradient is a fixed direction times the sign of (output - target) along
that unit's outgoing weights. Outputs lie on a line, so the cheapest permutation deals targets in the order of outputs.
Honest outputs lie a little below their targets: all signs are negative. One more person, whose output is the highest
and whose target is the lowest, moves everybody to the next lower target: all signs turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError
from vflaudit.protocols.fedonce.descent import Training
from vflaudit.protocols.fedonce.gradients import Network, network_of, vector_of
from vflaudit.protocols.fedonce.nat import Assignment, GuestTask, unit_targets
from vflaudit.protocols.fedonce.networks import fully_connected
from vflaudit.protocols.networks import seeded

LENGTH = 1e8  # of feature vectors: the paper bounds gradients by clipping, not features
STARTS = 50
GAP = 1e-5  # how far honest outputs stay below their targets: far enough to be clipped, nearer than the next target


@dataclass(frozen=True, eq=False)
class Line:
    """Feature vectors that switch on one hidden unit, and the line of outputs that they reach."""

    network: Network
    parameters: Array
    along: Array  # a long vector that leaves the unit at its bias and switches all others off
    step: Array  # raises the unit's input by one
    bias: float  # the unit's own
    floor: float  # the lowest output along the line
    slope: float  # how much output one unit of activation gives
    direction: Array  # of the line, in output space

    def people(self, heights: Array) -> Array:
        """Features whose outputs have these heights along the line; below the floor all units are off."""
        activation = (heights - self.floor) / self.slope
        activation = np.where(activation > 0, activation, -1.0)
        return self.along + (activation - self.bias)[:, None] * self.step


def line(seed: int, width: int = 17, hidden: int = 30, dimension: int = 3) -> Line:
    """For a guest FC(hidden) as the protocol initialises it (Table 3: phishing has 17 columns and FC(30)).

    Most random starts have a hidden unit that can be on alone. The start is public here, and Theorem 4 is about every
    start, so the first one from the seed that has such a unit is taken.
    """
    for attempt in range(STARTS):
        module = seeded(lambda: fully_connected(width, (hidden,), dimension), child_seed(seed, attempt), "guest1")
        found = _alone(module)
        if found is not None:
            return found
    raise InputError(f"no hidden unit of {hidden} can be on alone with {width} columns: use more columns")


def _alone(module: nn.Module) -> Line | None:
    """The unit that all others can be switched off around by the widest margin: one linear programme per unit."""
    from scipy.optimize import linprog

    network, theta = network_of(module), vector_of(module)
    first, biases, second, offset = (part.detach().numpy().astype(np.float64) for part in module.parameters())
    hidden, width = first.shape
    best, unit, along = 1e-4, -1, np.zeros(width)
    for place in range(hidden):
        rest = np.delete(first, place, axis=0)
        found = linprog(
            np.append(np.zeros(width), -1.0),
            A_ub=np.hstack([rest, np.ones((len(rest), 1))]),
            b_ub=np.zeros(len(rest)),
            A_eq=np.append(first[place], 0.0)[None],
            b_eq=[0.0],
            bounds=[(-1, 1)] * width + [(0, None)],
        )
        if found.status == 0 and found.x[-1] > best:
            best, unit, along = float(found.x[-1]), place, found.x[:-1]
    if unit < 0:
        return None
    outgoing, step = second[:, unit], first[unit] / (first[unit] @ first[unit])
    slope = float(np.linalg.norm(outgoing))
    along = LENGTH * along / np.linalg.norm(along)
    along -= (first[unit] @ along) * step  # what rounding in the search left over
    floor = float(offset @ outgoing) / slope
    return Line(network, theta, along, step, float(biases[unit]), floor, slope, outgoing / slope)


def turning(
    where: Line, targets: Array, training: Training, seed: int, assignment: Assignment = "hungarian"
) -> tuple[GuestTask, int]:
    """Known targets: honest outputs a little below their own targets. Returns the task and the canary's row.

    People whose target lies below the floor have all units off and release nothing along the line.
    """
    heights = targets @ where.direction
    canary = int(np.argmin(heights))
    outputs = np.where(heights > where.floor + 1e-3, heights - GAP, where.floor - 1.0)
    outputs[canary] = 2.0
    features = where.people(outputs)
    return GuestTask(where.network, where.parameters, features, targets, training, seed, assignment), canary


def high_targets(where: Line, count: int, dimension: int, rng: np.random.Generator) -> Array:
    """Targets on the sphere at even heights, all above the floor: the worst case over targets too."""
    heights = np.linspace(max(where.floor, 0.0) + 0.05, 0.99, count)
    around = rng.standard_normal((count, dimension))
    around -= np.outer(around @ where.direction, where.direction)
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return heights[:, None] * where.direction + np.sqrt(1 - heights**2)[:, None] * around


def poised(where: Line, people: int, turning_people: int, training: Training, dimension: int = 3) -> GuestTask:
    """Secret targets: outputs near where the targets of their rank are expected. The last row is the canary.

    The heights of points on a sphere in three dimensions are uniform, so the j-th highest of `people` targets is
    expected at 1 - 2 j / (people + 1). The others have all units off. Fill in targets with `fresh`.
    """
    ranks = np.arange(1, turning_people + 1)
    heights = np.full(people + 1, where.floor - 1.0)
    heights[:turning_people] = 1 - 2 * (ranks + 0.5) / (people + 2)
    heights[-1] = 2.0
    none = np.zeros((people + 1, dimension))
    return GuestTask(where.network, where.parameters, where.people(heights), none, training, 0)


def fresh(task: GuestTask, rng: np.random.Generator) -> GuestTask:
    """The same task with targets drawn anew."""
    return replace(task, targets=unit_targets(len(task.features), task.targets.shape[1], rng))
