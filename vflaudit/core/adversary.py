"""Who is corrupted and what it knows beforehand, as one readable sentence.

Knowledge is granted by the lab: each item reveals a few values of the run, in the units of the protocol's input, and
nothing else. Rows that the adversary knows are excluded from scoring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vflaudit.core.dataset import Array, frozen
from vflaudit.core.randomness import stream
from vflaudit.errors import InputError, unknown

if TYPE_CHECKING:
    from vflaudit.core.run import Run


@dataclass(frozen=True, eq=False)
class Rows:
    """Known feature rows. `handles` are their positions in the protocol, if the adversary has them."""

    features: Mapping[str, Array]
    handles: Array | None = None
    labels: Array | None = None


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the adversary knows before it looks at a single message."""

    samples: Rows | None = None
    distribution: Rows | None = None
    means: Mapping[str, Array] = field(default_factory=dict)
    second_moments: Mapping[str, Array] = field(default_factory=dict)
    class_priors: Array | None = None
    labelled: tuple[Array, Array] | None = None
    model: object | None = None


class Known(ABC):
    """One item of knowledge. `option` is its name on the command line."""

    option: ClassVar[str]

    @abstractmethod
    def phrase(self) -> str:
        """How the item reads in 'the server, knowing ...'."""

    @abstractmethod
    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        """Fields of `Knowledge` that this item fills."""


def _count(what: str, wanted: int, available: int, pool: str) -> None:
    if not 1 <= wanted <= available:
        raise InputError(f"the adversary cannot know {wanted} {what}: there are {available} {pool}")


@dataclass(frozen=True)
class KnownSamples(Known):
    """The honest parties' feature rows of n training people; with `with_ids` also where they are in the protocol.

    The values may be off by `noise` (in deviations of each column), and people may be hidden in groups of `k` or more
    that are alike: each row is then the mean of its group (k-anonymity by micro-aggregation).
    """

    n: int
    with_ids: bool = False
    noise: float = 0.0
    k: int = 1
    option: ClassVar[str] = "known-samples"

    def __post_init__(self) -> None:
        if not 0 <= self.noise < np.inf:
            raise InputError(f"known-samples: noise={self.noise} is not a number of deviations of 0 or more")
        if not 1 <= self.k <= max(self.n, 1):
            raise InputError(f"known-samples: k={self.k} is not a group size from 1 to the {self.n} known people")

    def phrase(self) -> str:
        known = f"the rows of {self.n} people"
        if self.k > 1:
            known = f"the rows of {self.n} people averaged in groups of {self.k} or more"
        if self.noise:
            known += f" with noise of {self.noise:g} deviations"
        return known + (" and their ids" if self.with_ids else ", not their ids")

    def rows(self, run: Run) -> Array:
        """Which rows: the first n of one random order, so that more knowledge always includes less."""
        train = run.data.aligned("train")
        _count("samples", self.n, len(train), "training rows")
        return stream(run.seed, "knowledge", self.option).permutation(train)[: self.n]

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        rows, train = self.rows(run), run.data.aligned("train")
        features = {party: run.data.blocks[party].values[rows] for party in honest}
        deviations = {party: run.data.blocks[party].values[train].std(axis=0) for party in honest}
        if self.k > 1 and honest:
            scaled = [features[party] / np.where(deviations[party] > 0, deviations[party], 1.0) for party in honest]
            groups = micro_aggregation(np.hstack(scaled), self.k)
            same = groups[:, None] == groups
            features = {party: same / same.sum(axis=1, keepdims=True) @ x for party, x in features.items()}
            # rounding must not tell the members of a group apart
            first = same.argmax(axis=1)
            features = {party: x[first] for party, x in features.items()}
        if self.noise:
            for party in honest:
                rng = stream(run.seed, "knowledge", self.option, "noise", party)
                size = self.noise * deviations[party]
                features[party] = features[party] + size * rng.standard_normal(features[party].shape)
        values = {party: frozen(x) for party, x in features.items()}
        return {"samples": Rows(values, frozen(rows) if self.with_ids else None)}


def micro_aggregation(values: Array, k: int) -> Array:
    """Groups of k to 2k - 1 similar rows, as a number for each row (MDAV, Domingo-Ferrer and Torra 2005).

    The row farthest from the middle and the row farthest from that one each take their k - 1 nearest; what is left over
    at the end is the last group.
    """
    group, left, count = np.full(len(values), -1), np.arange(len(values)), 0
    while len(left) >= 2 * k:
        middle = np.linalg.norm(values[left] - values[left].mean(axis=0), axis=1)
        far = left[int(middle.argmax())]
        for _ in range(2 if len(left) >= 3 * k else 1):
            distance = np.linalg.norm(values[left] - values[far], axis=1)
            other = left[int(distance.argmax())]
            near = left[np.argsort(distance, kind="stable")[:k]]
            group[near], count = count, count + 1
            left, far = np.setdiff1d(left, near), other
    group[left] = count
    return group


@dataclass(frozen=True)
class DistributionSample(Known):
    """n rows of the same population that no party holds: all columns and labels, from the auxiliary pool only."""

    n: int
    option: ClassVar[str] = "distribution"

    def phrase(self) -> str:
        return f"{self.n} other rows of the same population"

    def rows(self, run: Run) -> Array:
        """Which rows of the pool: the first n of one random order."""
        total = len(run.data.aux) if run.data.aux is not None else 0
        _count("rows of the population", self.n, total, "rows in the auxiliary pool")
        return stream(run.seed, "knowledge", self.option).permutation(total)[: self.n]

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        rows, pool = self.rows(run), run.data.aux
        assert pool is not None
        features = {party: frozen(block.values[rows]) for party, block in pool.blocks.items()}
        return {"distribution": Rows(features, labels=frozen(pool.labels[rows]))}


@dataclass(frozen=True)
class FeatureMeans(Known):
    """The exact mean of every column of the honest parties over the training rows."""

    option: ClassVar[str] = "means"

    def phrase(self) -> str:
        return "the mean of every column"

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        rows = run.data.aligned("train")
        return {"means": {party: frozen(run.data.cluster_values(party)[rows].mean(axis=0)) for party in honest}}


@dataclass(frozen=True)
class Moments(Known):
    """The exact mean and second moment x'x/N of every honest party's columns over the training rows."""

    option: ClassVar[str] = "moments"

    def phrase(self) -> str:
        return "the first and second moments of every party's columns"

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        rows = run.data.aligned("train")
        values = {party: run.data.cluster_values(party)[rows] for party in honest}
        return {
            "means": {party: frozen(x.mean(axis=0)) for party, x in values.items()},
            "second_moments": {party: frozen(x.T @ x / len(x)) for party, x in values.items()},
        }


@dataclass(frozen=True)
class ClassPriors(Known):
    """The share of every class among the training rows."""

    option: ClassVar[str] = "class-priors"

    def phrase(self) -> str:
        return "the class frequencies"

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        if run.data.task != "classification":
            raise InputError(f"class-priors: {run.data.name!r} is a regression dataset, it has no classes")
        labels = run.data.labels[run.data.aligned("train")]
        return {"class_priors": frozen(np.bincount(labels, minlength=len(run.data.classes)) / len(labels))}


@dataclass(frozen=True)
class LabeledSamples(Known):
    """The labels of n training rows, with their positions in the protocol."""

    n: int
    option: ClassVar[str] = "labels"

    def phrase(self) -> str:
        return f"the labels of {self.n} people"

    def rows(self, run: Run) -> Array:
        """Which rows: the first n of one random order."""
        train = run.data.aligned("train")
        _count("labels", self.n, len(train), "training rows")
        return stream(run.seed, "knowledge", self.option).permutation(train)[: self.n]

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        rows = self.rows(run)
        return {"labelled": (frozen(rows), frozen(run.data.labels[rows]))}


@dataclass(frozen=True)
class ReleasedModel(Known):
    """The trained model: to query (`black-box`) or with its parameters (`white-box`)."""

    access: Literal["black-box", "white-box"] = "black-box"
    option: ClassVar[str] = "model"

    def phrase(self) -> str:
        return "queries to the trained model" if self.access == "black-box" else "the trained model's parameters"

    def reveal(self, run: Run, honest: tuple[str, ...]) -> Mapping[str, object]:
        return {"model": run.model.release(white_box=self.access == "white-box")}


ITEMS: tuple[type[Known], ...] = (
    KnownSamples,
    DistributionSample,
    FeatureMeans,
    Moments,
    ClassPriors,
    LabeledSamples,
    ReleasedModel,
)


def parse_known(text: str) -> Known:
    """What `--knows` takes: `known-samples=30,ids`, `known-samples=30,noise=0.01,k=5`, `means`, `model=white-box`..."""
    option, equals, value = text.strip().partition("=")
    options = {item.option: item for item in ITEMS}
    if option not in options:
        raise unknown("knowledge", option, options)
    item = options[option]
    if item is ReleasedModel:
        if value not in ("black-box", "white-box"):
            raise InputError(f"--knows {text!r}: expected model=black-box or model=white-box")
        return ReleasedModel(value)  # type: ignore[arg-type]
    if item in (FeatureMeans, Moments, ClassPriors):
        if equals:
            raise InputError(f"--knows {text!r}: {option} takes no value")
        return item()
    number, *flags = value.split(",")
    if not number.isdigit() or int(number) < 1:
        raise InputError(f"--knows {text!r}: expected {option}=N with a whole number N of 1 or more")
    if item is KnownSamples:
        return KnownSamples(int(number), **_sample_flags(text, flags))
    if flags:
        raise InputError(f"--knows {text!r}: expected {option}=N, without {','.join(flags)!r}")
    return DistributionSample(int(number)) if item is DistributionSample else LabeledSamples(int(number))


def _sample_flags(text: str, flags: list[str]) -> dict[str, Any]:
    """What may follow the number of known samples: `ids`, `noise=0.01`, `k=5`."""
    found: dict[str, Any] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if name not in ("ids", "noise", "k") or bool(equals) == (name == "ids"):
            raise InputError(
                f"--knows {text!r}: after the number only ',ids', ',noise=0.01' or ',k=5' may follow, not {flag!r}"
            )
        try:
            wanted: Any = True if name == "ids" else float(value) if name == "noise" else int(value)
        except ValueError:
            raise InputError(f"--knows {text!r}: {value!r} is not a number") from None
        if {"ids": "with_ids"}.get(name, name) in found:
            raise InputError(f"--knows {text!r}: {name!r} is given twice")
        found[{"ids": "with_ids"}.get(name, name)] = wanted
    return found


@dataclass(frozen=True)
class Adversary:
    """Corrupted parties (their views are united) and prior knowledge."""

    corrupts: frozenset[str]
    knows: tuple[Known, ...] = ()

    def __init__(self, corrupts: Iterable[str], knows: Iterable[Known] = ()) -> None:
        if isinstance(corrupts, str):
            corrupts = {corrupts}
        object.__setattr__(self, "corrupts", frozenset(corrupts))
        object.__setattr__(self, "knows", tuple(knows))
        if not self.corrupts and not any(isinstance(item, ReleasedModel) for item in self.knows):
            raise InputError("an adversary corrupts at least one party or is given the released model")
        kinds = [type(item) for item in self.knows]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise InputError(f"knowledge {kind.option!r} is given twice")

    def __str__(self) -> str:
        who = sorted(self.corrupts, key=lambda party: (party != "server", party))
        names = ["the server" if party == "server" else party for party in who]
        if not names:
            subject = "an outsider"
        elif len(names) == 1:
            subject = names[0]
        else:
            subject = f"{', '.join(names[:-1])} and {names[-1]} together"
        if not self.knows:
            return f"{subject}, knowing nothing beforehand"
        return f"{subject}, knowing {'; '.join(item.phrase() for item in self.knows)}"

    def known_rows(self, run: Run) -> Array:
        """Handles of all training rows whose features the adversary knows (the lab's secret if it has no ids)."""
        rows = [item.rows(run) for item in self.knows if isinstance(item, KnownSamples)]
        return np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)

    def learn(self, run: Run) -> Knowledge:
        """Grant the knowledge."""
        honest = tuple(party for party in run.data.parties if party not in self.corrupts)
        granted: dict[str, object] = {}
        for item in self.knows:
            granted.update(item.reveal(run, honest))
        return Knowledge(**granted)  # type: ignore[arg-type]
