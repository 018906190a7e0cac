"""Numbers of constants, behind their quantizers where they have some."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import qdq, query, read_qparams
from onnxqat.integer_functions import calls

Constant: TypeAlias = npt.NDArray[np.float64]


def numbers(value: ir.Value | None) -> Constant | None:
    """Numbers of a constant of floats, behind its pair where it has one; None for other tensors."""
    if value is None:
        return None
    array = query.constant_array(value)
    if array is not None:
        return np.asarray(array, np.float64) if array.dtype.kind == "f" else None
    maker = value.producer()
    if not qdq.is_dequantize(maker):
        return None
    return _dequantized(maker)


def _dequantized(node: ir.Node) -> Constant | None:
    codes = query.constant_array(node.inputs[0])
    source = None if node.inputs[0] is None else calls.quantize_of(node.inputs[0])
    values = None if source is None else query.constant_array(source.inputs[0])
    try:
        qparams = read_qparams.read(node, None)
    except read_qparams.NotAQuantizerError:
        return None
    if codes is not None:
        return np.asarray(numerics.dequantize(codes, qparams), np.float64)
    return None if values is None else np.asarray(numerics.fake_quantize(values, qparams), np.float64)
