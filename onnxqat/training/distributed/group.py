"""The processes that train together, and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from onnxqat.training.distributed.process_context import ProcessContext


class Group(ProcessContext):
    """The processes of torch's default group; a strategy of :mod:`onnxqat.training.distributed.strategies` trains.

    Attributes:
        rank: number of this process, counted from 0; process 0 writes the files.
        size: how many there are.
        device: where this process computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self._seed: int | None = None

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes, the same in each of them."""
        summed = values.detach().clone()
        dist.all_reduce(summed)
        return summed

    def least(self, values: Tensor) -> Tensor:
        """The least of each of `values` over all processes."""
        found = values.detach().clone()
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return found

    def greatest(self, values: Tensor) -> Tensor:
        """The greatest of each of `values` over all processes."""
        found = values.detach().clone()
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found

    def agreed(self, value: float) -> float:
        """The `value` of process 0, in each of them."""
        held = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(held, 0)
        return float(held)

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.agreed(0.0)

    def reseed(self, step: int) -> None:
        """Give every process but the first, whose state a checkpoint holds, random numbers that follow from `step`."""
        if self.rank:
            seed = (torch.initial_seed() if self._seed is None else self._seed) % 2**64
            self._seed = seed
            torch.manual_seed(int(np.random.SeedSequence((seed, step, self.rank)).generate_state(1)[0]))

    @torch.no_grad()
    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each of `tensors` by its mean over the processes, those of one type in one message."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for held in by_type.values():
            joined = torch.cat([tensor.reshape(-1) for tensor in held])
            dist.all_reduce(joined)
            joined /= self.size
            for tensor, part in zip(held, torch.split(joined, [tensor.numel() for tensor in held]), strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the values that `tensors` have in process 0, in place; they may be on another device.

        Bytes are sent: neither NCCL nor Gloo has all types that a constant of a file may have, such as int16.
        """
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous()
            dist.broadcast(sent.reshape(-1).view(torch.uint8), 0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)
