"""Quantizers that the file already has and that are kept: placement works around them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import qdq, query


def is_of_quantizer(node: ir.Node) -> bool:
    """Check whether `node` is part of a quantizer: QuantizeLinear, DequantizeLinear or a Clip between the two."""
    clips = node.op_type == "Clip" and qdq.is_quantize(query.producer(node.inputs[0]))
    return clips or qdq.is_qdq(node)
