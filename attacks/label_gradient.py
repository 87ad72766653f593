"""Labels from the gradient that split learning sends back: rows of one class are pushed the same way.

The gradient of cross-entropy at the outputs is p - e_y, and what a guest gets is that times the top's Jacobian. So rows
of two classes get gradients of opposite directions: p - y is negative for one class and positive for the other,
whatever the model has learnt. Under a top of ReLU and one linear layer w (vFedSec A.1), entry j of row i is
(p_i - y_i) w_j, or 0 where unit j is off. Turning the signs of rows and columns makes that matrix non-negative, so by
Perron and Frobenius the signs of its leading left singular vector are the two classes, exactly. C classes make C
bundles in C - 1 dimensions. (Li et al., 'Label leakage and protection in two-party split learning', ICLR 2022, study
norms and directions for two classes.)

Nothing in the gradients says which bundle is which class: exchanging the classes and turning the sign of w gives the
same messages. Names come from what is known beforehand, or from an assumption that can be wrong.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from attacks.label_codes import NAMED, best_names, naming_likelihood
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import child_seed
from vflaudit.core.transcript import Message
from vflaudit.core.view import SentTable, View

KINDS = ("gradient", "output_gradient")  # at the activations (SplitNN) or at Z (vFedSec), and at the outputs


def gradient_messages(view: View, batches: int | None = None) -> list[Message]:
    """Gradients of the first recorded epoch that came to one corrupted party, batch by batch."""
    for kind in KINDS:
        for party in sorted(view.adversary.corrupts):
            found = list(view.transcript.select(receiver=party, kind=kind))
            if found:
                return [message for message in found if message.epoch == found[0].epoch][:batches]
    return []


def _can_name(view: View) -> bool:
    known = view.knowledge
    told = known.distribution is not None and known.distribution.labels is not None
    return len(view.spec.classes) == 2 or known.class_priors is not None or known.labelled is not None or told


class LabelFromGradient(Attack):
    """Tell classes apart by the direction of the gradients that a guest gets back; no label is needed for that.

    Only gradients of the first recorded epoch are used: there the model knows least, and bundles are tightest. Bundles
    are named by class shares, by known labels, or (two classes only) by the assumption that the second class is the
    rarer one, as the positive class mostly is. A wrong assumption gives an AUC near 0. With `first_batches`, rows of
    other batches get no guess.
    """

    name: ClassVar[str] = "label-from-gradient"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("classes to tell apart", lambda view: view.spec.task == "classification"),
        Requirement(
            "gradients per row that came back to a corrupted party (such as --corrupts passive1 or client1)",
            lambda view: bool(gradient_messages(view, 1)),
        ),
        Requirement("something to name more than two classes by (--knows class-priors or labels=N)", _can_name),
    )
    first_batches: int | None = Field(
        None, ge=1, description="look at so many batches only; none: the whole first epoch"
    )

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        messages = gradient_messages(view, self.first_batches)
        gradients = np.concatenate([message.arrays["values"] for message in messages]).astype(np.float64)
        rows, handles = _rows(view, messages)
        classes = len(view.spec.classes)
        notes: dict[str, Any] = {"batches": len(messages), "rows": len(rows)}
        verified: bool | None = True
        if at_outputs(gradients, classes):
            values = -np.sign(gradients)
            notes["named_by"] = ["the outputs themselves"]
        else:
            member, chances = bundles(gradients, classes, child_seed(seed, self.name))
            named, gap, sources = name_bundles(view, member, handles, seed)
            values = (chances - 1 / classes)[:, np.argsort(named)]
            verified = bool(gap > NAMED) if sources else None
            notes |= {"named_by": sources or ["assumed: the second class is the rarer one"], "naming_margin": gap}
        return {
            "labels": RowGuess(rows, values, shuffled=messages[0].rows is None),
            "verified": verified,
            "notes": notes,
        }


def _rows(view: View, messages: list[Message]) -> tuple[Array, Array]:
    """What the rows of the messages are called, and their handles where the adversary knows them (-1: it does not).

    Where vFedSec seals ids, a row is called by its place, and a client knows the handles of its own rows.
    """
    if messages[0].rows is not None:
        rows = np.concatenate([message.rows for message in messages if message.rows is not None])
        return rows, rows
    size = int(view.spec.parameters["batch_size"])
    starts = [(int(message.arrays["round"]) * size, len(message.arrays["values"])) for message in messages]
    rows = np.concatenate([np.arange(start, start + count) for start, count in starts])
    own = [state.secrets["schedule"][rows] for state in view.states.values() if "schedule" in state.secrets]
    return rows, np.max(own, axis=0) if own else np.full(len(rows), -1)


def at_outputs(gradients: Array, classes: int) -> bool:
    """Whether these are p - e_y themselves: one negative entry in each row, and a sum of zero, up to rounding."""
    if gradients.shape[1] != classes:
        return False
    rounding = 1e-6 * np.abs(gradients).max()
    one = (gradients < -rounding).sum(axis=1) <= 1
    return bool((one & (np.abs(gradients.sum(axis=1)) <= rounding)).all())


def bundles(gradients: Array, classes: int, seed: int) -> tuple[Array, Array]:
    """Group rows by the direction of their gradients: each row's group, and the chances of all groups.

    Directions are seen in their C - 1 leading dimensions, not centred. Two groups are the two signs; more are found by
    k-means. The chances are those of balls of equal size around the groups' means.
    """
    sizes = np.linalg.norm(gradients, axis=1, keepdims=True)
    left, scale, _ = np.linalg.svd(gradients / np.where(sizes > 0, sizes, 1.0), full_matrices=False)
    points = (left * scale)[:, : classes - 1]
    if points.shape[1] == 1:
        reach = np.abs(points).mean()
        centres = np.array([[-reach], [reach]])
    else:
        from sklearn.cluster import KMeans

        centres = KMeans(classes, n_init=10, random_state=seed % 2**31).fit(points).cluster_centers_
    squares = ((points[:, None] - centres) ** 2).sum(axis=2)
    member = squares.argmin(axis=1)
    spread = max(float(squares.min(axis=1).mean()) / points.shape[1], 1e-12)
    chances = np.exp(-(squares - squares.min(axis=1, keepdims=True)) / (2 * spread))
    return member, chances / chances.sum(axis=1, keepdims=True)


def name_bundles(view: View, member: Array, handles: Array, seed: int) -> tuple[Array, float, list[str]]:
    """The class of every group, by how much it is likelier than another naming, and what told it (empty: nothing)."""
    classes = len(view.spec.classes)
    likelihood, sources = naming_likelihood(view, SentTable(handles, member, shuffled=True), member, {}, seed)
    if view.knowledge.labelled is not None:
        known, labels = view.knowledge.labelled
        class_of = np.full(view.spec.rows + 1, -1)  # the last entry is for rows without a handle
        class_of[known] = labels
        told = class_of[handles]
        seen = np.zeros((classes, classes))
        np.add.at(seen, (member[told >= 0], told[told >= 0]), 1)
        if seen.any():
            likelihood = likelihood + seen * 10 * np.log(len(member))  # as in `naming_likelihood`
            sources = [*sources, "known labels"]
    if not sources:
        # two classes: the larger group is the first class, whatever the sizes say about how sure that is
        sizes = np.bincount(member, minlength=classes)
        return np.argsort(np.argsort(-sizes, kind="stable")), 0.0, []
    named, gap = best_names(likelihood)
    return named, gap, sources
