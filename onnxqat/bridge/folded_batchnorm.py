"""BatchNormalization in training where the graph folds it in front of the quantizers (:mod:`onnxqat.graph.computed_fold`).

Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", arXiv 1806.08342, section 3.2.2: what
is rounded is the weight folded with the stored statistics, and what comes out is corrected to those of the batch. The
batch's are taken from the layer's own output, as in torch's ``ConvBn`` modules, not from a second convolution.
"""

from __future__ import annotations

import operator

import onnx_ir as ir
import torch
from torch import Tensor, fx

from onnxqat.bridge.builder import Builder
from onnxqat.bridge.lowering.normalization import BatchNorm, needs_values
from onnxqat.graph.computed_fold import ComputedFold

VISIBLE = 1e-5
"""Where a channel spreads by less than this of its mean, float32 sums do not show how much, and it keeps its statistics."""
SMALLEST_FACTOR = 1e-15  # its square is still a normal number


class FoldedBatchNorm(BatchNorm):
    """What stands behind a layer whose weight and bias the graph folds: nothing, but for live statistics in training.

    With ``f = gamma / sqrt(variance + epsilon)`` of the stored statistics the layer gives ``y = f * r + beta - mean * f``,
    where r is what it would give without folding. Statistics of the batch follow from those of y: the variance of r is
    that of y divided by ``f * f``, and its mean is off the stored one by ``(mean of y - beta) / f``. What quantizing the
    bias adds to y counts as a part of beta. Then ::

        (r - batch mean) / sqrt(batch variance + epsilon) * gamma + beta
            = (y - mean of y) * sqrt((variance + epsilon) / (batch variance + epsilon)) + beta

    A channel that does not vary, such as one with gamma 0 or whose weights are all rounded to 0, stays as it is.
    """

    def forward(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        scale: Tensor,
        bias: Tensor,
        rounding: Tensor | None = None,
    ) -> Tensor:
        """(batch, channels, ...) -> the same; `rounding` is what quantizing adds to the folded bias."""
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
        """What mean and variance of the folded output say of the layer without folding, float32 (channels,) each.

        Returns:
            Its variance; by how much its mean is off the stored one; and which channels vary. For the others it is the
            stored variance, and nothing.
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
        for value, stored in ((fold.mean, mean), (fold.variance, variance)):
            builder.values[id(value)] = builder.emit("call_function", torch.clone, (stored,))

    def behind(self, builder: Builder, node: ir.Node) -> None:
        """Behind the layer: what it gives goes through the module."""
        fold = self._folds.get(id(node))
        if fold is None:
            return
        output = fold.layer.outputs[0]
        epsilon = float(builder.lookup(fold.epsilon).array.reshape(()))  # type: ignore[union-attr]  # a constant
        path = builder.add_module(f"{output.name}_batchnorm", FoldedBatchNorm(1.0 - fold.momentum, epsilon))
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
