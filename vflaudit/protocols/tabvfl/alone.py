"""TabNet at one place: how a guest of Local TabNets pretrains, and how Central TabNet does (V-A)."""

from __future__ import annotations

import torch

from vflaudit.core.dataset import Array, VerticalDataset
from vflaudit.core.randomness import stream
from vflaudit.protocols.tabvfl.blocks import reconstruction_loss
from vflaudit.protocols.tabvfl.guest import Guest
from vflaudit.protocols.tabvfl.loop import fit
from vflaudit.protocols.tabvfl.protocol import TabVFL


def pretrain(protocol: TabVFL, guest: Guest, data: VerticalDataset, seed: int, party: str) -> int:
    """Encoder, decoder and reconstruction of one party together; returns the number of epochs."""

    def loss_of(rows: Array, *, train: bool) -> torch.Tensor:
        guest.represent(rows, masked=True, train=train)
        decoded = guest.modules["decoder"](list(guest.sent.unbind(dim=1)))
        return reconstruction_loss(guest.modules["reconstruct"](decoded), guest.batch, guest.mask)

    def step(rows: Array, epoch: int) -> float:
        loss = loss_of(rows, train=True)
        loss.backward()
        assert guest.optimiser is not None
        guest.optimiser.step()
        return float(loss.detach())

    def validate(epoch: int) -> float:
        with torch.no_grad():
            return -float(loss_of(rows, train=False))

    rows = data.aligned("validation")
    training, rng = protocol.training(finetuning=False), stream(seed, "tabvfl", "batches", party)
    return len(fit(training, data.aligned("train"), rng, step, validate if len(rows) else None))
