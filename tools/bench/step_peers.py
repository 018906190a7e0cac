"""The other side of ``step_speed.py --peer``: ResNet-20 by hand in torch, float and with the quantizers of a peer.

Weights are those of the ONNX file, BatchNormalization folded into them. A peer quantizes the layers that we do, 8 bit
or less, weights per channel and activations per tensor:

- ``inputs``: what a convolution or Linear reads (our table ``academic``);
- ``everything``: every tensor (our table ``onnxruntime-cpu``), but a strided slice once where our file has two, and
  the pool's output once where our file has its reshape as well.

Biases stay float at the peer, ours have quantizers. So the peer has less to do than we have.

- ``brevitas``: scales of weights and activations learned. Its variable ``BREVITAS_JIT=1`` is respected.
- ``quark``: AMD Quark in eager mode. Scales are fixed after calibration: its gradient goes straight through, also
  where the quantizer saturates, so nothing is kept or computed for backward. Its kernels for learned scales are for
  CUDA only (0.13: ``fake_quantize_per_tensor_affine is not implemented on non CUDA-devices``).

Nothing here is a dependency: a peer is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (16, 32, 64)
BLOCKS = 3
PLACEMENTS = {"academic": "inputs", "onnxruntime-cpu": "everything"}
INSTALL = {
    "brevitas": "brevitas",
    "quark": "amd-quark transformers torchao onnxslim",
}


class Parts(Protocol):
    """What a peer makes of layers and tensors."""

    def layer(self, layer: nn.Conv2d | nn.Linear) -> nn.Module:
        """`layer`, with its weight quantized."""

    def tensor(self, *, signed: bool) -> nn.Module:
        """A quantizer of an activation."""

    def prepare(self, module: nn.Module, x: Tensor) -> None:
        """Give the scales their first values."""


class Float:
    """No quantizer."""

    def layer(self, layer: nn.Conv2d | nn.Linear) -> nn.Module:
        return layer

    def tensor(self, *, signed: bool) -> nn.Module:
        return nn.Identity()

    def prepare(self, module: nn.Module, x: Tensor) -> None: ...


class Brevitas:
    """Xilinx/brevitas: ``scaled_int.py``, with parameters as scales of weights as well."""

    def __init__(self, weight_bits: int, activation_bits: int) -> None:
        self._layers, self._quantizers = _load("brevitas", "brevitas.nn"), _load("brevitas", "brevitas.quant")
        self._weight_bits, self._activation_bits = weight_bits, activation_bits

    def layer(self, layer: nn.Conv2d | nn.Linear) -> nn.Module:
        how: dict[str, Any] = {
            "bias": True,
            "weight_quant": self._quantizers.Int8WeightPerChannelFloat,
            "weight_bit_width": self._weight_bits,
            "weight_scaling_impl_type": "parameter_from_stats",
        }
        made: nn.Module
        if isinstance(layer, nn.Linear):
            made = self._layers.QuantLinear(layer.in_features, layer.out_features, **how)
        else:
            how |= {"stride": layer.stride, "padding": layer.padding}
            made = self._layers.QuantConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, **how)
        made.load_state_dict(layer.state_dict(), strict=False)  # its own keys are scales, which come from the weights
        return made

    def tensor(self, *, signed: bool) -> nn.Module:
        kind = self._quantizers.Int8ActPerTensorFloat if signed else self._quantizers.Uint8ActPerTensorFloat
        made: nn.Module = self._layers.QuantIdentity(
            act_quant=kind, bit_width=self._activation_bits, collect_stats_steps=1
        )
        return made

    @torch.no_grad()
    def prepare(self, module: nn.Module, x: Tensor) -> None:
        module.train()
        for _ in range(2):  # the first collects, the second turns what was collected into the parameter
            module(x)


class Quark:
    """AMD Quark: its modules for eager mode."""

    def __init__(self, weight_bits: int, activation_bits: int) -> None:
        self._config = _load("quark", "quark.torch.quantization.config.config")
        self._type = _load("quark", "quark.torch.quantization.config.type")
        self._observers = _load("quark", "quark.torch.quantization.observer.observer")
        self._quantize = _load("quark", "quark.torch.quantization.tensor_quantize").FakeQuantizeBase
        self._layers = _load("quark", "quark.torch.quantization.nn.modules")
        self._weight_bits, self._activation_bits = weight_bits, activation_bits

    def _spec(self, bits: int, *, signed: bool, per_channel: bool) -> Any:
        scheme, observers = self._type.QSchemeType, self._observers
        return self._config.QTensorConfig(
            dtype=self._type.Dtype.from_str(f"{'int' if signed else 'uint'}{bits}"),
            observer_cls=observers.PerChannelMinMaxObserver if per_channel else observers.PerTensorMinMaxObserver,
            qscheme=scheme.per_channel if per_channel else scheme.per_tensor,
            ch_axis=0 if per_channel else None,
            symmetric=signed,
            scale_type=self._type.ScaleType.float,
            round_method=self._type.RoundType.half_even,
            is_dynamic=False,
        )

    def layer(self, layer: nn.Conv2d | nn.Linear) -> nn.Module:
        config = self._config.QLayerConfig(weight=self._spec(self._weight_bits, signed=True, per_channel=True))
        kind = self._layers.QuantLinear if isinstance(layer, nn.Linear) else self._layers.QuantConv2d
        made: nn.Module = kind.from_float(layer, config)
        return made

    def tensor(self, *, signed: bool) -> nn.Module:
        made: nn.Module = self._quantize.get_fake_quantize(
            self._spec(self._activation_bits, signed=signed, per_channel=False)
        )
        return made

    @torch.no_grad()
    def prepare(self, module: nn.Module, x: Tensor) -> None:
        module.train()
        module(x)
        for quantizer in module.modules():
            if isinstance(quantizer, self._quantize):
                quantizer.disable_observer()


class Block(nn.Module):
    """Two convolutions and the way around them; a shortcut with stride has no weights: it drops pixels, pads channels."""

    def __init__(self, layers: Iterator[nn.Module], parts: Parts, *, everything: bool, stride: int, pad: int) -> None:
        super().__init__()
        self.entry, self.first = parts.tensor(signed=False), parts.layer(_next(layers))
        self.inside, self.second = parts.tensor(signed=False), parts.layer(_next(layers))
        self.everything, self.stride, self.pad = everything, stride, pad
        if everything:
            self.branch = parts.tensor(signed=True)
        if everything and stride > 1:
            self.sampled, self.padded = parts.tensor(signed=False), parts.tensor(signed=False)

    def forward(self, x: Tensor) -> Tensor:
        """The rectified sum, (N, C, H, W), not quantized yet."""
        read = self.entry(x)
        y = self.second(self.inside(functional.relu(self.first(read))))
        y = self.branch(y) if self.everything else y
        return functional.relu(y + self.shortcut(read if self.everything else x))

    def shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        x = x[:, :, :: self.stride, :: self.stride]
        x = self.sampled(x) if self.everything else x
        x = functional.pad(x, (0, 0, 0, 0, self.pad, self.pad))
        return self.padded(x) if self.everything else x


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR-10 without BatchNormalization, of the layers given in order."""

    def __init__(self, layers: list[nn.Module], parts: Parts, *, everything: bool) -> None:
        super().__init__()
        order = iter(layers)
        self.input, self.stem = parts.tensor(signed=True), parts.layer(_next(order))
        blocks, before = [], WIDTHS[0]
        for width in WIDTHS:
            for _ in range(BLOCKS):
                stride, pad = (1, 0) if width == before else (2, (width - before) // 2)
                blocks.append(Block(order, parts, everything=everything, stride=stride, pad=pad))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.last = parts.tensor(signed=False) if everything else nn.Identity()
        self.pooled, self.linear = parts.tensor(signed=False), parts.layer(_next(order))
        self.logits = parts.tensor(signed=True) if everything else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, 10) of images (N, 3, 32, 32)."""
        y = self.last(self.blocks(functional.relu(self.stem(self.input(x)))))
        y = self.pooled(functional.avg_pool2d(y, 8).flatten(1))
        logits: Tensor = self.logits(self.linear(y))
        return logits


def modules(peer: str, path: Path, *, backend: str, bits: tuple[int, int], x: Tensor) -> tuple[nn.Module, nn.Module]:
    """The float module and the quantized one of `peer`, in training and channels_last.

    Args:
        peer: of :data:`INSTALL`.
        path: the float file of ResNet-20 with folded BatchNormalization.
        backend: of :data:`PLACEMENTS`; says which tensors are quantized.
        bits: of weights and of activations.
        x: images (N, 3, 32, 32) for the first values of the scales.

    Raises:
        SystemExit: the peer is not installed, or cannot be set beside this file or table.
    """
    if backend not in PLACEMENTS:
        raise SystemExit(f"--peer: no placement like that of {backend}; use one of {', '.join(PLACEMENTS)}")
    made = []
    for parts in (Float(), _parts(peer, *bits)):
        module = ResNet20(_layers(path), parts, everything=PLACEMENTS[backend] == "everything")
        made.append(module.to(memory_format=torch.channels_last).train())  # type: ignore[call-overload]
        parts.prepare(module, x)
    return made[0], made[1]


def _parts(peer: str, weight_bits: int, activation_bits: int) -> Parts:
    return (Brevitas if peer == "brevitas" else Quark)(weight_bits, activation_bits)


def _layers(path: Path) -> list[nn.Module]:
    """Convolutions and the Linear of the file, in its order, with its weights."""
    graph = onnx.load(path).graph
    values = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in graph.initializer}
    layers: list[nn.Module] = []
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        weight, bias = (values[name] for name in node.input[1:3])
        layer: nn.Module
        if node.op_type == "Gemm":
            layer = nn.Linear(weight.shape[1], weight.shape[0])
        else:
            stride = next(a.ints[0] for a in node.attribute if a.name == "strides")
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], stride, padding=1)
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
    if len(layers) != 2 + 2 * BLOCKS * len(WIDTHS):
        raise SystemExit(f"--peer: {path} has {len(layers)} layers, ResNet-20 has {2 + 2 * BLOCKS * len(WIDTHS)}")
    return layers


def _next(layers: Iterator[nn.Module]) -> Any:
    return next(layers)


def _load(peer: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(
            f"--peer {peer}: {error}; pip install {INSTALL[peer]} (a folder on PYTHONPATH will do)"
        ) from None
