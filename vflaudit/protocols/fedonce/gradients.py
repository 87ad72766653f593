"""Forward passes and (per-sample clipped) gradients, with all parameters of a network in one vector.

Training only ever needs sum_i s_i J_i^T delta_i: delta_i is the gradient of sample i's loss at the outputs, and s_i
clips the norm of that sample's gradient. In a linear layer the gradient of one sample is the outer product of delta and
the layer's input: its norm is a product of two norms, and no per-sample gradient is ever formed (Goodfellow 2015).
`benchmarks/dp.py` compares this with Opacus and torch.func.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from vflaudit.core.dataset import Array
from vflaudit.protocols.fedonce.networks import HostNetwork


class Network(Protocol):
    """A network as a function of one parameter vector."""

    dtype: Any

    def forward(self, parameters: Array, inputs: Array, side: Array | None = None) -> tuple[Array, Any]:
        """Outputs, and what `gradient` needs to go back."""

    def gradient(self, parameters: Array, tape: Any, delta: Array, clip: float | None = None) -> tuple[Array, Array]:
        """sum_i s_i J_i^T delta_i, and the gradient at the side input (unclipped)."""


def network_of(module: nn.Module) -> Network:
    """The fastest exact way for this module: closed form in NumPy for FC, autograd for convolutions."""
    dense = all(isinstance(layer, nn.Linear | nn.ReLU | nn.Tanh) for layer in _layers(module)[0])
    return Dense(module) if dense else Convolutional(module)


def outputs_of(network: Network, parameters: Array, inputs: Array, side: Array | None = None) -> Array:
    """Outputs alone, a thousand rows at a time: a forward pass keeps what `gradient` would need."""
    parts = []
    for start in range(0, max(1, len(inputs)), 1000):
        rows = slice(start, start + 1000)
        some = np.asarray(inputs[rows], dtype=network.dtype)
        parts.append(network.forward(parameters, some, None if side is None else side[rows])[0])
    return np.concatenate(parts)


def vector_of(module: nn.Module, dtype: Any = np.float64) -> Array:
    """A module's parameters as one vector, in PyTorch's order."""
    return parameters_to_vector(module.parameters()).detach().numpy().astype(dtype)


def write(module: nn.Module, parameters: Array) -> None:
    """Put a vector back into the module."""
    vector_to_parameters(torch.from_numpy(np.array(parameters, dtype=np.float32)), module.parameters())


def _layers(module: nn.Module) -> tuple[list[nn.Module], int | None]:
    """Layers in order, and before which of them the side input joins."""
    if isinstance(module, HostNetwork):
        return [*module.own, *module.aggregate], len(module.own)
    assert isinstance(module, nn.Sequential)
    return list(module), None


class Dense:
    """Linear layers with ReLU or tanh after some of them, in float64.

    All arrays may have leading axes: (networks, parameters) and (networks, rows, columns) are many networks at once.
    """

    dtype = np.float64

    def __init__(self, module: nn.Module) -> None:
        layers, joint = _layers(module)
        self.shapes: list[tuple[int, int, int]] = []  # start in the vector, outputs, inputs
        self.activations: list[str] = []
        self.joint: int | None = None  # the layer that also reads the side input
        at = 0
        for place, layer in enumerate(layers):
            if isinstance(layer, nn.Linear):
                if joint is not None and place >= joint and self.joint is None:
                    self.joint = len(self.shapes)
                self.shapes.append((at, layer.out_features, layer.in_features))
                self.activations.append("")
                at += layer.out_features * (layer.in_features + 1)
            else:
                self.activations[-1] = "relu" if isinstance(layer, nn.ReLU) else "tanh"
        self.size = at

    def _weights(self, parameters: Array, layer: int) -> tuple[Array, Array]:
        start, out, width = self.shapes[layer]
        middle = start + out * width
        weight = parameters[..., start:middle].reshape(*parameters.shape[:-1], out, width)
        return weight, parameters[..., middle : middle + out]

    def forward(
        self, parameters: Array, inputs: Array, side: Array | None = None
    ) -> tuple[Array, list[tuple[Array, Array]]]:
        """Outputs, and every layer's input and output."""
        tape = []
        for layer, activation in enumerate(self.activations):
            if layer == self.joint and side is not None:
                inputs = np.concatenate([inputs, side], axis=-1)
            weight, bias = self._weights(parameters, layer)
            outputs = inputs @ weight.swapaxes(-1, -2)
            outputs += bias[..., None, :]
            if activation == "relu":
                np.maximum(outputs, 0, out=outputs)
            elif activation == "tanh":
                np.tanh(outputs, out=outputs)
            tape.append((inputs, outputs))
            inputs = outputs
        return inputs, tape

    def gradient(
        self, parameters: Array, tape: list[tuple[Array, Array]], delta: Array, clip: float | None = None
    ) -> tuple[Array, Array]:
        """sum_i s_i J_i^T delta_i with s_i = 1 / max(1, norm_i / clip), and the gradient at the side input."""
        deltas, squared, side = [], np.zeros(delta.shape[:-1]), delta[..., :0]
        for layer in reversed(range(len(self.shapes))):
            inputs, outputs = tape[layer]
            if self.activations[layer] == "relu":
                delta = delta * (outputs > 0)
            elif self.activations[layer] == "tanh":
                delta = delta * (1 - outputs * outputs)
            deltas.append(delta)
            if clip is not None:
                squared += np.einsum("...j,...j", delta, delta) * (np.einsum("...j,...j", inputs, inputs) + 1)
            if layer:
                delta = delta @ self._weights(parameters, layer)[0]
                if layer == self.joint:
                    width = self.shapes[layer - 1][1]
                    delta, side = delta[..., :width], delta[..., width:]
        gradient = np.empty((*parameters.shape[:-1], self.size))
        scale = None if clip is None else 1 / np.maximum(1, np.sqrt(squared) / clip)
        for layer, delta in enumerate(reversed(deltas)):
            weight, bias = self._weights(gradient, layer)
            scaled = delta if scale is None else delta * scale[..., None]
            np.matmul(scaled.swapaxes(-1, -2), tape[layer][0], out=weight)
            scaled.sum(axis=-2, out=bias)
        return gradient, side


class Convolutional:
    """Any stack of linear and convolutional layers, through autograd, in float32.

    With a clip, one backward pass gives the gradients at the layers' outputs; per-sample gradients of a convolution are
    then products of these with the unfolded inputs, and those of a linear layer are outer products.
    """

    dtype = np.float32

    def __init__(self, module: nn.Module) -> None:
        self.layers, self.joint = _layers(module)
        self.module = module
        self.parameters = list(module.parameters())
        self.size = sum(parameter.numel() for parameter in self.parameters)

    def forward(self, parameters: Array, inputs: Array, side: Array | None = None) -> tuple[Array, Any]:
        """Outputs, and the inputs and outputs of the layers that have parameters."""
        write(self.module, parameters)
        values, joined, tape = torch.from_numpy(np.asarray(inputs, dtype=np.float32)), None, []
        for place, layer in enumerate(self.layers):
            if place == self.joint and side is not None:
                joined = torch.from_numpy(np.array(side, dtype=np.float32)).requires_grad_()
                values = torch.cat([values, joined], dim=1)
            before, values = values, layer(values)
            if isinstance(layer, nn.Linear | nn.Conv2d):
                tape.append((layer, before.detach(), values))
        return values.detach().numpy().astype(np.float64), (tape, values, joined)

    def gradient(self, parameters: Array, tape: Any, delta: Array, clip: float | None = None) -> tuple[Array, Array]:
        """As `Dense.gradient`."""
        steps, outputs, joined = tape
        wanted = self.parameters if clip is None else [values for _, _, values in steps]
        back = torch.from_numpy(np.asarray(delta, dtype=np.float32))
        found = torch.autograd.grad(outputs, [*wanted, *([] if joined is None else [joined])], back)
        side = delta[:, :0] if joined is None else found[-1].numpy().astype(np.float64)
        if clip is None:
            return torch.cat([part.reshape(-1) for part in found[: len(wanted)]]).numpy(), side
        weights = [_per_sample(layer, before, at) for (layer, before, _), at in zip(steps, found, strict=False)]
        norms = sum((w.square().sum(dim=1) + b.square().sum(dim=1)) for w, b in weights)
        assert isinstance(norms, torch.Tensor)
        scale = 1 / torch.clamp(norms.sqrt() / clip, min=1)
        return torch.cat([part for pair in weights for part in (scale @ pair[0], scale @ pair[1])]).numpy(), side


def _per_sample(layer: nn.Module, before: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of one layer's weight and bias, one row per sample."""
    if isinstance(layer, nn.Linear):
        return torch.einsum("bo,bi->boi", delta, before).flatten(1), delta
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    unfolded = nn.functional.unfold(before, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    flat = delta.flatten(2)
    return torch.einsum("bol,bil->boi", flat, unfolded).flatten(1), flat.sum(dim=2)
