"""Data parallel: every process holds the whole model; ``DistributedDataParallel`` averages the gradients.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020: gradients are summed
in buckets while backward goes on.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.synced_batchnorm import sync, unsync

_NO_EXCHANGE: dict[str, Any] = {
    name: False
    for name in ("init_sync", "forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
}
"""Nothing is sent at the start, as ``place()`` has seen to it and NCCL cannot send every type of buffer, and no buffers
before each forward pass, which torch calls one way up to 2.12 and another from 2.13 on."""
if "forward_sync_buffers" in _NO_EXCHANGE:
    del _NO_EXCHANGE["broadcast_buffers"]

_KEPT: list[Any] = []
"""Groups that a ``DistributedDataParallel`` still holds after its run, as an error's traceback does."""


class Strategy(Group):
    """All parameters and buffers on every process, equal after each step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._replicas: list[Replica] = []

    def place(self, module: nn.Module) -> nn.Module:
        """`module` with the parameters, scales and buffers of process 0."""
        self.broadcast((*module.parameters(), *module.buffers()))
        sync(module)
        return module

    def flat(self, module: nn.Module) -> nn.Module:
        """`module` on the CPU, as one process would have it."""
        unsync(module)
        return super().flat(module)

    def wrap(self, module: nn.Module) -> nn.Module:
        """A module that calls `module`; its gradients are the mean over the processes after :meth:`finish`."""
        replica = Replica(module, self.device)
        self._replicas.append(replica)
        return replica

    def close(self) -> None:
        """Free every ``DistributedDataParallel`` while the process group is still there.

        Each is part of cycles, and its C++ part holds the group. The last to hold a group ends the group's threads; it
        would do so with Python's lock held, for which one of those threads may wait: neither would ever go on.
        """
        made = [held for replica in self._replicas for held in replica.release()]
        self._replicas.clear()
        gc.collect()
        if any(held() is not None for held in made):
            _KEPT.append(dist.group.WORLD)

    def accumulating(self, forward: nn.Module) -> AbstractContextManager[None]:
        """For backward passes whose gradients are added up here first; `forward` is what :meth:`wrap` returned."""
        assert isinstance(forward, Replica)
        return forward.accumulating()

    def finish(self, forward: nn.Module) -> None:
        """After the last backward pass of a step: the gradients are the mean over the processes from here on."""
        assert isinstance(forward, Replica)
        unreduced = forward.unreduced()
        if unreduced is not None:
            self.average(p.grad for p in unreduced if p.grad is not None)
            forward.settle()


class Replica(nn.Module):
    """``DistributedDataParallel`` around exactly the parameters that get a gradient.

    It has to know before backward which parameters those are, and it looks at the outputs of forward, not at the
    loss, which may leave outputs out. So the first step goes without it and shows them, and so does the first after a
    change of what is trained: the state of a quantizer, or ``requires_grad``.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        # In a tuple, because the parameters are the module's: this one has none of its own.
        self._held = (module,)
        self._device = device
        self._parallel: tuple[DistributedDataParallel, ...] = ()
        self._trained: tuple[Any, ...] = ()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """As the module."""
        trained = self._what_is_trained()
        if trained != self._trained:
            self._parallel, self._trained = (), trained
        return (self._parallel or self._held)[0](*inputs)

    def _what_is_trained(self) -> tuple[Any, ...]:
        module = self._held[0]
        return (*(q.state for _, q in quantizers(module)), *(p.requires_grad for p in module.parameters()))

    def accumulating(self) -> AbstractContextManager[None]:
        """No exchange of gradients for the length of a ``with`` block."""
        return self._parallel[0].no_sync() if self._parallel else contextlib.nullcontext()

    def unreduced(self) -> list[nn.Parameter] | None:
        """The parameters with a gradient of this process alone; None where they were averaged during backward."""
        return None if self._parallel else [p for p in self._held[0].parameters() if p.grad is not None]

    def release(self) -> list[weakref.ref[DistributedDataParallel]]:
        """Drop the ``DistributedDataParallel``, and refer to what was dropped."""
        held = [weakref.ref(parallel) for parallel in self._parallel]
        self._parallel = ()
        return held

    def settle(self) -> None:
        """From the next step on, average the gradients of the parameters that have one now."""
        module = self._held[0]
        idle = [p for p in module.parameters() if p.requires_grad and p.grad is None]
        for parameter in idle:
            parameter.requires_grad_(False)
        # Buffers are no business of each step: zero points are constants, and what follows the data is put together
        # by the module that holds it.
        parallel = DistributedDataParallel(
            module,
            device_ids=[self._device.index] if self._device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_NO_EXCHANGE,
        )
        for parameter in idle:
            parameter.requires_grad_(True)
        self._parallel = (parallel,)
