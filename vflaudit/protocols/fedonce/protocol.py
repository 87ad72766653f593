"""FedOnce as a target: its parameters, its variants, and who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from defenses.base import Defense
from vflaudit.core.dataset import VerticalDataset
from vflaudit.core.run import Model, ProtocolSpec
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.fedonce.descent import Privacy, Training
from vflaudit.protocols.fedonce.tables import DELTA, GuestModel, Setting, Stage, lookup
from vflaudit.protocols.hosted import HOST, guests_of, with_host

Variant = Literal["l0", "l1", "priv-baseline", "multi-round", "splitnn", "pca", "solo", "combine", "linear-combine"]
PRIVATE = ("l1", "priv-baseline")


@dataclass(frozen=True)
class Plan:
    """All parameters of one run, settled: what was asked for, the rest from the paper's tables."""

    setting: Setting
    epsilon: float
    delta: float

    def training(self, stage: Stage, privacy: Privacy | None) -> Training:
        """Adam (Table 5), or plain SGD under differential privacy (App. A)."""
        optimiser: Literal["adam", "sgd"] = "sgd" if privacy else "adam"
        return Training(stage.epochs, stage.batch, stage.learning_rate, stage.weight_decay, optimiser, privacy)


class FedOnce(Protocol):
    """FedOnce: every guest learns a representation without labels and sends it once; the host trains on what arrives.

    The host holds the labels and columns of its own. **The paper trusts it** (section 1, 4.2): representations are sent
    in the open, and 4.2 admits that they may be attacked. What the paper protects is the released model (variant l1,
    4.1) against membership inference. The audit corrupts the host by default; name `--knows model=...` for the other.

    Variants: `l0` and `l1` (Algorithm 1), `priv-baseline` (l1 with the budget divided equally, 5.1), `multi-round`
    (3.2: go on as SplitNN), `splitnn` (the same networks without the one-shot part), `pca` (5.6), and the paper's
    baselines that are not federated: `solo`, `combine`, `linear-combine` (5.1). SecureBoost is a protocol by itself.
    Noise on representations (5.8) is the defense `gaussian-noise`; the split of 5.5 is the partition `importance`.

    A parameter that is left out comes from the paper's tables by dataset name (`tables.py`). The paper does not say how
    features are scaled; they are standardised here.
    """

    name: ClassVar[str] = "fedonce"
    corrupts: ClassVar[frozenset[str]] = frozenset({HOST})
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out"})

    variant: Variant = Field("l0", description="Algorithm 1 (l0, l1), an extension, or one of the paper's baselines")
    host: str | None = Field(
        None, description="the party that becomes the host; none: the label owner if it holds columns, else the first"
    )
    guest_model: GuestModel | None = Field(None, description="fc, or cnn0, cnn1 of Fig. 4; none: Table 2 or 3")
    guest_hidden: tuple[PositiveInt, ...] | None = Field(
        None, description="hidden layers, as 30x30; none: Table 2 or 3"
    )
    host_hidden: tuple[PositiveInt, ...] | None = Field(
        None, description="hidden layers of the aggregation; none: as above"
    )
    guest_output: Literal["linear", "tanh"] = Field(
        "linear", description="last activation of an FC guest; the paper names none, the authors' code has tanh"
    )
    host_loss: Literal["cross-entropy", "squared"] = Field(
        "cross-entropy", description="for classes; Algorithm 1, line 21 prints the squared error, their code has this"
    )
    dimension: int | None = Field(None, ge=1, description="d, the width of a representation; none: Table 5 or 10")
    frequency: int | None = Field(None, ge=1, description="f: P is updated every f epochs; none: Table 5 or 10")
    assignment: Literal["hungarian", "fixed", "nearest"] = Field(
        "hungarian", description="who gets which target (2.2); the others keep samples apart from each other"
    )
    guest_epochs: int | None = Field(None, ge=1, description="T of a guest; none: Table 5 or 10")
    guest_batch: int | None = Field(None, ge=1, description="b of a guest")
    guest_learning_rate: float | None = Field(None, gt=0, description="eta of a guest")
    guest_weight_decay: float | None = Field(None, ge=0, description="lambda of a guest")
    host_epochs: int | None = Field(None, ge=1, description="T of the host; none: Table 5 or 10")
    host_batch: int | None = Field(None, ge=1, description="b of the host")
    host_learning_rate: float | None = Field(None, gt=0, description="eta of the host")
    host_weight_decay: float | None = Field(None, ge=0, description="lambda of the host")
    joint_epochs: int = Field(10, ge=0, description="epochs of multi-round training (3.2; Fig. 6 varies it)")
    budget: int | Literal["one-shot"] | None = Field(
        None, description="stop multi-round and splitnn before this many bytes; one-shot: what l0 sends (SplitNN-Comm)"
    )
    curve: bool = Field(
        False, description="also tell utility and bytes after each joint epoch (Fig. 6); the lab measures it, unsent"
    )
    laggy: int = Field(0, ge=0, description="guests, from the last, that answer too late and count as zeros (App. C)")
    epsilon: float = Field(2.0, gt=0, description="total budget of l1 and priv-baseline (Table 6: 2 to 8)")
    delta: float | None = Field(None, gt=0, lt=1, description="none: Table 6 (1e-4 for gisette, 1e-5 for the others)")
    sigma: float | None = Field(None, ge=0, description="noise in clips at every party; none: calibrated to epsilon")
    accountant: Literal["rdp-classic", "rdp"] = Field(
        "rdp-classic", description="what sigma is calibrated with; the classic conversion gives the paper's numbers"
    )
    clip: float | None = Field(None, gt=0, description="Omega; none: Table 10")
    clipping: Literal["sample", "batch"] = Field(
        "sample",
        description="of each sample's gradient (DP-SGD), or of the whole one (Algorithm 1, line 11 as printed)",
    )
    sampling: Literal["shuffled", "poisson"] = Field(
        "shuffled", description="batches of l1: shuffled (the authors' code) or Poisson (what the accountant assumes)"
    )

    @field_validator("guest_hidden", "host_hidden", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        """`30x30` as the tables write it."""
        return tuple(value.split("x")) if isinstance(value, str) else value

    @property
    def private(self) -> bool:
        """Whether training is differentially private."""
        return self.variant in PRIVATE

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        """The host has the labels, and the columns of `host`, or of the label owner, or of the first party."""
        return with_host(super().prepare(data), self.host)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return (HOST, *guests_of(data))

    def plan(self, data: VerticalDataset) -> Plan:
        """Every parameter settled."""
        row, people = lookup(data.name, private=self.private, epsilon=self.epsilon), len(data.aligned("train"))

        def stage(of: Stage, who: str) -> Stage:
            asked = {key: getattr(self, f"{who}_{key}") for key in ("learning_rate", "weight_decay", "batch", "epochs")}
            found = replace(of, **{key: value for key, value in asked.items() if value is not None})
            return replace(found, batch=min(found.batch, max(1, people)))  # a batch is no larger than the table

        asked = {
            key: getattr(self, key)
            for key in ("guest_model", "guest_hidden", "host_hidden", "dimension", "frequency", "clip")
        }
        chosen = {key: value for key, value in asked.items() if value is not None}
        setting = replace(row, guest=stage(row.guest, "guest"), host=stage(row.host, "host"), **chosen)
        return Plan(setting, self.epsilon, DELTA.get(data.name, 1e-5) if self.delta is None else self.delta)

    def spec(self, data: VerticalDataset, parties: tuple[str, ...], defenses: Sequence[Defense]) -> ProtocolSpec:
        """Public, with the values that the tables gave."""
        spec, plan = super().spec(data, parties, defenses), self.plan(data)
        setting = plan.setting
        settled = {
            "guest_model": setting.guest_model,
            "guest_hidden": list(setting.guest_hidden),
            "host_hidden": list(setting.host_hidden),
            "dimension": setting.dimension,
            "frequency": setting.frequency,
            "clip": setting.clip,
            "delta": plan.delta,
        }
        for who, of in (("guest", setting.guest), ("host", setting.host)):
            settled |= {f"{who}_{key}": value for key, value in vars(of).items()}
        return replace(spec, parameters={**spec.parameters, **settled})

    def execute(self, session: Session) -> Outcome:
        from vflaudit.protocols.fedonce import baselines, oneshot

        if not len(session.data.aligned("train")):
            raise InputError(f"dataset {session.data.name!r}: no training row is held by every party")
        guests = guests_of(session.data)
        if not guests:
            raise InputError("fedonce needs a host and one guest or more: use --parties 2 or more")
        if self.laggy > len(guests):
            raise InputError(f"laggy={self.laggy}: there are {len(guests)} guests")
        if self.variant in baselines.VARIANTS:
            return baselines.run(self, session)
        return oneshot.OneShot(self, session).run()

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All at once, where every network is trained once and fully connected."""
        from vflaudit.protocols.fedonce import shadows

        if self.variant in shadows.VARIANTS and self.plan(sessions[0].data).setting.guest_model == "fc":
            return shadows.train_many(self, sessions)
        return self.train_one_by_one(sessions)
