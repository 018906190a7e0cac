"""Quantizers that the file has already, where they are kept: placement goes on around them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.backends.schema import Backend, OpRow, TypeRow
from onnxqat.graph import qdq, query
from onnxqat.types import Remark


def is_of_quantizer(node: ir.Node) -> bool:
    """Whether `node` belongs to such a quantizer."""
    clips = node.op_type == "Clip" and node.inputs[0] is not None and qdq.is_quantize(node.inputs[0].producer())
    return clips or qdq.is_quantize(node) or qdq.is_dequantize(node)


def remarks(node: ir.Node, row: OpRow, backend: Backend) -> Iterator[Remark]:
    """What a user should know of the quantizers on the inputs of `node`."""
    for index, value in enumerate(node.inputs):
        slot = row.input_slot(index)
        if slot is None or slot.use is None or value is None or not _is_narrow(backend.types[slot.use]):
            continue
        if _has_wide_codes(value):
            message = "weights of the file that take 8 bits were kept: on CPUs without VNNI integer kernels saturate"
            yield Remark(message, (query.label(node),), "plan")


def _is_narrow(row: TypeRow) -> bool:
    return row.reduce_range or row.saturates


def _has_wide_codes(value: ir.Value) -> bool:
    """Whether `value` is dequantized from constant int8 codes outside -64..63."""
    dequantize = value.producer()
    source = dequantize.inputs[0] if dequantize is not None and qdq.is_dequantize(dequantize) else None
    if source is None or source.dtype != ir.DataType.INT8:
        return False
    codes, quantize = query.constant_array(source), source.producer()
    if codes is not None:
        return bool(codes.size) and (int(codes.min()) < -64 or int(codes.max()) > 63)
    # float values, on the whole type where no Clip follows
    return quantize is not None and qdq.is_quantize(quantize) and query.constant_tensor(quantize.inputs[0]) is not None
