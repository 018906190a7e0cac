"""BatchNormalization whose statistics, in training, are those of the samples of all processes.

As ``nn.SyncBatchNorm``, which takes neither the CPU nor statistics that lie outside of the module.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm
from onnxqat.bridge.lowering.normalization import BatchNorm, positive


class _Total(torch.autograd.Function):
    """The sum over the processes; so is the gradient, since the losses of all of them depend on it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        summed = grads[0].clone()
        dist.all_reduce(summed)
        return summed


class SyncedBatchNorm(BatchNorm):
    """A :class:`BatchNorm` with statistics over all processes; one message per forward and per backward pass."""

    def forward(
        self, x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, bias: Tensor, *, remade: bool = False
    ) -> Tensor:
        """(batch, channels, ...) -> the same; in eval mode and with frozen statistics as the base class.

        With live statistics `remade` has no effect: computing the result again would take a message.
        """
        if not self.training or self.frozen:
            return super().forward(x, mean, variance, scale, bias, remade=remade)
        if self.positive is not None:
            scale = positive(scale)
        center, spread, count = _statistics(x)
        with torch.no_grad():
            mean.lerp_(center.to(mean.dtype), self.momentum)
            variance.lerp_((spread * (count / (count - 1).clamp_min(1))).to(variance.dtype), self.momentum)
        shape = [1, -1] + [1] * (x.ndim - 2)
        factor = scale * torch.rsqrt(spread + self.epsilon)
        result = (x - center.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return result.to(x.dtype)


class SyncedFoldedBatchNorm(FoldedBatchNorm):
    """A :class:`FoldedBatchNorm` with statistics over all processes."""

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
        """As the base class says, over all processes."""
        center, spread, count = _statistics(x)
        return center, spread, count / (count - 1).clamp_min(1)


_SYNCED: dict[type[BatchNorm], type[BatchNorm]] = {
    BatchNorm: SyncedBatchNorm,
    FoldedBatchNorm: SyncedFoldedBatchNorm,
}


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel of `x` over all processes, float32 (channels,), and the number of values.

    Put together from those of each process (Chan et al., "Algorithms for computing the sample variance", 1983), so that
    a mean that is large against the spread does not swallow it.
    """
    values = x.float()
    axes = [axis for axis in range(x.ndim) if axis != 1]
    spread, center = torch.var_mean(values, axes, correction=0)
    count = torch.full((1,), x.numel() / x.shape[1], device=x.device)
    rows = torch.zeros(dist.get_world_size(), 2 * len(center) + 1, device=x.device)
    mine = torch.zeros(len(rows), 1, device=x.device)
    mine[dist.get_rank()] = 1.0
    gathered = cast(Tensor, _Total.apply(rows + mine * torch.cat([center, spread, count])))  # type: ignore[no-untyped-call]
    centers, spreads, counts = torch.split(gathered, [len(center), len(center), 1], dim=1)
    total = counts.sum().detach()
    shares = counts.detach() / total
    center = (shares * centers).sum(0)
    spread = (shares * (spreads + (centers - center).square())).sum(0)
    return center, spread, total


def sync(module: nn.Module) -> None:
    """Make every :class:`BatchNorm` of `module` take the statistics of all processes."""
    for found in module.modules():
        if isinstance(found, BatchNorm) and type(found) in _SYNCED:
            found.__class__ = _SYNCED[type(found)]


def unsync(module: nn.Module) -> None:
    """Undo :func:`sync`."""
    plain = {synced: kind for kind, synced in _SYNCED.items()}
    for found in module.modules():
        if isinstance(found, BatchNorm) and type(found) in plain:
            found.__class__ = plain[type(found)]
