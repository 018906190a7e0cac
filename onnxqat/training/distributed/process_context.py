"""The processes that train together: here one; :mod:`onnxqat.training.distributed` has the class for more."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from onnxqat.training.distributed.tensors import local


class ProcessContext:
    """One process. The loop asks it whatever differs between one process and several.

    Attributes:
        rank: number of this process.
        size: how many there are.
        scaler_type: scaler of the loss in float16.
        in_shards: whether a process holds parts of weights only.
    """

    rank = 0
    size = 1
    in_shards = False
    scaler_type = torch.amp.GradScaler

    @property
    def writer(self) -> bool:
        """Check whether this process is the one that writes files and reports progress."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module to call in place of `module`; its backward leaves the mean gradient of all processes."""
        return module

    def accumulating(self, forward: nn.Module) -> AbstractContextManager[None]:
        """For backward passes whose gradients are added up here first; `forward` is what :meth:`wrap` returned."""
        return contextlib.nullcontext()

    def place(self, module: nn.Module) -> nn.Module:
        """Return the module to train, equal in all processes or in shards; called before there is an optimizer."""
        return module

    def flat(self, module: nn.Module) -> nn.Module:
        """The module that :meth:`place` was given, on the CPU, with the values that `module` has now."""
        return module.cpu()

    def finish(self, forward: nn.Module) -> None:
        """After the last backward pass of a step: gradients are the mean over all processes from here on."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all `gradients` of a model together, a scalar."""
        return nn.utils.get_total_norm(gradients)

    def clip(self, gradients: Sequence[Tensor], limit: float, norm: Tensor) -> None:
        """Scale `gradients`, in place, to the norm `limit` where their `norm` is larger."""
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)

    def close(self) -> None:
        """Free what holds the process group, which is closed next."""

    def barrier(self) -> None:
        """Wait until every process is here."""

    def reseed(self, step: int) -> None:
        """Give every process random numbers of its own, where they are not kept in a checkpoint written at `step`."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes, the same in each of them; nothing is waited for on a GPU."""
        return values

    def agreed(self, value: float) -> float:
        """The `value` of process 0, in each of them."""
        return value
