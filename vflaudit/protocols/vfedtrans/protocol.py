"""VFedTrans (Huang, Wang, Han 2023) as a target: the rival of APC-VFL that needs a third party."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator
from torch import nn

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import child_seed
from vflaudit.protocols.apcvfl.autoencoders import Error
from vflaudit.protocols.apcvfl.parties import ACTIVE
from vflaudit.protocols.apcvfl.protocol import DistillingProtocol
from vflaudit.protocols.base import Outcome, Session
from vflaudit.protocols.training import party_states
from vflaudit.protocols.vfedtrans.fedsvd import KEY_SERVER, SERVER, Representation, fedsvd
from vflaudit.protocols.vfedtrans.vfedpca import vfedpca


class VFedTrans(DistillingProtocol):
    """VFedTrans: FedSVD or VFedPCA represent the shared rows through a server; the active party distils the result.

    Three steps: a federated representation of the shared rows, which the active party gets; an autoencoder on its own
    rows, drawn towards that representation where it is known (as eq. 9 of APC-VFL, with the mean absolute error);
    logistic regression on the encoder's output, as APC-VFL V-A e evaluates it. A representation is no wider than the
    joint table, which APC-VFL (V-B a) calls its key limitation.

    FedSVD has two helpers: a key server that gives out masks, and a server that decomposes the masked data.
    """

    name: ClassVar[str] = "vfedtrans"

    representation: Literal["fedsvd", "vfedpca"] = Field("fedsvd", description="who makes the joint representation")
    components: int | None = Field(None, ge=1, description="its width; none: as many as there are columns in all")
    hidden_layers: tuple[int, ...] = Field(
        (256,), description="of g3 before the representation, as in APC-VFL's Table I"
    )
    distillation: Error = Field("mae", description="the latent error: mae (APC-VFL IV-C on VFedTrans), or mse")
    unit_variance: bool = Field(
        True, description="scale the representation's columns, which have length 1, to variance 1 before distillation"
    )
    mask_block: int = Field(1000, ge=1, description="block size of FedSVD's orthogonal masks")
    send_values: bool = Field(True, description="whether FedSVD's server sends the singular values with U', as it does")
    periods: int = Field(10, ge=1, description="exchanges per component of VFedPCA (the VFedTrans code: 10)")
    iterations: int = Field(100, ge=1, description="local power iterations per exchange (the VFedTrans code: 100)")

    @field_validator("hidden_layers", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        """`256x64` as one word."""
        return tuple(filter(None, value.split("x"))) if isinstance(value, str) else value

    def parties(self, data: VerticalDataset) -> tuple[str, ...]:
        helpers = (SERVER, KEY_SERVER) if self.representation == "fedsvd" else (SERVER,)
        return (*super().parties(data), *helpers)

    def execute(self, session: Session) -> Outcome:
        data = session.data
        alignment = self.align(session, "train")
        rows = alignment.rows
        found = self.represent(session, rows)
        joint = found.values
        if self.unit_variance:
            joint = joint / np.maximum(joint.std(axis=0), 1e-12)
        g3 = self.distil(session, (*self.hidden_layers, joint.shape[1]), rows, joint)
        model, layer, utility = self.classify_alone(session, g3.encoder)
        states = party_states(data, {ACTIVE: nn.ModuleDict({"g3": g3, "classifier": layer})})
        for party, kept in alignment.secrets.items():
            states[party] = replace(states[party], secrets={**kept, **found.secrets.get(party, {})})
        return Outcome(states, model, utility | {"aligned_rows": float(len(rows))})

    def represent(self, session: Session, rows: Array) -> Representation:
        """The federated representation of the shared rows."""
        blocks = session.data.blocks
        tables = {party: blocks[party].values[rows] for party in super().parties(session.data)}
        if self.representation == "vfedpca":
            return vfedpca(
                session.wire,
                tables,
                rows,
                self.components,
                periods=self.periods,
                iterations=self.iterations,
                seed=session.seed,
            )
        seed = child_seed(session.seed, "fedsvd") if self.randomness == "seed" else None
        return fedsvd(
            session.wire,
            tables,
            self.components,
            block=self.mask_block,
            send_values=self.send_values,
            seed=seed,
        )
