"""Reduction of observed ranges over all processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.process_context import ProcessContext


@torch.no_grad()
def reduce_observed(module: nn.Module, world: ProcessContext) -> None:
    """Reduce the observed range of every quantizer over all processes, to the least minimum and greatest maximum.

    For quantizers in a calibrating state: each process runs its own samples through `module`, then all call this, then
    ``apply_observed`` gives every process the same scales as one process that has seen all samples. A NaN that one
    process has seen becomes an infinite range, which ``apply_observed`` refuses. Sends two messages in all, none in a
    run of one process.
    """
    if not isinstance(world, Group):
        return
    found = [q for _, q in quantizers(module) if not q.derived]
    for name, reduce, bad in (("observed_min", world.least, "-inf"), ("observed_max", world.greatest, "inf")):
        held: list[Tensor] = [getattr(q, name) for q in found]
        if not held:
            return
        joined = torch.cat([tensor.reshape(-1) for tensor in held]).to(world.device)
        # A minimum with a NaN is a NaN or not, by the order of the processes.
        joined = reduce(torch.where(joined.isnan(), torch.full_like(joined, float(bad)), joined))
        for tensor, part in zip(held, torch.split(joined, [tensor.numel() for tensor in held]), strict=True):
            tensor.copy_(part.view_as(tensor))
