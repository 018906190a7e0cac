"""Quantization operators that are not part of a recognised quantizer: exact, with a gradient of float scales only."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.functional import low_precision
from onnxqat.bridge.functional.low_precision import SMALL_TYPES
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import CONTAINERS, FLOATS, TORCH_DTYPES
from onnxqat.bridge.quantizers.fake_quantize import instead
from onnxqat.graph import quantized_forms, query

LIMITS = {
    ir.DataType.INT2: (-2, 1),
    ir.DataType.UINT2: (0, 3),
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}
FLOAT_GRIDS = frozenset(t for t in CONTAINERS if t.name in low_precision.FLOAT_FORMATS)
PRECISION_OPSET = 23  # from here on the type of the scale decides what the quotient is rounded to


def spread(parameter: torch.Tensor, x: torch.Tensor, axis: int, block: int) -> torch.Tensor:
    """A scale or zero point in a shape that broadcasts with `x`."""
    if parameter.dim() == 0 or (parameter.dim() == 1 and parameter.shape[0] == 1 and block == 0):
        return parameter.reshape(())
    if block:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def quotient(
    x: torch.Tensor, scale: torch.Tensor, axis: int, block: int, precision: torch.dtype = torch.float32
) -> torch.Tensor:
    """``x / scale``, rounded to `precision`; float32, or float64 where that is asked for or both are integers."""
    wide = torch.float64 if precision is torch.float64 else torch.float32
    return (x.to(precision).to(wide) / spread(scale.to(precision).to(wide), x, axis, block)).to(precision).to(wide)


def quantize(
    steps: torch.Tensor, zero_point: torch.Tensor | None, axis: int, block: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """``saturate(round_half_even(steps) + zero_point)``; NaN becomes the smallest code."""
    codes = torch.round(steps)
    if zero_point is not None:
        codes = codes + spread(zero_point.to(steps.dtype), steps, axis, block)
    return torch.nan_to_num(codes, nan=low, posinf=high, neginf=low).clamp(low, high).to(torch.int32).to(dtype)


def quantize_to_float(
    steps: torch.Tensor, zero_point: torch.Tensor | None, axis: int, block: int, kind: str, saturate: bool
) -> torch.Tensor:
    """``saturate(steps + zero_point)`` in a float type of 4 to 8 bits."""
    if zero_point is not None:
        steps = steps + spread(low_precision.decode(zero_point, kind), steps, axis, block)
    return low_precision.encode(steps, kind, saturate)


def dequantize(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    axis: int,
    block: int,
    kind: str = "",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``(codes - zero_point) * scale``, multiplied in float32 and rounded once.

    Args:
        codes: integers, or the container of `kind`.
        scale: a float of any shape that the operator allows.
        zero_point: like `codes`.
        axis: of the channels or blocks.
        block: its length, 0 without blocks.
        kind: element type of `codes` where torch does not compute in it.
        dtype: type of the result, by default that of the scale.
    """
    if kind in low_precision.FLOAT_FORMATS:
        steps = low_precision.decode(codes, kind)
        if zero_point is not None:
            steps = steps - spread(low_precision.decode(zero_point, kind), codes, axis, block)
    else:
        whole = codes.to(torch.int32)
        if zero_point is not None:
            whole = whole - spread(zero_point.to(torch.int32), codes, axis, block)
        steps = whole.to(torch.float32)
    return (steps * spread(scale.to(torch.float32), codes, axis, block)).to(dtype or scale.dtype)


def quantize_dynamically(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """uint8 codes over the range of `x` widened to 0, their scale and zero point."""
    low, high = torch.clamp(x.amin(), max=0.0), torch.clamp(x.amax(), min=0.0)
    scale = (high - low) / 255.0
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero_point = torch.round(torch.clamp(-low / scale, 0, 255))
    codes = torch.clamp(torch.round(x / scale) + zero_point, 0, 255)
    return codes.to(torch.uint8), scale, zero_point.to(torch.uint8)


def _scale(n: NodeView) -> Any:
    """The scale as a tensor that torch computes in."""
    kind = n.dtype(1)
    if kind is ir.DataType.FLOAT8E8M0:
        return n.call(low_precision.decode, n.tensor(1), kind.name)
    if kind is not None and kind not in FLOATS and kind is not ir.DataType.INT32:
        raise n.refuse(f"a scale of type {kind.name}")
    return n.tensor(1)


def _precision(n: NodeView) -> torch.dtype:
    """Return the type that the quotient is rounded to.

    The attribute ``precision`` of version 23, or by that version's text the type of the scale; float32 before, as
    runtimes compute it. Integers by an integer scale have no such type: their quotient is computed in float64.
    """
    stated = int(n.attr("precision", 0))
    kind = ir.DataType(stated) if stated else n.dtype(1)
    if kind is ir.DataType.INT32:
        return torch.float64
    if stated and kind not in FLOATS:
        raise n.refuse(f"precision {kind.name if kind is not None else stated}")
    if n.opset >= PRECISION_OPSET and kind in FLOATS and kind is not None:
        return TORCH_DTYPES[kind]
    return torch.float32


def quantize_linear(n: NodeView) -> Lowered:
    """QuantizeLinear 10 to 28, per tensor, per axis and in blocks, to every type that it has."""
    kind = n.dtype(2) if n.has(2) else ir.DataType(int(n.attr("output_dtype", 0)) or ir.DataType.UINT8)
    if kind not in LIMITS and kind not in FLOAT_GRIDS:
        raise n.refuse(f"codes of type {kind.name if kind is not None else 'unknown'}")
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    steps = n.call(quotient, n.tensor(0), _scale(n), axis, block, _precision(n))
    if kind in LIMITS:
        dtype = CONTAINERS.get(kind) or TORCH_DTYPES[kind]
        return n.call(quantize, steps, n.optional(2), axis, block, *LIMITS[kind], dtype)
    saturate = bool(n.attr("saturate", 1))
    return n.call(quantize_to_float, steps, _zero_point(n), axis, block, kind.name, saturate)


def _zero_point(n: NodeView) -> Any:
    """The zero point of a float type; left out where it is 0, so that codes keep the sign of zero."""
    known = n.static(2)
    return None if known is not None and not known.any() else n.optional(2)


def dequantize_linear(n: NodeView) -> Lowered:
    """DequantizeLinear 10 to 28, per tensor, per axis and in blocks, from every type that it has."""
    kind = n.dtype(0)
    if kind not in LIMITS and kind not in FLOAT_GRIDS and kind is not ir.DataType.INT32:
        raise n.refuse(f"codes of type {kind.name if kind is not None else 'unknown'}")
    zero = query.constant_array(n.node.inputs[2]) if len(n.node.inputs) > 2 else None
    if kind is ir.DataType.INT32 and zero is not None and zero.any():
        raise n.refuse("an int32 zero point other than 0, which ONNX does not have")
    stated = int(n.attr("output_dtype", 0))
    target = n.torch_dtype(stated) if stated else None
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    name = kind.name if kind.name in SMALL_TYPES else ""
    zero_point = _zero_point(n) if kind in FLOAT_GRIDS else n.optional(2)
    made = n.call(dequantize, n.tensor(0), _scale(n), zero_point, axis, block, name, target)
    source = n.node.inputs[0]
    maker = query.producer(source)
    if maker is not None and maker.inputs[0] is not None and quantized_forms.is_dynamic_pair(maker):
        return n.call(instead, n.builder.tensor(n.builder.lookup(maker.inputs[0])), made)
    return made


def dynamic_quantize_linear(n: NodeView) -> Lowered:
    """DynamicQuantizeLinear 11."""
    three: Any = n.call(quantize_dynamically, n.tensor(0))
    return tuple(n.item(three, i) for i in range(3))
