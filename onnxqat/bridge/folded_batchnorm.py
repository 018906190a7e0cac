"""BatchNormalization in training where the graph folds it in front of the quantizers (:mod:`onnxqat.graph.folded_batchnorm`).

Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", arXiv 1806.08342, section 3.2.2: what
is rounded is the weight folded with the stored statistics, and what comes out is corrected to those of the batch. The
batch's are taken from the layer's own output, as in torch's ``ConvBn`` modules, not from a second convolution.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, fx

from onnxqat.bridge.importing.builder import Builder
from onnxqat.bridge.importing.values import Const
from onnxqat.bridge.lowering.normalization import BatchNorm, needs_values
from onnxqat.graph import query
from onnxqat.graph.folded_batchnorm import SMALLEST_FACTOR, ComputedFold

VISIBLE = 1e-5
"""Share of its mean below which float32 sums do not show a channel's spread; such a channel keeps its statistics."""


@dataclasses.dataclass(frozen=True)
class WeightFold:
    """Factor that the graph multiplies a weight by, ``gamma / sqrt(variance + epsilon)``; tensors by their ONNX names.

    Attributes:
        folded: the folded weight, which its quantizer reads.
        weight: the weight in front of folding.
        gamma: (channels,).
        variance: the stored variance, (channels,).
        epsilon: added to the variance.
        shape: shape of the factor, which broadcasts with the weight.
    """

    folded: str
    weight: str
    gamma: str
    variance: str
    epsilon: float
    shape: tuple[int, ...]

    def factor(self, gamma: Tensor, variance: Tensor) -> Tensor:
        """The factor, with the bits of the graph's: float32 of :attr:`shape`."""
        return (gamma / torch.sqrt(variance + self.epsilon)).reshape(self.shape)


class FoldedBatchNorm(BatchNorm):
    """BatchNormalization behind a layer that the graph folds it into: identity, but for live statistics in training.

    With ``f = gamma / sqrt(variance + epsilon)`` of the stored statistics the layer gives ``y = f * r + beta - mean * f``,
    where r is what it would give without folding. Statistics of the batch follow from those of y: the variance of r is
    that of y divided by ``f * f``, and its mean is off the stored one by ``(mean of y - beta) / f``. What quantizing the
    bias adds to y counts as a part of beta. Then ::

        (r - batch mean) / sqrt(batch variance + epsilon) * gamma + beta
            = (y - mean of y) * sqrt((variance + epsilon) / (batch variance + epsilon)) + beta

    A channel that does not vary, such as one with gamma 0 or whose weights are all rounded to 0, stays as it is.

    Attributes:
        fold: the fold of the layer's weight; None where it is not known.
    """

    def __init__(self, momentum: float, epsilon: float, fold: WeightFold | None = None) -> None:
        super().__init__(momentum, epsilon)
        self.fold = fold

    def forward(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        scale: Tensor,
        bias: Tensor,
        rounding: Tensor | None = None,
        *,
        remade: bool = False,
    ) -> Tensor:
        """(batch, channels, ...) -> the same; `rounding` is what quantizing adds to the folded bias; all is kept."""
        del remade
        if not self.training or self.frozen:
            return x
        needs_values(x, scale)
        bias = bias if rounding is None else bias + rounding  # what a channel has in the mean
        centre, spread, bessel = self.statistics(x)
        raw, shift, live = self.unfolded(centre, spread, mean, variance, scale, bias)
        ratio = torch.sqrt((variance + self.epsilon) / (raw + self.epsilon))
        offset = torch.where(live, bias - centre * ratio, torch.zeros_like(centre))
        with torch.no_grad():
            mean.add_(shift.to(mean.dtype), alpha=self.momentum)
            unbiased = torch.where(live, raw * bessel, raw)
            variance.lerp_(unbiased.to(variance.dtype), self.momentum)
        shape = [1, -1] + [1] * (x.dim() - 2)
        return (x * ratio.reshape(shape) + offset.reshape(shape)).to(x.dtype)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
        """Mean and variance of each channel, float32, and by what the latter is less than that of the population."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        spread, centre = torch.var_mean(x.float(), axes, correction=0)
        count = x.numel() / x.shape[1]
        return centre, spread, count / (count - 1.0)

    def unfolded(
        self, centre: Tensor, spread: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Derive statistics of the layer without folding from those of the folded output, float32 (channels,) each.

        Returns:
            Its variance; the difference of its mean from the stored mean; and a mask of the channels that vary. The
            others get the stored variance and the difference 0.
        """
        factor = scale / torch.sqrt(variance + self.epsilon)
        live = (spread > (VISIBLE * centre).square()) & (factor.abs() > SMALLEST_FACTOR)
        safe = torch.where(live, factor, torch.ones_like(factor))
        raw = torch.where(live, spread / safe.square(), variance)
        shift = torch.where(live, (centre - bias) / safe, torch.zeros_like(centre))
        return raw, shift, live


class FoldedBatchNorms:
    """Emits the modules of one import.

    Args:
        folds: of the model.
    """

    def __init__(self, folds: list[ComputedFold]) -> None:
        self._folds = {id(fold.layer): fold for fold in folds}
        self._first = {id(fold.arithmetic[0]): fold for fold in folds}
        self._stored: dict[int, tuple[fx.Node, fx.Node]] = {}
        self._weights: dict[int, WeightFold] = {}

    def before(self, builder: Builder, node: ir.Node) -> None:
        """In front of the first node of the arithmetic: statistics and epsilon are buffers.

        The arithmetic reads copies: autograd keeps what it multiplies by, and the module changes the statistics.
        """
        fold = self._first.get(id(node))
        if fold is None:
            return
        mean, variance, _ = (
            builder.tensor(builder.lookup(value), trainable=False) for value in (fold.mean, fold.variance, fold.epsilon)
        )
        self._stored[id(fold)] = (mean, variance)
        self._weights[id(fold)] = _weight_fold(builder, fold)
        for value, stored in ((fold.mean, mean), (fold.variance, variance)):
            builder.values[id(value)] = builder.emit("call_function", torch.clone, (stored,))

    def behind(self, builder: Builder, node: ir.Node) -> None:
        """Behind the layer: what it gives goes through the module."""
        fold = self._folds.get(id(node))
        if fold is None:
            return
        output = fold.layer.outputs[0]
        of_weight = self._weights[id(fold)]
        module = FoldedBatchNorm(1.0 - fold.momentum, of_weight.epsilon, of_weight)
        path = builder.add_module(f"{output.name}_batchnorm", module)
        x = builder.tensor(builder.lookup(output))
        gamma, beta = (builder.tensor(builder.lookup(value)) for value in (fold.gamma, fold.beta))
        arguments = [x, *self._stored[id(fold)], gamma, beta]
        used, exact = (
            builder.tensor(builder.lookup(v)) for v in (fold.layer.inputs[2], fold.folded_bias) if v is not None
        )
        if used is not exact:
            arguments.append(builder.emit("call_function", operator.sub, (used, exact)))
        made = builder.emit("call_module", path, arguments)
        x.meta.pop("onnx_name", None)
        builder.tensor_nodes.pop(str(output.name), None)
        builder.define(output, made)


def _weight_fold(builder: Builder, fold: ComputedFold) -> WeightFold:
    weight, gamma, variance, epsilon = (
        cast(Const, builder.lookup(value)) for value in (fold.weight, fold.gamma, fold.variance, fold.epsilon)
    )
    reshape = next(node for node in fold.arithmetic if node.op_type == "Reshape")
    shape = np.asarray(query.constant_array(reshape.inputs[1])).tolist()
    return WeightFold(
        str(fold.folded_weight.name),
        weight.name,
        gamma.name,
        variance.name,
        float(epsilon.array.reshape(())),
        tuple(shape),
    )
