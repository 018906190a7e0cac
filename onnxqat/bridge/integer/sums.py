"""Sums of products of codes, exact: whole numbers below 2**24 in float32, in any order, on any device.

Where the sums of a layer could pass that, its input channels are taken in parts whose sums cannot, and these are added
in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxqat.bridge.kernels.reference import along_axis

EXACT = 2**24
"""Whole numbers up to here are exact in float32."""

SHORT = 2**8
"""Whole numbers up to here are exact in TF32 and bfloat16, in which torch multiplies float32 where the user lets it."""

Axes = tuple[int, int]
"""The axis of the input and of the weight over which products are summed."""


def in_parts(
    operation: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x: Tensor,
    w: Tensor,
    bias: tuple[Tensor, float] | None,
    axes: Axes | None,
    reach: tuple[float, float],
) -> tuple[Tensor, float]:
    """``operation(x, w, bias)``, exact for whole numbers, and a bound on the size of what it gives.

    Args:
        operation: sums products over `axes`, and perhaps over others of `w`; it is linear in `x` and `w`.
        x: steps, float32.
        w: steps, float32.
        bias: codes of each output channel, float64, and the largest magnitude of one; None without.
        axes: None where the operation cannot be taken in parts, as of a layer in groups.
        reach: largest magnitudes of a step of `x` and of `w`.

    Returns:
        The sums, in float64 where they were added in parts.
    """
    bound = _bound(w.detach(), axes, reach)
    if bias is None:
        return _products(operation, x, w, bound, axes, reach), bound
    codes, largest = bias
    if bound + largest < EXACT and max(reach) <= SHORT:
        return operation(x, w, codes.float()), bound + largest
    total = _products(operation, x, w, bound, axes, reach).double()
    channels = 1 if x.ndim > 2 and axes in (None, (1, 1)) else total.ndim - 1  # of a convolution, or the last axis
    return total + along_axis(codes, channels, total.ndim), bound + largest


def _products(
    operation: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x: Tensor,
    w: Tensor,
    bound: float,
    axes: Axes | None,
    reach: tuple[float, float],
) -> Tensor:
    """Without a bias; in float64 where the sums could pass :data:`EXACT`, or steps :data:`SHORT`."""
    long = max(reach) > SHORT
    if bound < EXACT and not long:
        return operation(x, w, None)
    count = 1 if axes is None or long else _parts(w.detach(), axes, reach)
    if axes is None or count == 1:
        return operation(x.double(), w.double(), None)
    pairs = zip(x.tensor_split(count, axes[0]), w.tensor_split(count, axes[1]), strict=True)
    return torch.stack([operation(*pair, None).double() for pair in pairs]).sum(0)


def _parts(w: Tensor, axes: Axes, reach: tuple[float, float]) -> int:
    """The smallest power of two of parts none of which can pass :data:`EXACT`; 1 where there is none."""
    count = 2
    while count <= w.shape[axes[1]]:
        if all(_bound(part, axes, reach) < EXACT for part in w.tensor_split(count, axes[1])):
            return count
        count *= 2
    return 1


def _bound(w: Tensor, axes: Axes | None, reach: tuple[float, float]) -> float:
    """Bound the magnitude of a sum: by the number of products, and by the weights where that is not enough.

    While a graph is traced, by the number alone, as the weights may change later. The output channels of a weight are
    axis 0, those of a matrix product its last axis.
    """
    of_x, of_w = reach
    product = axes is not None and axes[0] != 1 and axes[1] == w.ndim - 2
    number = w.shape[-2] if product else w[0].numel()
    bound = of_x * of_w * number
    if bound < EXACT or torch.compiler.is_compiling():
        return bound
    sizes = w.abs()
    return of_x * float((sizes.sum(-2) if product else sizes.flatten(1).sum(1)).max())
