"""A Q/DQ pair inserted into a deploy form."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE, is_dequantize


def insert(
    scope: walk.Scope,
    before: ir.Node,
    source: ir.Value,
    like: ir.Node,
    names: build.Names,
    name: str,
    parameters: list[ir.Value | None] | None = None,
) -> ir.Value:
    """Insert a pair on `source` in front of the node `before`, and return its result.

    Args:
        scope: what holds `before`.
        before: the node that is to read the pair.
        source: the tensor to quantize.
        like: a Q or DQ node, whose domain and attributes the pair has.
        names: of the model.
        name: what the names of the new tensors begin with.
        parameters: scale and zero point; those of `like` by default.
    """
    held = list(like.inputs[1:]) if parameters is None else parameters
    attributes = {key: value.value for key, value in like.attributes.items()}
    codes = names.fresh(f"{name}_quantized")
    kind = held[1].dtype if len(held) > 1 and held[1] is not None else ir.DataType.UINT8
    quantize = build.node(
        QUANTIZE,
        [source, *held],
        [codes],
        attributes,
        domain=like.domain,
        dtype=kind,
        shape=source.shape,
        name=names.fresh(f"{name}_Q"),
    )
    result = names.fresh(f"{name}_dequantized")
    dequantize = build.node(
        DEQUANTIZE,
        [quantize.outputs[0], *held],
        [result],
        attributes,
        domain=like.domain,
        dtype=source.dtype,
        shape=source.shape,
        name=names.fresh(f"{name}_DQ"),
    )
    scope.insert_before(before, [quantize, dequantize])
    return dequantize.outputs[0]


def dequantize_of(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear, of ONNX or com.microsoft, that makes `value`; None where another node does."""
    maker = query.producer(value)
    return maker if is_dequantize(maker) else None
