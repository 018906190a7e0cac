"""Quantizers that the file has already, where they are kept: placement goes on around them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import qdq


def is_of_quantizer(node: ir.Node) -> bool:
    """Whether `node` belongs to such a quantizer."""
    clips = node.op_type == "Clip" and node.inputs[0] is not None and qdq.is_quantize(node.inputs[0].producer())
    return clips or qdq.is_quantize(node) or qdq.is_dequantize(node)
