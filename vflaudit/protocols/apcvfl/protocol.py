"""APC-VFL (Irureta, Imaz, Lojo, Gonzalez, Perona 2024) as a target: four steps, one message per passive party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.run import Model, PartyState
from vflaudit.errors import InputError
from vflaudit.protocols.apcvfl.autoencoders import (
    Autoencoder,
    Error,
    Latent,
    Lesson,
    Reduction,
    Teacher,
    Training,
    first_lesson,
    fit_autoencoder,
    train,
)
from vflaudit.protocols.apcvfl.classifier import classification_utility, fit_classifier, fold_utility
from vflaudit.protocols.apcvfl.parties import ACTIVE, Alignment, align, held_rows, name_parties, passive_parties
from vflaudit.protocols.base import Outcome, Protocol, Session
from vflaudit.protocols.networks import JoinedNetwork, Predictor, SplitNetwork, parameters_of, to_tensor
from vflaudit.protocols.psi.intersect import Method
from vflaudit.protocols.training import party_states

Variant = Literal["distilled", "collaborative", "ablation", "local"]


class DistillingProtocol(Protocol):
    """What APC-VFL and VFedTrans share: the active party, alignment, the encoder g3 of eq. 9, the classifier."""

    corrupts: ClassVar[frozenset[str]] = frozenset({ACTIVE})

    active: str | None = Field(
        None, description="the party that becomes the active one; none: the label owner if it holds columns, else first"
    )
    distillation: Error = Field("mse", description="the latent error of eq. 9: mse, or mae as in VFedTrans")
    distillation_weight: float = Field(0.01, ge=0, description="lambda (V-A f)")
    reduction: Reduction = Field(
        "sum", description="of both errors of eq. 9 over a row's coordinates: sum as printed, or mean as the names say"
    )
    latent: Latent = Field(
        "selu", description="the activation of the representation itself; Table I names SELU and no exception"
    )
    epochs: int = Field(100, ge=1, description="of every autoencoder; the paper gives none")
    batch_size: int = Field(32, ge=1, description="the paper gives none")
    learning_rate: float = Field(0.001, gt=0, description="of Adam, its authors' value (V-A f)")
    folds: int | None = Field(
        10, ge=2, description="of the cross-validation on the active party's rows (V-A e); none: leave it out"
    )
    psi: Method = Field("diffie-hellman", description="who intersects the ids; openmined needs the extra `psi`")
    randomness: Literal["os", "seed"] = Field("os", description="where keys come from; seed is for tests only")

    def prepare(self, data: VerticalDataset) -> VerticalDataset:
        if data.task != "classification":
            raise InputError(f"{self.name} trains a classifier (IV-D): dataset {data.name!r} is a regression")
        prepared = super().prepare(data)
        return prepared if ACTIVE in data.blocks and data.encoded else name_parties(prepared, self.active)

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        return (ACTIVE, *passive_parties(data))

    def training(self) -> Training:
        """How every autoencoder is trained."""
        return Training(self.epochs, self.batch_size, self.learning_rate)

    def align(self, session: Session, *parts: str) -> Alignment:
        """The rows of these splits that everybody holds (section III)."""
        if not passive_parties(session.data):
            raise InputError(f"{self.name} needs a passive party: load the data with two parties or more")
        return align(session, self.psi, self.randomness, parts)

    def distil(self, session: Session, layers: tuple[int, ...], rows: Array, joint: Array) -> Autoencoder:
        """Step 3: g3 on all training rows of the active party, drawn to `joint` on the aligned `rows` (eq. 9)."""
        with session.wire.computing(ACTIVE):
            lesson = self.last_lesson(session, layers, rows, joint)
            train(lesson.model, lesson.values, self.training(), lesson.rng, teacher=lesson.teacher)
        return lesson.model

    def last_lesson(self, session: Session, layers: tuple[int, ...], rows: Array, joint: Array) -> Lesson:
        """What g3 is trained on: the active party's columns, and the teacher."""
        own = held_rows(session.data, ACTIVE, "train")
        known = np.isin(own, rows)
        target = np.zeros((len(own), layers[-1]), dtype=np.float32)
        target[known] = joint[np.searchsorted(rows, own[known])]
        teacher = Teacher(
            to_tensor(target), to_tensor(known), self.distillation_weight, self.distillation, self.reduction
        )
        values = session.data.blocks[ACTIVE].values[own]
        return replace(first_lesson(values, layers, self.latent, session.seed, ACTIVE, "g3"), teacher=teacher)

    def classify_alone(self, session: Session, encoder: nn.Module) -> tuple[Model, nn.Linear, dict[str, float]]:
        """Step 4: the classifier on the enriched data; new rows are classified without anybody else (IV-D)."""
        data, block = session.data, session.data.blocks[ACTIVE]
        own = held_rows(data, ACTIVE, "train")
        with session.wire.computing(ACTIVE), torch.no_grad():
            enriched = encoder(to_tensor(block.values[own])).numpy()
            layer = fit_classifier(enriched, data.labels[own], len(data.classes))
        network = JoinedNetwork(nn.Sequential(encoder, layer))
        predictor = Predictor(network, (ACTIVE,), data.task, 0.0, 1.0)
        utility = dict(fold_utility(enriched, data.labels[own], self.folds, session.seed))
        for part, prefix in (("test", ""), ("validation", "validation_")):
            rows = held_rows(data, ACTIVE, part)
            if len(rows):
                guess = predictor({ACTIVE: block.values[rows]})
                utility |= classification_utility(guess, data.labels[rows], prefix)
        return Model(predictor, parameters_of(network)), layer, utility


class APCVFL(DistillingProtocol):
    """APC-VFL: passive parties send representations of the shared rows once; the active party distils and works alone.

    Steps (IV, Fig. 3): every party trains an autoencoder g1 on its own columns; after private set intersection each
    passive party sends the representations of the aligned rows, once; the active party joins all with g2, then trains
    g3 on its own columns with eq. 9, and logistic regression on what g3 gives. It classifies new rows by itself.

    Variants: `distilled` is the proposal; `collaborative` is Fig. 5, where the classifier uses g2's joint
    representation and new rows need everybody again; `ablation` trains g3 without distillation and `local` is logistic
    regression on the active party's own columns, both without any message (V-A e).

    Widths are those of Table I, the same for both datasets of the paper. The active party is honest but curious (IV-E).
    The paper does not say how features are scaled; they are standardised here.
    """

    name: ClassVar[str] = "apc-vfl"
    hooks: ClassVar[frozenset[str]] = frozenset({"features_out"})

    variant: Variant = Field("distilled", description="see above")
    active_layers: tuple[int, ...] = Field((64, 128), description="g1 of the active party, as 64x128 (Table I)")
    passive_layers: tuple[int, ...] = Field((128, 256), description="g1 of a passive party (Table I)")
    joint_layers: tuple[int, ...] = Field((256, 256), description="g2 (Table I)")
    distilled_layers: tuple[int, ...] = Field((256, 256), description="g3 (Table I); ends as wide as g2")
    local_rows: Literal["all", "aligned"] = Field(
        "all", description="what g1 is trained on: all training rows of its party ('local data', IV-B), or aligned ones"
    )

    decorrelation: float = Field(
        0.0,
        ge=0,
        description="weight of a distance correlation between a passive party's columns and its representation, added "
        "to eq. 1; a candidate remedy that is not in the paper",
    )

    @field_validator("active_layers", "passive_layers", "joint_layers", "distilled_layers", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        """`128x256` as one word."""
        return tuple(value.split("x")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> APCVFL:
        for layers in (self.active_layers, self.passive_layers, self.joint_layers, self.distilled_layers):
            if not layers or min(layers) < 1:
                raise ValueError("an encoder needs one layer or more, of one unit or more each, as in 128x256")
        if self.joint_layers[-1] != self.distilled_layers[-1]:
            raise ValueError("g3 must end as wide as g2: their representations are compared (eq. 9)")
        return self

    def execute(self, session: Session) -> Outcome:
        data = session.data
        modules: dict[str, nn.ModuleDict] = {party: nn.ModuleDict() for party in self.parties(data)}
        secrets: dict[str, dict[str, Array]] = {}
        if self.variant == "local":
            model, layer, utility = self.classify_alone(session, nn.Identity())
        elif self.variant == "ablation":
            nobody = np.zeros(0, dtype=np.int64)
            g3 = self.distil(session, self.distilled_layers, nobody, np.zeros((0, self.distilled_layers[-1])))
            model, layer, utility = self.classify_alone(session, g3.encoder)
            modules[ACTIVE]["g3"] = g3
        else:
            model, layer, utility, secrets = self.federate(session, modules)
        modules[ACTIVE]["classifier"] = layer
        states: dict[str, PartyState] = party_states(data, modules)
        for party, kept in secrets.items():
            states[party] = replace(states[party], secrets=kept)
        return Outcome(states, model, utility)

    def train_many(self, sessions: Sequence[Session]) -> list[Model]:
        """All at once, step by step. The folds say how useful a model is and are not part of it."""
        from vflaudit.protocols.apcvfl import shadows

        quick = self.model_copy(update={"folds": None})
        if self.variant in shadows.VARIANTS and not self.decorrelation:
            return shadows.train_many(quick, sessions)
        return quick.train_one_by_one(sessions)

    def federate(
        self, session: Session, modules: dict[str, nn.ModuleDict]
    ) -> tuple[Model, nn.Linear, dict[str, float], dict[str, dict[str, Array]]]:
        """The four steps; `modules` collects what each party has trained."""
        data, together = session.data, self.variant == "collaborative"
        parts = ("train", "validation", "test") if together else ("train",)
        alignment = self.align(session, *parts)
        rows = np.intersect1d(alignment.rows, data.split["train"])
        for party in self.parties(data):
            own = rows if self.local_rows == "aligned" or together else held_rows(data, party, "train")
            layers = self.active_layers if party == ACTIVE else self.passive_layers
            with session.wire.computing(party):
                values = data.blocks[party].values[own]
                training = replace(self.training(), decorrelation=0.0 if party == ACTIVE else self.decorrelation)
                g1 = fit_autoencoder(values, layers, self.latent, training, session.seed, party, "g1")
            modules[party]["g1"] = g1
        joined = self.exchange(session, modules, rows)
        with session.wire.computing(ACTIVE):
            g2 = fit_autoencoder(joined, self.joint_layers, self.latent, self.training(), session.seed, ACTIVE, "g2")
            joint = g2.encode(joined)
        modules[ACTIVE]["g2"] = g2
        if together:
            model, layer, utility = self.classify_together(session, modules, alignment.rows, rows, joint)
        else:
            g3 = self.distil(session, self.distilled_layers, rows, joint)
            modules[ACTIVE]["g3"] = g3
            model, layer, utility = self.classify_alone(session, g3.encoder)
        return model, layer, utility | {"aligned_rows": float(len(rows))}, alignment.secrets

    def exchange(self, session: Session, modules: dict[str, nn.ModuleDict], rows: Array) -> Array:
        """Step 2, and all that a passive party ever sends besides ids: Z of the aligned rows (eq. 5 and 6)."""
        data, wire = session.data, session.wire
        received = []
        wire.next_round()
        for party in self.parties(data):
            g1 = modules[party]["g1"]
            assert isinstance(g1, Autoencoder)
            with wire.computing(party):
                out = g1.encode(data.blocks[party].values[rows])
            if party != ACTIVE:
                out = session.protect("features_out", party, out).astype(np.float32)
                out = wire.send(party, ACTIVE, "representation", {"values": out}, rows=rows)["values"]
            received.append(out)
        return np.hstack(received)

    def classify_together(
        self, session: Session, modules: dict[str, nn.ModuleDict], aligned: Array, rows: Array, joint: Array
    ) -> tuple[Model, nn.Linear, dict[str, float]]:
        """Fig. 5: the classifier on joint representations; for new rows, everybody sends representations again."""
        data = session.data
        g2 = modules[ACTIVE]["g2"]
        assert isinstance(g2, Autoencoder)
        with session.wire.computing(ACTIVE):
            layer = fit_classifier(joint, data.labels[rows], len(data.classes))
        utility = dict(fold_utility(joint, data.labels[rows], self.folds, session.seed))
        for part, prefix in (("test", ""), ("validation", "validation_")):
            new = np.intersect1d(aligned, data.split[part])
            if len(new):
                with torch.no_grad():
                    scores = layer(to_tensor(g2.encode(self.exchange(session, modules, new))))
                utility |= classification_utility(scores.numpy(), data.labels[new], prefix)
        parties = self.parties(data)
        bottoms = {party: modules[party].get_submodule("g1.encoder") for party in parties}
        network = SplitNetwork(bottoms, JoinedNetwork(nn.Sequential(g2.encoder, layer)))
        return Model(Predictor(network, parties, data.task, 0.0, 1.0), parameters_of(network)), layer, utility
