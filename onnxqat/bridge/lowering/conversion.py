"""Changes of element type: by value (Cast, CastLike) and by bits (BitCast)."""

from __future__ import annotations

import onnx_ir as ir
import torch

from onnxqat.bridge.functional import low_precision, shape_math
from onnxqat.bridge.functional.low_precision import SMALL_TYPES
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import CONTAINERS, INTEGERS, TORCH_DTYPES

FOLDED = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.BOOL)


def cast(n: NodeView) -> Lowered:
    """Cast 1 to 28; strings are refused."""
    target = n.attr("to")  # version 1 has its name
    return _cast(n, ir.DataType[target] if isinstance(target, str) else ir.DataType(target))


def cast_like(n: NodeView) -> Lowered:
    """CastLike 15 to 25; strings are refused."""
    target = n.dtype(1)
    if target is None:
        raise n.refuse("element type unknown")
    return _cast(n, target)


def _cast(n: NodeView, target: ir.DataType) -> Lowered:
    """Convert the input to `target`: Python numbers where it is known, else by torch's or our own conversion.

    Types that torch lacks or rounds in another way (4 bits, float 8, double to half) take the second.
    """
    arrays = n.grids([0])
    if arrays is not None and target in FOLDED:
        if target in INTEGERS:
            return n.elementwise(shape_math.to_int, arrays, target)
        return n.elementwise(shape_math.to_float if target is ir.DataType.FLOAT else shape_math.to_bool, arrays, target)
    source = n.dtype(0)
    if source == target:
        return n.value(0)
    for kind in (source, target):
        if kind is not None and kind not in CONTAINERS:
            n.torch_dtype(kind)
    if source is None and target.name not in SMALL_TYPES:
        return n.call(torch.Tensor.to, n.tensor(0), n.torch_dtype(target))
    name = "" if source is None or source.name not in SMALL_TYPES else source.name
    if name or target.name in SMALL_TYPES:
        dtype = CONTAINERS.get(target) or TORCH_DTYPES[target]
        saturate, mode = bool(n.attr("saturate", 1)), str(n.attr("round_mode", "up"))
        return n.call(low_precision.convert, n.tensor(0), name, target.name, dtype, saturate, mode)
    if source is ir.DataType.DOUBLE and target in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return n.call(low_precision.narrow_double, n.tensor(0), target.name)
    return n.call(torch.Tensor.to, n.tensor(0), TORCH_DTYPES[target])


def bit_cast(n: NodeView) -> Lowered:
    """BitCast 26 between types of one width.

    In torch, int2 and int4 hold values and float4 holds bits, so these are converted rather than viewed.
    """
    source, target = n.dtype(0), ir.DataType(n.attr("to"))
    if source is None or source.bitwidth != target.bitwidth:
        raise n.refuse(f"{source.name if source is not None else 'unknown'} as {target.name}")
    if source == target:
        return n.value(0)
    if target.bitwidth in (2, 4):
        kind = target.name if target.name in low_precision.SMALL_INTEGERS else f"UINT{target.bitwidth}"
        return n.call(low_precision.encode, n.tensor(0), kind)
    if target.bitwidth < 8:
        return n.value(0)
    return n.call(torch.Tensor.view, n.tensor(0), CONTAINERS.get(target) or n.torch_dtype(target))
