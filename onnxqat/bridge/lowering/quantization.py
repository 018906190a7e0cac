"""Quantization operators that are not part of a recognised quantizer: exact, without a gradient.

Refused: float8 and float4 grids, results of 2 and 4 bits, and `precision` other than float32.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.builder import Lowered, NodeView
from onnxqat.bridge.values import CONTAINERS, TORCH_DTYPES

LIMITS = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}


def spread(parameter: torch.Tensor, x: torch.Tensor, axis: int, block: int) -> torch.Tensor:
    """A scale or zero point in a shape that broadcasts with `x`."""
    if parameter.dim() == 0 or (parameter.dim() == 1 and parameter.shape[0] == 1 and block == 0):
        return parameter.reshape(())
    if block:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    axis: int,
    block: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``saturate(round_half_even(x / scale) + zero_point)``; NaN becomes the smallest code."""
    codes = torch.round(x.to(torch.float32) / spread(scale.to(torch.float32), x, axis, block))
    if zero_point is not None:
        codes = codes + spread(zero_point.to(torch.float32), x, axis, block)
    return torch.nan_to_num(codes, nan=low, posinf=high, neginf=low).clamp(low, high).to(torch.int32).to(dtype)


def dequantize(
    codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, axis: int, block: int
) -> torch.Tensor:
    """``(codes - zero_point) * scale``."""
    steps = codes.to(torch.int32)
    if zero_point is not None:
        steps = steps - spread(zero_point.to(torch.int32), codes, axis, block)
    return (steps.to(torch.float32) * spread(scale.to(torch.float32), codes, axis, block)).to(scale.dtype)


def quantize_dynamically(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """uint8 codes over the range of `x` widened to 0, their scale and zero point."""
    low, high = torch.clamp(x.amin(), max=0.0), torch.clamp(x.amax(), min=0.0)
    scale = (high - low) / 255.0
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero_point = torch.round(torch.clamp(-low / scale, 0, 255))
    codes = torch.clamp(torch.round(x / scale) + zero_point, 0, 255)
    return codes.to(torch.uint8), scale, zero_point.to(torch.uint8)


def quantize_linear(n: NodeView) -> Lowered:
    """QuantizeLinear 10 to 28, per tensor, per axis and in blocks, to 8 and 16 bits."""
    kind = n.dtype(2) if n.has(2) else ir.DataType(int(n.attr("output_dtype", 0)) or ir.DataType.UINT8)
    if kind not in LIMITS:
        raise n.refuse(f"codes of type {kind.name if kind is not None else 'unknown'}")
    if int(n.attr("precision", 0)) not in (0, int(ir.DataType.FLOAT)) or not n.is_float(0):
        raise n.refuse("precision or an integer input")
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    low, high = LIMITS[kind]
    return n.call(quantize, n.tensor(0), n.tensor(1), n.optional(2), axis, block, low, high, TORCH_DTYPES[kind])


def dequantize_linear(n: NodeView) -> Lowered:
    """DequantizeLinear 10 to 28, per tensor, per axis and in blocks, from integers of 2 to 32 bits."""
    kind = n.dtype(0)
    if kind not in LIMITS and kind not in CONTAINERS and kind is not ir.DataType.INT32:
        raise n.refuse(f"codes of type {kind.name if kind is not None else 'unknown'}")
    if n.attr("output_dtype", 0):
        raise n.refuse("output_dtype")
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    return n.call(dequantize, n.tensor(0), n.tensor(1), n.optional(2), axis, block)


def dynamic_quantize_linear(n: NodeView) -> Lowered:
    """DynamicQuantizeLinear 11."""
    three: Any = n.call(quantize_dynamically, n.tensor(0))
    return tuple(n.item(three, i) for i in range(3))
