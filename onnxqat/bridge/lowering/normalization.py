"""Normalization layers.

Running statistics of BatchNormalization are buffers; its call ends in ``training, momentum, epsilon`` so that
training code can switch it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from onnxqat.bridge.functional import safe_gradients
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import TORCH_DTYPES, Const
from onnxqat.bridge.speed import rematerialize
from onnxqat.errors import UsageError
from onnxqat.graph import batchnorm, qdq


def normalize_batch(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    momentum: float,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BatchNormalization in training mode: statistics of the batch, and the running ones moved towards them.

    The variance is that of the population. Half floats are reduced in float32. `x` with one axis has one channel.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1] + [1] * (x.dim() - 2) if x.dim() > 1 else [-1]
    batch_mean = wide.mean(axes).reshape(mean.shape)
    centered = wide - batch_mean.reshape(shape)
    batch_variance = centered.square().mean(axes).reshape(variance.shape)
    factor = scale.reshape(shape) / torch.sqrt(batch_variance.reshape(shape) + epsilon)
    y = (centered * factor + bias.reshape(shape)).to(x.dtype)
    running_mean = (mean * momentum + batch_mean * (1.0 - momentum)).to(mean.dtype)
    running_variance = (variance * momentum + batch_variance * (1.0 - momentum)).to(variance.dtype)
    return y, running_mean, running_variance


class BatchNorm(nn.Module):
    """BatchNormalization with stored statistics; ``.train()`` takes the batch's and moves the stored ones towards them.

    As ``nn.BatchNorm2d``, but the tensors are those of the imported module, which has them under their ONNX names.
    A stored statistic that is a Parameter, as it is a weight elsewhere, gets no gradient here and is not moved.

    Attributes:
        frozen: whether the stored statistics are taken in training too, and stay as they are.
        positive: ONNX name of a gamma of which the absolute value counts, and is written back. Behind a layer with
            quantized weights the sign of gamma is that of the codes, of which -8..7 cannot take every other one; a
            weight can be negative instead.
    """

    def __init__(self, momentum: float, epsilon: float, positive: str | None = None) -> None:
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.positive = positive
        self.frozen = False

    def forward(
        self,
        x: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor,
        *,
        remade: bool = False,
    ) -> torch.Tensor:
        """(batch, channels, ...) -> the same; `remade`, as :mod:`onnxqat.bridge.speed.recomputed_batchnorm` asks for it."""
        if self.positive is not None:
            scale = positive(scale)
        live = self.training and not self.frozen
        if live:
            needs_values(x, scale)
        # Exporters store equal tensors once, and a beta of zeros is then also the mean: it trains and is no statistic.
        mean, variance = (v if not v.requires_grad else v.detach().clone() for v in (mean, variance))
        result = functional.batch_norm(x, mean, variance, scale, bias, live, self.momentum, self.epsilon)
        if remade:
            statistics = () if live else (mean, variance)
            rematerialize.note(result, self._recomputed, x, scale, bias, *statistics)
        return result

    def _recomputed(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *statistics: torch.Tensor
    ) -> torch.Tensor:
        """Compute the result of forward again, by the statistics of `x` where none are given."""
        mean, variance = statistics or (None, None)
        return functional.batch_norm(x, mean, variance, scale, bias, not statistics, 0.0, self.epsilon)

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        frozen = ", frozen" if self.frozen else ""
        return f"momentum={self.momentum}, epsilon={self.epsilon}{frozen}"


def needs_values(x: torch.Tensor, scale: torch.Tensor) -> None:
    """Refuse a batch with one value a channel, which has no statistics."""
    if x.numel() == scale.numel():
        raise UsageError(
            "option-invalid",
            "BatchNormalization needs more than one value a channel for statistics of a batch",
            hint="train with larger batches, or with frozen statistics",
        )


def positive(scale: torch.Tensor) -> torch.Tensor:
    """The absolute value, with the gradient -1 at 0, so that a channel can come to life; one operation each way."""
    return functional.leaky_relu(scale, -1.0)


def normalize_by_statistics(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """BatchNormalization with statistics that are computed, and so get gradients as well.

    A vector is one channel; statistics of more than one axis are those of each element (``spatial=0``).
    """
    shape = [1, -1] + [1] * (x.dim() - 2) if x.dim() > 1 else [-1]
    shape = [1, *mean.shape] if mean.dim() > 1 else shape
    factor = scale / torch.sqrt(variance + epsilon)
    return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)).to(x.dtype)


def batch_normalization(n: NodeView) -> Lowered:
    """BatchNormalization 1 to 15, with ``training_mode`` since 14.

    Refused: training before 14, whose definition is not complete.
    """
    if n.opset < 7 and not n.attr("is_test", 0):
        raise n.refuse("is_test=0")
    momentum, epsilon = n.attr("momentum", 0.9), n.attr("epsilon", 1e-5)
    x, scale, bias, mean, variance = n.tensor(0), n.tensor(1), n.tensor(2), n.buffer(3), n.buffer(4)
    if n.attr("training_mode", 0):
        three = n.call(normalize_batch, x, scale, bias, mean, variance, momentum, epsilon)
        return tuple(n.item(three, i) if n.wants(i) else None for i in range(3))
    if any(n.wants(i) for i in range(1, 5)):
        raise n.refuse("outputs of training mode")
    of_channels = bool(n.attr("spatial", 1)) and n.rank(0) != 1  # what torch's own has
    if not (of_channels and isinstance(n.value(3), Const) and isinstance(n.value(4), Const)):
        return n.call(normalize_by_statistics, x, scale, bias, mean, variance, epsilon)
    module = BatchNorm(1.0 - momentum, epsilon, _positive(n))
    path = n.builder.add_module(f"{n.node.outputs[0].name}_batchnorm", module)
    return n.builder.emit("call_module", path, (x, mean, variance, scale, bias), name=n.base)


def _positive(n: NodeView) -> str | None:
    """The name of gamma, where that is to stay positive: behind quantized weights, if it is so in the file."""
    layer, gamma = batchnorm.layer(n.node), n.value(1)
    weight = layer.inputs[1] if layer is not None else None
    if weight is None or not qdq.is_dequantize(weight.producer()) or not isinstance(gamma, Const):
        return None
    return None if np.signbit(gamma.array.astype(np.float32)).any() else gamma.name


def normalize_instances(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Normalize every channel of every sample over its spatial axes; one element gives the bias."""
    return torch.group_norm(x, x.shape[1], scale, bias, epsilon)


def instance_normalization(n: NodeView) -> Lowered:
    """InstanceNormalization 6 to 22; always statistics of the instance, never running ones."""
    return n.call(normalize_instances, n.tensor(0), n.tensor(1), n.tensor(2), n.attr("epsilon", 1e-5))


def normalize_layers(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    axis: int,
    epsilon: float,
    stash: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """LayerNormalization with its mean and inverse standard deviation, computed in type `stash`."""
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(stash)
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    normal = ((wide - mean) * inverse).to(x.dtype) * scale
    return (normal if bias is None else normal + bias), mean, inverse


def layer_normalization(n: NodeView) -> Lowered:
    """LayerNormalization 17, with its optional outputs Mean and InvStdDev."""
    axis, epsilon = n.axis(-1), n.attr("epsilon", 1e-5)
    x, scale, bias = n.tensor(0), n.tensor(1), n.optional(2)
    rank, dims = n.rank(0), n.dims(1)
    if not rank or not all(_spreads(n, index) for index in (1, 2)):
        raise n.refuse("a scale or bias that does not spread over the normalized axes")
    known = rank is not None and dims is not None and len(dims) == rank - axis % rank and None not in dims
    same = known and _equal_tail(n, len(dims or ()))
    if same and not n.wants(1) and not n.wants(2):
        return n.call(functional.layer_norm, x, list(dims or ()), scale, bias, epsilon)
    stash = TORCH_DTYPES[_stash_type(n)]
    three = n.call(normalize_layers, x, scale, bias, axis, epsilon, stash)
    return tuple(n.item(three, i) for i in range(3))


def _spreads(n: NodeView, index: int) -> bool:
    """Return True when input `index` broadcasts to input 0, as far as sizes are known; runtimes read beyond its end."""
    x, own = n.dims(0), n.dims(index) if n.has(index) else None
    if x is None or own is None:
        return True
    pairs = zip(reversed(own), reversed(x), strict=False)
    return len(own) <= len(x) and all(a in (1, b) or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)


def _equal_tail(n: NodeView, length: int) -> bool:
    x, scale = n.dims(0), n.dims(1)
    bias = n.dims(2) if n.has(2) else scale
    return x is not None and x[-length:] == scale and bias == scale and n.dtype(0) == n.dtype(1)


def _stash_type(n: NodeView) -> Any:
    import onnx_ir as ir

    return ir.DataType(n.attr("stash_type", 1))


def normalize_groups(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, groups: int, epsilon: float, per_group: bool
) -> torch.Tensor:
    """GroupNormalization; version 18 has one scale per group, version 21 one per channel."""
    shape = x.shape
    grouped = x.reshape(shape[0], groups, -1).to(torch.float32)
    centered = grouped - grouped.mean(-1, keepdim=True)
    normal = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + epsilon)
    normal = normal.to(x.dtype)
    if per_group:
        return (normal * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(shape)
    per_channel = [1, -1] + [1] * (len(shape) - 2)
    return normal.reshape(shape) * scale.reshape(per_channel) + bias.reshape(per_channel)


def group_normalization(n: NodeView) -> Lowered:
    """GroupNormalization 18 and 21."""
    x, scale, bias = n.tensor(0), n.tensor(1), n.tensor(2)
    groups, epsilon = int(n.attr("num_groups")), n.attr("epsilon", 1e-5)
    if n.opset >= 21 and n.dtype(0) == n.dtype(1):
        return n.call(functional.group_norm, x, groups, scale, bias, epsilon)
    return n.call(normalize_groups, x, scale, bias, groups, epsilon, n.opset < 21)


def normalize_rms(x: torch.Tensor, scale: torch.Tensor, axis: int, epsilon: float, stash: torch.dtype) -> torch.Tensor:
    """Divide by the root mean square over the axes from `axis` on."""
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(stash)
    return (wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)).to(x.dtype) * scale


def rms_normalization(n: NodeView) -> Lowered:
    """RMSNormalization 23."""
    stash = TORCH_DTYPES[_stash_type(n)]
    return n.call(normalize_rms, n.tensor(0), n.tensor(1), n.axis(-1), n.attr("epsilon", 1e-5), stash)


def simplified_layer_normalization(n: NodeView) -> Lowered:
    """SimplifiedLayerNormalization 1, onnxruntime's name of RMSNormalization; the saved deviation is refused."""
    if n.wants(1):
        raise n.refuse("the saved deviation")
    return rms_normalization(n)


def normalize_local_response(x: torch.Tensor, size: int, alpha: float, beta: float, bias: float) -> torch.Tensor:
    """Divide by a power of the sum of squares over neighbouring channels."""
    squares = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
    before = (size - 1) // 2
    padded = functional.pad(squares, [0, 0, before, size - 1 - before])
    mean = functional.avg_pool2d(padded, [size, 1], 1)
    return x / (mean.reshape(x.shape) * alpha + bias).pow(beta)


def lrn(n: NodeView) -> Lowered:
    """LRN 1 and 13."""
    return n.call(
        normalize_local_response,
        n.tensor(0),
        int(n.attr("size")),
        n.attr("alpha", 1e-4),
        n.attr("beta", 0.75),
        n.attr("bias", 1.0),
    )


def divide_by_norm(x: torch.Tensor, axis: int, p: int) -> torch.Tensor:
    """Divide by the p-norm along `axis`; 0 stays 0."""
    norm = x.abs().sum(axis, keepdim=True) if p == 1 else safe_gradients.square_root(x.square().sum(axis, keepdim=True))
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))


def lp_normalization(n: NodeView) -> Lowered:
    """LpNormalization 1 and 22."""
    return n.call(divide_by_norm, n.tensor(0), n.axis(-1), int(n.attr("p", 2)))


def standardize(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """Zero mean and unit variance over `axes`."""
    mean = x.mean(axes, keepdim=True)
    deviation = safe_gradients.square_root(x.square().mean(axes, keepdim=True) - mean.square())
    return (x - mean) / (deviation + 1e-9)


def mean_variance_normalization(n: NodeView) -> Lowered:
    """MeanVarianceNormalization 9 and 13; axes that the input does not have are refused."""
    axes, rank = n.attr("axes", [0, 2, 3]), n.rank(0)
    if rank is not None and not all(-rank <= axis < rank for axis in axes):
        raise n.refuse(f"axes {axes} of an input of {rank} dimensions")
    return n.call(standardize, n.tensor(0), axes)
