"""Scattering with ONNX's reductions: what the lowerings of ScatterElements and ScatterND call."""

from __future__ import annotations

import torch

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_each(
    x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int, reduction: str
) -> torch.Tensor:
    """ScatterElements."""
    index = indices.to(torch.int64)
    index = torch.where(index < 0, index + x.shape[axis], index)
    if reduction == "none":
        return torch.scatter(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, _REDUCTIONS[reduction], include_self=True)


def scatter_points(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduction: str) -> torch.Tensor:
    """ScatterND: the last axis of `indices` holds coordinates of elements or of slices."""
    depth = indices.shape[-1]
    coordinates = indices.to(torch.int64)
    flat = torch.zeros_like(coordinates[..., 0])
    rows = 1
    for axis in range(depth):
        size = x.shape[axis]
        place = coordinates[..., axis]
        flat = flat * size + torch.where(place < 0, place + size, place)
        rows = rows * size
    table = x.reshape(rows, -1)
    index = flat.reshape(-1, 1).expand(-1, table.shape[1])
    values = updates.reshape(index.shape)
    if reduction == "none":
        return torch.scatter(table, 0, index, values).reshape(x.shape)
    return torch.scatter_reduce(table, 0, index, values, _REDUCTIONS[reduction], include_self=True).reshape(x.shape)
