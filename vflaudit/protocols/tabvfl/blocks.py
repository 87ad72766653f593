"""What the parties compute, made of TabNet's blocks: bottoms at the guests, tops at the host (IV-A, Fig. 3).

The blocks are those of `pytorch_tabnet.tab_network`. The paper does not print TabNet's own parameters; where a name has
a default here or in `protocol.py`, it is the one of the authors' published code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from vflaudit.core.randomness import child_seed
from vflaudit.errors import InputError

Part = torch.Tensor
M = TypeVar("M", bound=nn.Module)
CONSTANT = 1e-9  # a variance below this is a column that stands still


def tab_network() -> Any:
    """`pytorch_tabnet.tab_network`, imported when a TabNet is first built."""
    try:
        from pytorch_tabnet import tab_network
    except ImportError:
        raise InputError("tabvfl needs TabNet's blocks: pip install 'vflaudit[tabnet]'") from None
    return tab_network


def seeded_tabnet(build: Callable[[], M], seed: int, *path: str) -> M:
    """Build a module with TabNet's own initialisation, drawn from a named stream; global randomness stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, *path, "init"))
        return build()


@dataclass(frozen=True)
class Shape:
    """TabNet's parameters: n_d (the latent dimension), n_a, decision steps, gamma, momentum of its batch norms."""

    latent: int
    attention: int
    steps: int
    gamma: float
    momentum: float

    def encoder(self, width: int, *, normalise: bool) -> nn.Module:
        """TabNet's encoder; without `normalise` its first batch norm is left out (PartialEnc, Table I)."""
        encoder = tab_network().TabNetEncoder(
            input_dim=width,
            output_dim=width,
            n_d=self.latent,
            n_a=self.attention,
            n_steps=self.steps,
            gamma=self.gamma,
            n_independent=1,
            n_shared=1,
            epsilon=1e-9,
            momentum=self.momentum,
            group_attention_matrix=torch.eye(width),
        )
        if not normalise:
            encoder.initial_bn = nn.Identity()
        return encoder

    def decoder(self) -> nn.Module:
        """TabNet's decoder without its last layer (PartialDec, Table I): it gives as many numbers as the latent has."""
        decoder = tab_network().TabNetDecoder(
            input_dim=self.latent, n_d=self.latent, n_steps=self.steps, momentum=self.momentum
        )
        decoder.reconstruction_layer = nn.Identity()
        return decoder


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A fully connected layer as TabNet has them: no bias, its own initialisation."""
    layer = nn.Linear(inputs, outputs, bias=False)
    tab_network().initialize_non_glu(layer, inputs, outputs)
    return layer


def reconstruction_loss(found: Part, values: Part, mask: Part) -> torch.Tensor:
    """TabNet's masked squared error: each column in units of its variance in the batch, a mean over masked cells.

    As `pytorch_tabnet.metrics.UnsupervisedLoss`, but for columns that are constant in the batch: there it divides by
    the batch mean, which may be negative or next to nothing; here by one.
    """
    variance = values.var(dim=0, correction=min(1, len(values) - 1))
    unit = torch.where(variance > CONSTANT, variance, torch.ones_like(variance))
    errors = ((found - values) * mask) ** 2 @ (1 / unit)
    return (errors / (mask.sum(dim=1) + 1e-9)).mean()


class Bottom(nn.Module):
    """What a guest computes. `forward` is fine-tuning and serving, `masked` is pretraining; `sparsity` is for later."""

    sparsity: torch.Tensor | None = None  # M_Loss of the last forward pass, where the encoder is at the guest
    sends_mask = False

    def masked(self, values: Part, mask: Part, fill: Part | float = 0.0) -> Part:
        """What is sent about these values, of which the mask hides some: `fill` stands there instead."""
        raise NotImplementedError

    def shape(self, *, masked: bool) -> tuple[int, ...]:
        """Numbers sent about each row."""
        raise NotImplementedError


class Extractor(Bottom):
    """f_bottom_repr: batch norm and, to hide what it leaves as it is, a fully connected layer (IV-A)."""

    sends_mask = True

    turn: torch.Tensor

    def __init__(self, width: int, outputs: int, *, fc: bool, rekeyed: bool = False) -> None:
        super().__init__()
        self.outputs = outputs
        self.bn = nn.BatchNorm1d(width, momentum=0.01)
        self.fc: nn.Module = linear(width, outputs) if fc else nn.Identity()
        self.rekeyed = rekeyed
        if rekeyed:
            self.register_buffer("turn", torch.eye(outputs))  # a secret rotation, which the guest changes

    def forward(self, values: Part) -> Part:
        sent = self.fc(self.bn(values))
        return sent @ self.turn if self.rekeyed else sent

    def masked(self, values: Part, mask: Part, fill: Part | float = 0.0) -> Part:
        return self(values * (1 - mask) + fill * mask)

    def shape(self, *, masked: bool) -> tuple[int, ...]:
        return (self.outputs,)


class LocalEncoder(Bottom):
    """A whole TabNet encoder at the guest (TabVFL-LE and Local TabNets, V-A)."""

    def __init__(self, width: int, of: Shape) -> None:
        super().__init__()
        self.of = of
        self.encoder = of.encoder(width, normalise=True)

    def forward(self, values: Part) -> Part:
        steps, self.sparsity = self.encoder(values)
        return torch.stack(steps, dim=1).sum(dim=1)

    def masked(self, values: Part, mask: Part, fill: Part | float = 0.0) -> Part:
        """The outputs of all decision steps: (rows, steps, latent)."""
        steps, _ = self.encoder(values * (1 - mask) + fill * mask, prior=1 - mask)
        return torch.stack(steps, dim=1)

    def shape(self, *, masked: bool) -> tuple[int, ...]:
        return (self.of.steps, self.of.latent) if masked else (self.of.latent,)


class Absent(nn.Module):
    """A guest whose model nobody has any more counts as zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, values: Part) -> Part:
        return values.new_zeros((len(values), self.width))


class Head(nn.Module):
    """The host's side of fine-tuning: what arrives becomes one latent vector, and `final_mapping` predicts."""

    def __init__(self, latent: int, outputs: int) -> None:
        super().__init__()
        self.final_mapping = linear(latent, outputs)

    def steps(self, parts: Sequence[Part], masks: Sequence[Part]) -> list[Part]:
        """Pretraining: the outputs of the decision steps, for the decoder."""
        raise NotImplementedError

    def latent(self, parts: Sequence[Part]) -> tuple[Part, torch.Tensor | None]:
        """The latent vectors, and M_Loss where the encoder is here."""
        raise NotImplementedError

    def forward(self, parts: Sequence[Part]) -> Part:
        return self.final_mapping(self.latent(parts)[0])


class ConcatHead(Head):
    """TabVFL: PartialEnc over everybody's intermediate results side by side (Alg. 1, lines 15-17; Alg. 2, line 13)."""

    def __init__(self, widths: Sequence[int], of: Shape, outputs: int) -> None:
        super().__init__(of.latent, outputs)
        self.widths = tuple(widths)
        self.partial_encoder = of.encoder(sum(widths), normalise=False)

    def steps(self, parts: Sequence[Part], masks: Sequence[Part]) -> list[Part]:
        """Masked features are told to the attention as its prior, as in TabNet."""
        prior = 1 - torch.cat([_as_wide(mask, width) for mask, width in zip(masks, self.widths, strict=True)], dim=1)
        return self.partial_encoder(torch.cat(list(parts), dim=1), prior=prior)[0]

    def latent(self, parts: Sequence[Part]) -> tuple[Part, torch.Tensor | None]:
        steps, sparsity = self.partial_encoder(torch.cat(list(parts), dim=1))
        return torch.stack(steps, dim=1).sum(dim=1), sparsity


class SumHead(Head):
    """TabVFL-LE: every decision step is the sum over the guests, and so is the latent vector (V-A)."""

    def steps(self, parts: Sequence[Part], masks: Sequence[Part]) -> list[Part]:
        return list(torch.stack(list(parts)).sum(dim=0).unbind(dim=1))

    def latent(self, parts: Sequence[Part]) -> tuple[Part, torch.Tensor | None]:
        return torch.stack(list(parts)).sum(dim=0), None


class JoinHead(Head):
    """Local TabNets: the guests' latent vectors side by side, and one fully connected layer (V-A)."""

    def latent(self, parts: Sequence[Part]) -> tuple[Part, torch.Tensor | None]:
        return torch.cat(list(parts), dim=1), None


def _as_wide(mask: Part, width: int) -> Part:
    """The mask where the FC layer keeps the width; a narrower one has none of its own: the masked share stands in."""
    return mask if mask.shape[1] == width else mask.mean(dim=1, keepdim=True).expand(-1, width)
