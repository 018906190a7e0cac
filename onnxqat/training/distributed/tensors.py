"""Tensors of which each process holds a part: put together, and cut to the same parts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Check whether `tensor` is sharded, so that each process holds only a part of it."""
    # Without the import, which takes a second, there is no such tensor.
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and isinstance(tensor, home.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`; a sharded one is put together, and every process has to ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def like(reference: Tensor, value: Tensor) -> Tensor:
    """`value`, which is whole, cut to the parts of `reference`; itself where `reference` is whole or has another shape."""
    if not is_sharded(reference) or value.shape != reference.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(reference.device), reference.device_mesh, reference.placements, src_data_rank=None
    )


def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this process holds, sharing its memory; all of it where it is whole."""
    return tensor.to_local() if is_sharded(tensor) else tensor
