"""Memory layout of tensors: kernels walk them in the order of memory, so that channels_last needs no copy."""

from __future__ import annotations

import torch
from torch import Tensor

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_dense(x: Tensor) -> bool:
    """Check whether `x` is contiguous or channels_last, so that its elements lie in memory without holes."""
    last = _LAST.get(x.ndim)
    return x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))


def dense(x: Tensor) -> Tensor:
    """`x` itself where it is dense, else a contiguous copy."""
    return x if is_dense(x) else x.contiguous()


def as_laid_out(x: Tensor, like: Tensor) -> Tensor:
    """`x` itself where it lies in memory as `like` does, a dense tensor of the same shape, else a copy that does."""
    if x.stride() == like.stride():
        return x
    return torch.empty_like(like, dtype=x.dtype).copy_(x)


def flat(x: Tensor) -> Tensor:
    """A view of a dense tensor in the order of memory, of one dimension."""
    return x.as_strided((x.numel(),), (1,), x.storage_offset())
