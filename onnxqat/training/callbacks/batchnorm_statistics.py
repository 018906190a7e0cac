"""The statistics of BatchNormalization that is kept through training: live, frozen, or estimated again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm
from onnxqat.bridge.lowering.normalization import BatchNorm
from onnxqat.errors import DataError, UsageError
from onnxqat.graph import batchnorm
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.data.batches import Batch, Batches
from onnxqat.training.loop.step import call

Mode = Literal["live", "frozen"]
Choice = Literal["auto", "live", "frozen"]


def resolve(choice: Choice, model: ir.Model) -> Mode:
    """The mode that `choice` means for `model`: ``auto`` is ``live`` where placement kept BatchNormalization for it.

    Raises:
        UsageError: ``option-invalid``: no such choice.
    """
    if choice not in get_args(Choice):
        raise UsageError("option-invalid", f"batch_norm is {choice!r}", hint="auto, live or frozen")
    if choice != "auto":
        return choice
    return "live" if batchnorm.trains_live(model) else "frozen"


def modules(module: nn.Module) -> Iterator[BatchNorm]:
    """The BatchNormalization modules of what :func:`onnxqat.to_torch` made, wrapped or not, each once."""
    return (found for found in module.modules() if isinstance(found, BatchNorm))


def set_mode(module: nn.Module, mode: Mode) -> int:
    """Say what BatchNormalization does in training; ``.eval()`` always takes the stored statistics.

    Args:
        module: what :func:`onnxqat.to_torch` made, wrapped or not.
        mode: ``"live"`` takes the statistics of the batch and moves the stored ones towards them, by the momentum of
            the ONNX node; ``"frozen"`` takes the stored ones, as they are, and trains gamma and beta.

    Returns:
        How many there are.

    Raises:
        UsageError: ``option-invalid``: no such mode.
    """
    if mode not in get_args(Mode):
        raise UsageError("option-invalid", f"batch_norm is {mode!r}", hint="live or frozen")
    found = list(modules(module))
    for one in found:
        one.frozen = mode == "frozen"
    return len(found)


@dataclasses.dataclass
class _Moments:
    """float64 (channels,) sums over `count` values per channel, and the place where the statistics are stored."""

    mean: Tensor
    variance: Tensor
    count: int = 0
    first: Tensor | float = 0.0
    second: Tensor | float = 0.0

    def add(self, one: BatchNorm, x: Tensor, scale: Tensor, bias: Tensor) -> None:
        """Take in `x`, (batch, channels, ...), what the normalization `one` reads."""
        axes, count = [axis for axis in range(x.dim()) if axis != 1], x.numel() // x.shape[1]
        variance, mean = torch.var_mean(x.detach().float(), axes, correction=0)
        if isinstance(one, FoldedBatchNorm):
            variance, shift, _ = one.unfolded(mean, variance, self.mean, self.variance, scale, bias)
            mean = self.mean + shift
        variance, mean = variance.to(torch.float64), mean.to(torch.float64)
        self.first = self.first + mean * count
        self.second = self.second + (variance + mean.square()) * count
        self.count += count

    def store(self, *, variance: bool = True) -> None:
        """Overwrite the stored statistics: the mean, and the variance of the population as in ONNX."""
        mean = torch.as_tensor(self.first / self.count)
        self.mean.copy_(mean)
        if variance:
            self.variance.copy_((torch.as_tensor(self.second / self.count) - mean.square()).clamp_min(0.0))


@torch.no_grad()
def reestimate(module: nn.Module, batches: Iterable[Batch], limit: int | None = None) -> int:
    """Replace the stored statistics of every BatchNormalization by those of `batches`, with the quantizers as they are.

    Statistics that were gathered while weights and scales moved lag behind, and at few bits a small step of a weight
    is a large one of a mean (Nagel et al., "Overcoming Oscillations in Quantization-Aware Training", ICML 2022,
    section 4.1). Each normalization uses the statistics of the batch meanwhile, as in training. Mean and variance are
    those of all batches together, summed in float64, not an average that forgets.

    Where the graph folds a normalization in front of the quantizers, other statistics are another weight, whose codes
    may differ. So the mean is estimated a second time, with the variance of the first.

    Args:
        module: what :func:`onnxqat.to_torch` made, on its device; its mode and ``training`` are as before afterwards.
        batches: inputs; labels are not read.
        limit: most batches to take; None: all.

    Returns:
        The number of batches that were taken; 0 where there is no BatchNormalization, and nothing was read.

    Raises:
        DataError: ``data-missing`` when there is no batch.
        UsageError: ``option-invalid`` when a batch gives one value a channel only.
    """
    found = list(modules(module))
    if not found:
        return 0
    chosen: Iterable[Batch] = itertools.islice(batches, limit)
    folded = any(isinstance(one, FoldedBatchNorm) for one in found)
    chosen = list(chosen) if folded else chosen
    count, moments = _moments(module, found, chosen)
    if not count:
        raise DataError("data-missing", "there is no batch to estimate the statistics of BatchNormalization from")
    for entry in moments:
        entry.store()
    if folded:
        for entry in _moments(module, found, chosen)[1]:
            entry.store(variance=False)
    return count


def _moments(module: nn.Module, found: list[BatchNorm], batches: Iterable[Batch]) -> tuple[int, list[_Moments]]:
    """The number of batches, and what each of `found` sees of them; stored statistics of folded ones stay meanwhile."""
    moments: dict[int, _Moments] = {}

    def look(one: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x, mean, variance, scale, bias, *rounding = inputs
        bias = bias + rounding[0] if rounding else bias
        assert isinstance(one, BatchNorm)
        moments.setdefault(id(mean), _Moments(mean, variance)).add(one, x, scale, bias)

    place = next(iter(module.parameters())).device
    before = [(one, one.training, one.frozen, one.momentum) for one in found]
    handles = [one.register_forward_pre_hook(look) for one in found]
    count = 0
    try:
        for one in found:
            one.training, one.frozen = True, False
            one.momentum = 0.0 if isinstance(one, FoldedBatchNorm) else one.momentum  # the weight is folded with them
        for batch in batches:
            call(module, batch.to(place))
            count += 1
    finally:
        for handle in handles:
            handle.remove()
        for one, training, frozen, momentum in before:
            one.training, one.frozen, one.momentum = training, frozen, momentum
    return count, list(moments.values())


class Reestimate(Callback):
    """Estimates the statistics again, from the first batches of the data, whenever the module is to be scored and kept.

    Args:
        count: number of batches.
        batches: the training data; None: that of the run, the same in every process.
    """

    name = "batch_norm"

    def __init__(self, count: int, batches: Batches | None = None) -> None:
        if count < 1:
            raise UsageError("option-invalid", f"statistics of {count} batches; there must be at least 1")
        self.count, self.batches = count, batches
        self._module: nn.Module | None = None
        self._trained = False

    def start(self, run: Run) -> None:
        """Know the module."""
        self._module = run.module

    def before_step(self, step: int) -> None:
        """From now on there is something to estimate."""
        self._trained = True

    def before_score(self) -> None:
        """Estimate; the start, of which no step is done yet, keeps the statistics of the file."""
        if self._trained and self._module is not None:
            self.estimate(self._module)

    def estimate(self, module: nn.Module) -> None:
        """Estimate the statistics of `module`, which may have got other weights."""
        assert self.batches is not None, "finetune gives the data of the run, and fit's caller has them"
        reestimate(module, self.batches.epoch(0), self.count)
