"""A few samples that a module was trained on, so that what training made of them can be compared with the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOST_SAMPLES = 256
"""Samples that are kept; the standard error of a share of 10 % is 2 points there."""

MOST_VALUES = 2**23
"""Values that are kept at most, 32 MiB of float32; the first sample is kept whatever its size."""


class SeenSamples:
    """Hook in front of a module's ``forward`` that keeps the first samples of training, where they are: nothing waits.

    What is computed without gradients is no training. Graphs that are traced keep nothing, and neither do inputs that
    have no common first axis.

    Attributes:
        batches: the inputs of the module in order, a tuple a batch.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, ...]] = []
        self._samples = self._values = 0
        self._is_full = False

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep what fits of `inputs`."""
        if self._is_full or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if not inputs or not all(type(x) is Tensor and x.ndim and len(x) == len(inputs[0]) > 0 for x in inputs):
            return
        each = sum(x[0].numel() for x in inputs)
        room = min(MOST_SAMPLES - self._samples, (MOST_VALUES - self._values) // max(1, each))
        count = min(len(inputs[0]), max(room, 0 if self.batches else 1))
        self._is_full = room <= len(inputs[0])
        if count:
            self.batches.append(tuple(x[:count].detach().clone() for x in inputs))
            self._samples += count
            self._values += count * each

    def __deepcopy__(self, memo: dict[int, Any]) -> SeenSamples:
        return self  # a copy for an average of the weights is trained on what the original sees

    def __reduce__(self) -> tuple[Any, ...]:
        return (SeenSamples, ())  # a saved module carries no samples of its user


def seen_by(module: nn.Module) -> Sequence[tuple[Tensor, ...]]:
    """The batches that a module of ``to_torch``, or what wraps it, was trained on; empty where nothing was kept."""
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():  # noqa: SLF001 - torch names no other way to a hook
            if isinstance(hook, SeenSamples):
                return hook.batches
    return ()
