"""Fully sharded data parallel: every process holds a part of each parameter, its gradient and its optimizer state.

Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, in its second form
(``torch.distributed.fsdp.fully_shard``): the parameters of a block are put together for its forward and its backward
pass only.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from onnxqat.bridge.module import OnnxModule
from onnxqat.errors import UsageError
from onnxqat.training.distributed.blocks import BLOCK_BYTES, Blocks
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.sharded_scaler import ShardedScaler
from onnxqat.training.distributed.synced_batchnorm import sync, unsync
from onnxqat.training.distributed.tensors import is_sharded, local


class Strategy(Group):
    """Weights in shards; scales, and everything else of a quantizer, whole on every process."""

    block_bytes = BLOCK_BYTES
    scaler_type = ShardedScaler
    in_shards = True

    def place(self, module: nn.Module) -> nn.Module:
        """`module` in blocks, with the values of process 0, of which this process keeps its part.

        Raises:
            UsageError: ``option-invalid`` where the module is none that ``to_torch`` made, or torch is too old.
        """
        if not isinstance(module, OnnxModule):
            raise UsageError("option-invalid", f"{type(module).__name__} is not a module that to_torch made")
        if "ignored_params" not in inspect.signature(fully_shard).parameters:
            raise UsageError("option-invalid", "this torch cannot leave parameters whole", hint="use 2.7 or later")
        self.broadcast((*module.parameters(), *module.buffers()))
        sync(module)
        blocks = Blocks(module, block_bytes=self.block_bytes)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        # Caches of torch hold the mesh as long as the interpreter lives, and the mesh of newer releases holds its group,
        # whose threads must end before: see `join._rendezvous`.
        atexit.register(vars(mesh).get("_pg_registry", {}).clear)
        ignored = set(blocks.parameters()) - set(blocks.divisible())
        for part in (*blocks.blocks, blocks):
            fully_shard(part, mesh=mesh, reshard_after_forward=True, ignored_params=ignored)
        return blocks

    def flat(self, module: nn.Module) -> nn.Module:
        """The module that :meth:`place` was given, whole, on the CPU, with the values that `module` has now."""
        assert isinstance(module, Blocks)
        unsync(module)
        return module.flat()

    @contextlib.contextmanager
    def accumulating(self, forward: nn.Module) -> Iterator[None]:
        """For backward passes whose gradients are added up here first."""
        found = [part for part in forward.modules() if isinstance(part, Blocks)]
        for part in cast("list[FSDPModule]", found):
            part.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for part in cast("list[FSDPModule]", found):
                part.set_requires_gradient_sync(True)

    def finish(self, forward: nn.Module) -> None:
        """After the last backward pass of a step: average the gradients of what is whole."""
        self.average(p.grad for p in forward.parameters() if p.grad is not None and not is_sharded(p.grad))

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all `gradients` together, the shards of the other processes included."""
        parts = [local(gradient) for gradient in gradients if is_sharded(gradient)]
        rest = [gradient for gradient in gradients if not is_sharded(gradient)]
        squares = [nn.utils.get_total_norm(held).square() for held in (parts, rest) if held]
        if parts:
            squares[0] = self.total(squares[0])
        return torch.stack(squares).sum().sqrt()
