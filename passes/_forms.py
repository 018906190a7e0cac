"""Records about a stored constant, on its DequantizeLinear, for the way between train and deploy form."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import qdq, query
from onnxqat.graph.quantizer import Quantizer

TENSOR = "onnxqat.tensor"

SUFFIX = f"_{qdq.STORED_CODES}"


def float_name(quantizer: Quantizer) -> str:
    """Name of the float tensor that stored integers were made from; else the dequantized tensor's name."""
    stated = quantizer.dequantize[0].metadata_props.get(TENSOR)
    stored = str(quantizer.input.name)
    if stated:
        return stated
    return (
        stored.removesuffix(SUFFIX) if stored.endswith(SUFFIX) and stored != SUFFIX else str(quantizer.outputs[0].name)
    )


def dequantized(quantizer: Quantizer) -> np.ndarray | None:
    """float32 values of a stored quantizer; None where the codes are not readable."""
    codes = query.constant_array(quantizer.input)
    qparams = quantizer.qparams
    return None if codes is None else numerics.dequantize(codes.astype(qparams.qtype.computed_type), qparams)


def is_float32(quantizer: Quantizer) -> bool:
    """Check whether float tensor and scales are float32, the arithmetic of ``onnxqat.numerics``."""
    values = [*quantizer.scales, *([] if quantizer.stored else [quantizer.input])]
    return all(_dtype(v) in (None, ir.DataType.FLOAT) for v in values)


def _dtype(value: ir.Value) -> ir.DataType | None:
    found = query.constant_tensor(value)
    return value.dtype if found is None else found.dtype
