"""Unique."""

from __future__ import annotations

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView


def unique_elements(
    x: torch.Tensor, axis: int | None, ordered: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the distinct elements or slices of `x`.

    Args:
        x: any tensor; NaN is one element, however often it occurs.
        axis: whose slices are compared; None compares elements.
        ordered: whether the result is sorted, otherwise in the order of first occurrence.

    Returns:
        The elements or slices, the index of the first occurrence of each, for each of `x` its index in the result, and
        the number of occurrences of each; all but the first are int64 of one axis.
    """
    items, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.dim())
    if axis is None:
        found, inverse = torch.unique(items.detach(), sorted=True, return_inverse=True)
        if found.is_floating_point():
            numbers = found.shape[0] - torch.isnan(found).sum()
            inverse = torch.minimum(inverse, numbers)  # NaNs come last, and count as one
    else:
        _, inverse = torch.unique(items.detach(), sorted=True, return_inverse=True, dim=along)
    total = items.shape[along]
    count = int(inverse.max()) + 1 if total else 0
    counts = torch.zeros(count, dtype=torch.int64, device=x.device)
    counts = counts.scatter_add(0, inverse, torch.ones_like(inverse))
    place = torch.arange(total, device=x.device)
    first = torch.full_like(counts, total).scatter_reduce(0, inverse, place, "amin")
    if not ordered:
        order = torch.argsort(first)
        rank = torch.zeros_like(order).scatter(0, order, torch.arange(count, device=x.device))
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return items.index_select(along, first), first, inverse, counts


def unique(n: NodeView) -> Lowered:
    """Unique 11 and 28; how many elements there are depends on data."""
    axis = n.attr("axis")
    four = n.call(unique_elements, n.tensor(0), None if axis is None else int(axis), bool(n.attr("sorted", 1)))
    return tuple(n.item(four, i) if n.wants(i) else None for i in range(len(n.node.outputs)))
