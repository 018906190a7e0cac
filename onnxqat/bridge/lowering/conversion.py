"""Changes of element type."""

from __future__ import annotations

import onnx_ir as ir
import torch

from onnxqat.bridge import shape_math
from onnxqat.bridge.builder import Lowered, NodeView
from onnxqat.bridge.values import FLOATS, INTEGERS


def cast(n: NodeView) -> Lowered:
    """Cast 6 to 28 between the types that torch computes in; float8, 4-bit, 2-bit and strings are refused."""
    target = ir.DataType(n.attr("to"))
    arrays = n.grids([0])
    if arrays is not None and target is not ir.DataType.FLOAT16 and target is not ir.DataType.BFLOAT16:
        if target in INTEGERS and target in (ir.DataType.INT64, ir.DataType.INT32):
            return n.elementwise(shape_math.to_int, arrays, target)
        if target is ir.DataType.FLOAT:
            return n.elementwise(shape_math.to_float, arrays, target)
        if target is ir.DataType.BOOL:
            return n.elementwise(shape_math.to_bool, arrays, target)
    dtype = n.torch_dtype(target)
    if n.dtype(0) == target:
        return n.value(0)
    if n.dtype(0) is not None:
        n.torch_dtype(n.dtype(0))
    if target in FLOATS and n.attr("round_mode", "up") != "up":
        raise n.refuse("round_mode")
    return n.call(torch.Tensor.to, n.tensor(0), dtype)


def cast_like(n: NodeView) -> Lowered:
    """CastLike 15 to 25, with the types of :func:`cast`."""
    dtype = n.torch_dtype(n.dtype(1))
    n.torch_dtype(n.dtype(0))
    return n.value(0) if n.dtype(0) == n.dtype(1) else n.call(torch.Tensor.to, n.tensor(0), dtype)
