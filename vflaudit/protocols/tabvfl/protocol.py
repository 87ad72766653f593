"""TabVFL as a target: its parameters, its variants, and who takes part."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vflaudit.core.dataset import VerticalDataset
from vflaudit.errors import InputError
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.hosted import HOST
from vflaudit.protocols.tabvfl.blocks import Shape, tab_network
from vflaudit.protocols.tabvfl.failures import Remedy
from vflaudit.protocols.tabvfl.loop import Training


class TabVFL(Protocol):
    """TabVFL: TabNet split between guests, who send intermediate results and masks, and a host with the labels.

    All columns are at guests; the host has the labels and nothing else (IV-A). The paper has five guests and splits the
    rows 70/15/15 (V-A, V-B): that is up to the dataset, `--parties 5` and `shares=(0.7, 0.15, 0.15)`. Columns are
    standardised or one-hot (V-A).

    Variants: `tabvfl`, and the paper's baselines (V-A): `ct` (Central TabNet, on columns sent in the open), `lt` (Local
    TabNets: each guest pretrains alone) and `le` (TabVFL-LE: whole encoders at the guests, summed at the host).
    `fc=False` is TabVFL without the layer that is to prevent data leakage.

    `masks=withheld`, `fill`, `rekey` and `order=unlinkable` are candidate remedies, none of them in the paper.

    The paper prints the latent dimension, batch size and epochs. TabNet's and Adam's parameters, the patience and the
    validation score (weighted F1; the reconstruction loss in pretraining) are those of the authors' published code.
    """

    name: ClassVar[str] = "tabvfl"
    corrupts: ClassVar[frozenset[str]] = frozenset({HOST})
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out", "gradients_out"})

    variant: Literal["tabvfl", "ct", "lt", "le"] = Field("tabvfl", description="TabVFL, or one of its baselines (V-A)")
    fc: bool = Field(True, description="the fully connected layer after the guests' batch norm (IV-A)")
    fc_width: int | None = Field(
        None, ge=1, description="at most this many outputs of the FC layer; none: as many as columns (V-C4)"
    )
    masks: Literal["sent", "withheld"] = Field(
        "sent",
        description="sent: the host gets the guests' masks (Alg. 1, line 6); withheld: it draws unrelated ones of its "
        "own (IV-D) and never learns theirs (masks that the host draws for the guests would hide nothing from it)",
    )
    mask_ratio: float = Field(0.5, ge=0, le=1, description="share of cells that RandomObfuscator hides")
    fill: Literal["zero", "mean", "marginal"] = Field(
        "zero",
        description="what stands in masked cells: zero as in TabNet, the column's mean, or another person's value",
    )
    rekey: bool = Field(
        False,
        description="guests turn what they send by a secret rotation, fresh in each epoch of pretraining; the last one "
        "stays for fine-tuning and serving",
    )
    latent: int = Field(5, ge=1, description="latent dimension n_d (V-A; Table III: 16, 32, 64)")
    attention: int = Field(2, ge=1, description="n_a, width of TabNet's attention")
    steps: int = Field(4, ge=1, description="TabNet's decision steps")
    gamma: float = Field(1.5, ge=1, description="how often TabNet may use a feature again")
    momentum: float = Field(0.9, gt=0, le=1, description="of TabNet's ghost batch norms")
    lambda_sparse: float = Field(1e-4, ge=0, description="weight of the sparsity loss (Alg. 2, line 17)")
    pretrain_epochs: int = Field(300, ge=0, description="V-A; 0: no pretraining")
    finetune_epochs: int = Field(300, ge=0, description="V-A; 0: no fine-tuning")
    patience: int | None = Field(10, ge=0, description="epochs to wait for a better validation score; none: no stop")
    batch_size: int = Field(64, ge=2, description="V-A")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam")
    weight_decay: float = Field(1e-4, ge=0, description="of Adam")
    order: Literal["fixed", "shuffled", "unlinkable"] = Field(
        "fixed",
        description="the paper turns shuffling off (V-A); shuffled: anew each epoch, known to the host; unlinkable: in "
        "pretraining, where no label is needed, the guests alone know the order",
    )
    p_fail: float = Field(0.0, ge=0, le=1, description="P_fail, how likely a guest is offline for an epoch (IV-E)")
    on_failure: Remedy = Field("cache", description="what stands in for an offline guest: its last results, or zeros")
    processes: bool = Field(False, description="each guest in a process of its own, which may really fail (POSIX)")
    timeout: float = Field(10.0, gt=0, description="seconds that the host waits for a guest's process (IV-E)")
    evaluate: bool = Field(False, description="also tell the latent quality by six classical models (Fig. 4)")

    @property
    def shape(self) -> Shape:
        """TabNet's parameters."""
        return Shape(self.latent, self.attention, self.steps, self.gamma, self.momentum)

    def outputs_of(self, width: int) -> int:
        """Numbers that a guest with so many columns sends about a row."""
        return width if self.fc_width is None else min(width, self.fc_width)

    def training(self, *, finetuning: bool) -> Training:
        """How a phase is trained."""
        epochs = self.finetune_epochs if finetuning else self.pretrain_epochs
        shuffle = self.order != "fixed"
        return Training(epochs, self.batch_size, self.patience, shuffle, self.learning_rate, self.weight_decay)

    def chunks(self, guests: int) -> list[int]:
        """The decoder's output in uniform partitions, one per guest (IV-A); the first ones take what is left over."""
        return [len(part) for part in np.array_split(np.arange(self.latent), guests)]

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        """All columns at guests, the labels at the host."""
        prepared = super().prepare(data)
        names = {party: f"guest{number}" for number, party in enumerate(prepared.parties, 1)}
        return prepared.rename(names, label_owner=HOST)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return (HOST, *data.parties)

    def execute(self, session: Session) -> Outcome:
        from vflaudit.protocols.tabvfl import central, split

        tab_network()
        self._check(session.data)
        return central.run(self, session) if self.variant == "ct" else split.run(self, session)

    def _check(self, data: VerticalDataset) -> None:
        guests = len(data.parties)
        if self.latent < guests:
            raise InputError(
                f"latent={self.latent}: with {guests} guests it must be {guests} or more, because the decoder's output "
                "has one partition per guest"
            )
        if len(data.aligned("train")) < 2:
            raise InputError(f"dataset {data.name!r}: fewer than two training rows are held by every party")
        if self.variant != "tabvfl" and not (self.fc and self.fc_width is None and self.masks == "sent"):
            raise InputError(f"variant={self.variant}: fc, fc_width and masks belong to variant=tabvfl")
        if self.rekey and self.variant != "tabvfl":
            raise InputError(f"variant={self.variant}: rekey belongs to variant=tabvfl")
        if not self.fc and self.fc_width is not None:
            raise InputError("fc=False leaves out the layer that fc_width is about: give one of them")
        if self.variant == "ct" and self.p_fail:
            raise InputError("variant=ct trains at one place: nobody can fail, p_fail must be 0")
        if self.processes and self.variant in ("ct", "lt"):
            raise InputError(f"processes=True is for variant=tabvfl and variant=le, not {self.variant}")
        if self.order == "unlinkable" and self.variant != "lt" and (self.p_fail or self.processes):
            raise InputError("order=unlinkable: a host that cannot link rows cannot cache them, so nobody may fail")
