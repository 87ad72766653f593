"""A guest's side of Alg. 1 and 2: it represents rows, reconstructs them, and updates its own model. It has no wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import nn

from vflaudit.core.dataset import Array
from vflaudit.core.randomness import stream
from vflaudit.protocols.networks import parameters_of, to_tensor
from vflaudit.protocols.tabvfl.blocks import (
    Bottom,
    Extractor,
    LocalEncoder,
    linear,
    reconstruction_loss,
    seeded_tabnet,
)

if TYPE_CHECKING:
    from vflaudit.protocols.tabvfl.protocol import TabVFL


class AnyGuest(Protocol):
    """What the host may ask of a guest, in this process or in another one. Whoever does not answer raises `Silent`."""

    def begin(self, *, finetuning: bool) -> None:
        """A phase starts."""

    def represent(self, rows: Array, *, masked: bool, train: bool, epoch: int | None = None) -> dict[str, Array]:
        """What it sends about these rows."""

    def reconstruct(self, decoded: Array) -> tuple[float, Array]:
        """The reconstruction loss of the rows last represented, and its gradient at what the decoder gave."""

    def update(self, gradient: Array) -> None:
        """One step of Adam, given the gradient at what it sent last."""

    def parameters(self) -> dict[str, Array]:
        """Its model at the end, for the lab."""


class Guest:
    """A guest in this process: its columns, f_bottom_repr, f_bottom_rec, and the stream that masks are drawn from."""

    def __init__(self, protocol: TabVFL, party: str, values: Array, chunk: int, seed: int) -> None:
        self.protocol, self.party, self.values = protocol, party, to_tensor(values)
        self.modules = make_modules(protocol, party, values.shape[1], chunk, seed)
        self.seed, self.masks = seed, stream(seed, "tabvfl", party, "masks")
        self.fills, self.means = stream(seed, "tabvfl", party, "fills"), self.values.mean(dim=0)
        self.key: int | None = None  # the epoch that its rotation is for
        bottom = self.modules["bottom"]
        assert isinstance(bottom, Bottom)
        self.bottom = bottom
        self.batch = self.sent = self.mask = torch.empty(0)
        self.begin(finetuning=False)

    def begin(self, *, finetuning: bool) -> None:
        """Fresh optimisers; fine-tuning goes on with the pretrained BN and FC (Alg. 2, line 1)."""
        training = self.protocol.training(finetuning=finetuning)
        self.optimiser = training.adam(self.bottom) if finetuning else training.adam(self.modules)

    def represent(self, rows: Array, *, masked: bool, train: bool, epoch: int | None = None) -> dict[str, Array]:
        """Alg. 1, lines 4-6, or Alg. 2, line 4: intermediate results and, in pretraining, the binary mask."""
        if masked and self.protocol.rekey and epoch != self.key:
            self._rekey(epoch)
        self.batch = self.values[torch.from_numpy(np.array(rows))]
        if self.modules.training != train:
            self.modules.train(train)
        self.modules.zero_grad()
        with torch.set_grad_enabled(train):
            if not masked:
                self.sent = self.bottom(self.batch)
                return {"values": self.sent.detach().numpy()}
            drawn = self.masks.random(tuple(self.batch.shape), dtype=np.float32) < self.protocol.mask_ratio
            self.mask = torch.from_numpy(drawn).float()
            self.sent = self.bottom.masked(self.batch, self.mask, self._fill())
        return {"values": self.sent.detach().numpy(), "mask": drawn}

    def _fill(self) -> torch.Tensor | float:
        """What stands in masked cells. A draw is another person's value of the same column, anew for every cell."""
        if self.protocol.fill == "zero":
            return 0.0
        if self.protocol.fill == "mean":
            return self.means
        donors = torch.from_numpy(self.fills.integers(len(self.values), size=tuple(self.batch.shape)))
        return self.values.gather(0, donors)

    def _rekey(self, epoch: int | None) -> None:
        """A fresh rotation of what it sends; gradients turn back by themselves."""
        assert isinstance(self.bottom, Extractor)
        size = self.bottom.outputs
        drawn = stream(self.seed, "tabvfl", self.party, "rotation", epoch or 0).standard_normal((size, size))
        basis, triangle = np.linalg.qr(drawn)
        self.bottom.turn.copy_(torch.from_numpy(basis * np.sign(np.diag(triangle))))
        self.key = epoch

    def reconstruct(self, decoded: Array) -> tuple[float, Array]:
        """Alg. 1, lines 22-25."""
        inputs = torch.from_numpy(np.array(decoded)).requires_grad_()
        loss = reconstruction_loss(self.modules["reconstruct"](inputs), self.batch, self.mask)
        if not self.modules.training:
            return float(loss.detach()), np.zeros(inputs.shape, np.float32)
        loss.backward()
        assert inputs.grad is not None
        return float(loss.detach()), inputs.grad.numpy()

    def update(self, gradient: Array) -> None:
        """Alg. 1, line 32, or Alg. 2, line 18. An encoder of its own also has its own sparsity loss (Alg. 2, l. 17)."""
        back = torch.from_numpy(np.array(gradient))
        if self.bottom.sparsity is not None and self.bottom.sparsity.requires_grad:
            weight = -torch.tensor(self.protocol.lambda_sparse)
            torch.autograd.backward([self.sent, self.bottom.sparsity], [back, weight])
        else:
            self.sent.backward(back)
        self.bottom.sparsity = None
        if self.optimiser is not None:
            self.optimiser.step()

    def parameters(self) -> dict[str, Array]:
        return parameters_of(self.modules)


def make_modules(protocol: TabVFL, party: str, width: int, chunk: int, seed: int) -> nn.ModuleDict:
    """f_bottom_repr and f_bottom_rec of one guest; `chunk` is its part of the decoder's output (IV-A).

    With Local TabNets the chunk is the guest's part of the latent dimension, and it has a decoder of its own (V-A).
    """

    def build() -> nn.ModuleDict:
        if protocol.variant == "tabvfl":
            bottom: Bottom = Extractor(width, protocol.outputs_of(width), fc=protocol.fc, rekeyed=protocol.rekey)
            return nn.ModuleDict({"bottom": bottom, "reconstruct": linear(chunk, width)})
        if protocol.variant == "le":
            return nn.ModuleDict({"bottom": LocalEncoder(width, protocol.shape), "reconstruct": linear(chunk, width)})
        own = replace(protocol.shape, latent=chunk)
        modules = {"bottom": LocalEncoder(width, own), "decoder": own.decoder(), "reconstruct": linear(chunk, width)}
        return nn.ModuleDict(modules)

    return seeded_tabnet(build, seed, "tabvfl", party)


def load(modules: nn.ModuleDict, parameters: Mapping[str, Array]) -> None:
    """Write parameters from another process into modules of the same make."""
    modules.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in parameters.items()})
