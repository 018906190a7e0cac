"""Sums of products of steps in numpy: whole numbers in float64, exact below 2**53."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from onnxqat.arithmetic._arrays import Array, double
from onnxqat.bridge.lowering.linear import biased_product


def summed(operation: Callable[..., Any], x: Array, w: Array, rest: tuple[Any, ...]) -> Array:
    """Compute torch's function `operation` for steps `x` and `w` without a bias, float64.

    Args:
        operation: a convolution or a matrix product, see :mod:`onnxqat.bridge.integer.layers`.
        x: steps.
        w: steps.
        rest: of a convolution strides, padding, dilations and the number of groups.
    """
    if operation in (torch.matmul, biased_product):
        return double(x) @ double(w)
    if operation is functional.linear:
        return double(x) @ double(w).T
    return convolved(double(x), double(w), *rest)


def convolved(
    x: Array,
    w: Array,
    strides: int | Sequence[int],
    padding: int | Sequence[int],
    dilations: int | Sequence[int],
    groups: int,
) -> Array:
    """A convolution by a matrix product of windows; `x` (N, C, ...), `w` (O, C / groups, ...)."""
    rank = x.ndim - 2
    each = [[value] * rank if isinstance(value, int) else list(value) for value in (strides, padding, dilations)]
    strides, padding, dilations = each
    padded = np.pad(x, [(0, 0), (0, 0), *((pad, pad) for pad in padding)])
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, rank + 2)))
    places = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *places)]
    over = list(range(rank + 2, 2 * rank + 2))
    inputs, outputs = np.split(windows, groups, axis=1), np.split(w, groups, axis=0)
    parts = [
        np.tensordot(part, filters, ([1, *over], list(range(1, rank + 2))))
        for part, filters in zip(inputs, outputs, strict=True)
    ]
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)
