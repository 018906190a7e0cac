"""Scales kept away from zero in forward; the gradient passes unchanged, so that one that has reached it can recover."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge.kernels import reference
from onnxqat.bridge.kernels.reference import SMALLEST_SCALE


class _Straight(torch.autograd.Function):
    """A scale that is moved a little; the gradient passes unchanged, so that one that has reached 0 can recover."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, bits: int) -> Tensor:
        return reference.raised(scale, bits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def positive(scale: Tensor, bits: int | None = None) -> Tensor:
    """:func:`onnxqat.bridge.kernels.reference.raised` to `bits` significant bits; the gradient passes unchanged."""
    bits = reference.ALL_BITS if bits is None else bits
    if torch.is_grad_enabled():
        return cast(Tensor, _Straight.apply(scale, bits))  # type: ignore[no-untyped-call]
    return reference.raised(scale, bits)


def non_zero(scale: Tensor) -> Tensor:
    """`scale`, on its side of 0 at least :data:`SMALLEST_SCALE` away from it; the gradient passes unchanged."""
    values = scale.detach()
    moved = torch.where(values < 0, values.clamp(max=-SMALLEST_SCALE), values.clamp(min=SMALLEST_SCALE))
    return scale + (moved - values) if torch.is_grad_enabled() else moved
