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

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from attacks.base import Attack, Requirement
from attacks.label_codes import NAMED, best_names, naming_likelihood
from vflaudit.core.dataset import Array
from vflaudit.core.games import RowGuess
from vflaudit.core.randomness import child_seed
from vflaudit.core.transcript import Message
from vflaudit.core.view import SentTable, View
from vflaudit.errors import InputError

KINDS = ("output_gradient", "gradient")  # at the outputs, and at what guests sent (SplitNN, TabVFL) or at Z (vFedSec)


@dataclass(frozen=True, eq=False)
class Returned:
    """Gradients that came back to one party: a row of `values` is a mean over epochs of the gradient of its own loss.

    `rows` are what the rows are called: handles, or places (`shuffled`) where ids are sealed. `handles` are -1 where
    the adversary does not know them.
    """

    rows: Array
    handles: Array
    values: Array
    batches: int
    shuffled: bool


def gradient_messages(view: View) -> list[list[Message]]:
    """Gradients per row that came to each of the corrupted parties; all are of one kind."""
    for kind in KINDS:
        found = [list(view.transcript.select(receiver=party, kind=kind)) for party in sorted(view.adversary.corrupts)]
        if any(found):
            return [messages for messages in found if messages]
    return []


def returned_gradients(view: View, *, epochs: int = 1, batches: int | None = None) -> list[Returned]:
    """What each corrupted party got back about the rows of the first recorded epoch, or of its first batches.

    Later epochs add to the mean of a row that can be found again: by its handle, which a party of vFedSec has for its
    own rows only. Parties that got gradients about other rows than the first party are left out.
    """
    found = [_returned(view, messages, epochs, batches) for messages in gradient_messages(view)]
    return [table for table in found if np.array_equal(table.rows, found[0].rows)]


def _returned(view: View, messages: list[Message], epochs: int, batches: int | None) -> Returned:
    counted = sorted({message.epoch or 0 for message in messages})[:epochs]
    first = [message for message in messages if (message.epoch or 0) == counted[0]][:batches]
    later = [message for message in messages if (message.epoch or 0) in counted[1:]]
    rows, handles = _rows(view, first)
    values, counts, sealed = _values(first), np.ones(len(rows)), first[0].rows is None
    if later:
        again, more = _rows(view, later)[1], _values(later)
        if not sealed and batches is None:  # rows that the first epoch left out, as FedOnce does with half a batch
            new = np.setdiff1d(again, handles)
            rows, handles = np.append(rows, new), np.append(handles, new)
            values, counts = np.pad(values, ((0, len(new)), (0, 0))), np.pad(counts, (0, len(new)))
        place = np.full(view.spec.rows + 1, -1)  # the last entry is for rows without a handle
        place[handles] = np.arange(len(rows))
        place[-1] = -1
        at = place[again]
        np.add.at(values, at[at >= 0], more[at >= 0])
        np.add.at(counts, at[at >= 0], 1)
    return Returned(rows, handles, values / counts[:, None], len(first), shuffled=sealed)


def _values(messages: list[Message]) -> Array:
    """Gradients side by side with the mean over the batch undone, so that rows of the last, smaller batch compare."""
    arrays = [np.asarray(message.arrays["values"], dtype=np.float64) for message in messages]
    return np.concatenate([values.reshape(len(values), -1) * len(values) for values in arrays])


def _can_name(view: View) -> bool:
    known = view.knowledge
    told = known.distribution is not None and known.distribution.labels is not None
    return len(view.spec.classes) == 2 or known.class_priors is not None or known.labelled is not None or told


CLASSES = Requirement("classes to tell apart", lambda view: view.spec.task == "classification")
GRADIENTS = Requirement(
    "gradients per row that came back to a corrupted party (such as --corrupts passive1 or client1)",
    lambda view: bool(gradient_messages(view)),
)
NAMES = Requirement("something to name more than two classes by (--knows class-priors or labels=N)", _can_name)


class LabelFromGradient(Attack):
    """Tell classes apart by the direction of the gradients that a guest gets back; no label is needed for that.

    Only gradients of the first recorded epoch are used by default: there the model knows least, and bundles are
    tightest. Bundles are named by class shares, by known labels, or (two classes only) by the assumption that the
    second class is the rarer one, as the positive class mostly is. A wrong assumption gives an AUC near 0. With
    `first_batches`, rows of other batches get no guess. Guests that collude put their gradients side by side.

    `score=norm` looks at lengths instead (two classes; Li et al. 2022): a model that knows nothing yet predicts
    the class shares, so |p - y| is larger for rows of the rarer class.
    """

    name: ClassVar[str] = "label-from-gradient"
    games: ClassVar[tuple[str, ...]] = ("label-inference",)
    requires: ClassVar[tuple[Requirement, ...]] = (CLASSES, GRADIENTS, NAMES)
    score: Literal["direction", "norm"] = Field("direction", description="what about a gradient tells the class")
    first_batches: int | None = Field(
        None, ge=1, description="look at so many batches only; none: the whole first epoch"
    )
    first_epochs: int = Field(1, ge=1, description="average each row's gradients over so many epochs, against noise")

    def attack(self, view: View, seed: int) -> dict[str, Any]:
        tables = returned_gradients(view, epochs=self.first_epochs, batches=self.first_batches)
        first, gradients = tables[0], np.hstack([table.values for table in tables])
        classes = len(view.spec.classes)
        notes: dict[str, Any] = {"batches": first.batches, "rows": len(first.rows)}
        verified: bool | None = True
        if self.score == "norm":
            values, notes["named_by"] = self._by_norm(view, gradients, first.handles)
            verified = None
        elif at_outputs(first.values, classes):
            values = -np.sign(first.values)
            notes["named_by"] = ["the outputs themselves"]
        else:
            member, chances, blur = bundles(gradients, classes, child_seed(seed, self.name))
            named, gap, sources = name_bundles(view, member, first.handles, seed)
            values = (chances - 1 / classes)[:, np.argsort(named)]
            # points spread evenly over a line have a blur of 0.1, random points in more dimensions of 0.5
            clear = blur < (0.05 if classes == 2 else 0.15)
            verified = bool(clear and gap > NAMED) if sources or not clear else None
            notes |= {"named_by": sources or [ASSUMED], "naming_margin": gap, "blur": blur}
        return {
            "labels": RowGuess(first.rows, values, shuffled=first.shuffled),
            "verified": verified,
            "notes": notes,
        }

    def _by_norm(self, view: View, gradients: Array, handles: Array) -> tuple[Array, list[str]]:
        """Log lengths above their median, for the rarer of two classes."""
        if len(view.spec.classes) != 2:
            raise InputError(f"score='norm' tells two classes apart, not {len(view.spec.classes)}: use direction")
        lengths = np.linalg.norm(gradients, axis=1)
        logs = np.log(np.maximum(lengths, np.finfo(np.float64).tiny))
        values = logs - np.median(logs)
        told = known_classes(view, handles)
        if len(set(told[told >= 0])) == 2:
            rarer, source = int(values[told == 1].mean() > values[told == 0].mean()), "known labels"
        elif view.knowledge.class_priors is not None:
            rarer, source = int(view.knowledge.class_priors.argmin()), "class priors"
        else:
            rarer, source = 1, ASSUMED
        return values if rarer == 1 else -values, [source]


ASSUMED = "assumed: the second class is the rarer one"


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


def bundles(gradients: Array, classes: int, seed: int) -> tuple[Array, Array, float]:
    """Group rows by the direction of their gradients: each row's group, the chances of all groups, and their blur.

    Directions are seen in their C - 1 leading dimensions, not centred. Two groups are the two signs; more are found by
    k-means.
    """
    sizes = np.linalg.norm(gradients, axis=1, keepdims=True)
    left, scale, _ = np.linalg.svd(gradients / np.where(sizes > 0, sizes, 1.0), full_matrices=False)
    points = (left * scale)[:, : classes - 1]
    centres = None
    if classes == 2:
        reach = np.abs(points).mean()
        centres = np.array([[-reach], [reach]])
    member, odds, blur = groups(points, classes, seed, centres)
    return member, 1 / (1 + np.exp(-odds.clip(-700, 700))), blur


def groups(points: Array, classes: int, seed: int, centres: Array | None = None) -> tuple[Array, Array, float]:
    """Each row's nearest centre (of k-means, if none are given), the log-odds of all for balls of one size, the blur.

    The blur is the mean ratio of squared distances to the nearest and to the second centre: 0 for tight groups.
    """
    from scipy.special import logsumexp
    from sklearn.cluster import KMeans

    if centres is None:
        centres = KMeans(classes, n_init=10, random_state=seed % 2**31).fit(points).cluster_centers_
    squares = ((points[:, None] - centres) ** 2).sum(axis=2)
    spread = max(float(squares.min(axis=1).mean()) / points.shape[1], 1e-12)
    logs = -squares / (2 * spread)
    others = [logsumexp(np.delete(logs, group, axis=1), axis=1) for group in range(classes)]
    two = np.sort(squares, axis=1)[:, :2]
    blur = float((two[:, 0] / np.maximum(two[:, 1], 1e-300)).mean())
    return squares.argmin(axis=1), logs - np.stack(others, axis=1), blur


def name_bundles(view: View, member: Array, handles: Array, seed: int) -> tuple[Array, float, list[str]]:
    """The class of every group, by how much it is likelier than another naming, and what told it (empty: nothing)."""
    classes = len(view.spec.classes)
    likelihood, sources = naming_likelihood(view, SentTable(handles, member, shuffled=True), member, {}, seed)
    if view.knowledge.labelled is not None:
        told = known_classes(view, handles)
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


def known_classes(view: View, handles: Array) -> Array:
    """The classes of rows that are known beforehand; -1 for all others, and for rows without a handle."""
    class_of = np.full(view.spec.rows + 1, -1)  # the last entry is for rows without a handle
    if view.knowledge.labelled is not None:
        known, labels = view.knowledge.labelled
        class_of[known] = labels
    return class_of[handles]
