"""The scaler of the loss in float16 for gradients in shards."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from onnxqat.training.distributed.tensors import local


class ShardedScaler(torch.amp.GradScaler):
    """Unscales the part of each gradient that this process holds; what one process finds not finite counts for all.

    torch's own takes gradients of which all or none are in shards; scales of quantizers are whole, weights are not. As
    ``ShardedGradScaler`` of the first FSDP, it replaces the one method that looks at gradients.
    """

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        parts: dict[torch.dtype, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = None if parameter.grad is None else local(parameter.grad)
                if part is not None and part.numel():
                    parts.setdefault(part.dtype, []).append(part)
        with torch.no_grad():
            for held in parts.values():
                torch._amp_foreach_non_finite_check_and_unscale_(held, found_inf, inv_scale)
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}
