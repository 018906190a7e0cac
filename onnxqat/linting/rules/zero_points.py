"""Zero points of another type than the codes, left out, or outside the grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, qdq, query, walk
from onnxqat.linting.context import LintContext, scale, storage
from onnxqat.linting.rule import Found, Rule
from onnxqat.types import FLOAT_STORAGE, STORAGE


def _type(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        value = query.input_at(node, 2)
        if value is None or value.dtype is None:
            continue
        kind = value.dtype.name.lower()
        if kind not in STORAGE and kind not in FLOAT_STORAGE:
            yield Found(f"the zero point is of type {kind}", node, str(value.name))
            continue
        quantizes = qdq.is_quantize(node)
        held = node.outputs[0] if quantizes else node.inputs[0]
        codes = None if held is None else held.dtype
        stated = int(query.attribute(node, "output_dtype", 0)) if quantizes else 0
        if stated and stated in set(ir.DataType):
            codes = ir.DataType(stated)
        if codes is not None and codes is not value.dtype:
            yield Found(f"the zero point is of type {kind}, the codes {codes.name.lower()}", node, str(value.name))


def _omitted(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            kind = storage(node)
            signed = qdq.is_dequantize(node) and kind.startswith("int")
            yield Found(
                f"no zero point is written; the codes are {kind or 'of unknown type'}",
                node,
                severity=None if signed else "note",
            )


def _write(file: LintContext, found: Sequence[Found]) -> None:
    """Zeros of the codes' type."""
    names = build.Names(file.model)
    for place in found:
        node = place.node
        assert node is not None
        size, kind = scale(node), storage(node)
        if size is None or kind not in STORAGE:
            continue
        zeros = np.zeros(size.shape, np.int64)
        name = names.fresh(f"{node.inputs[0].name if node.inputs[0] else 'codes'}_zero_point")
        made = build.constant(walk.scope_of(node), name, zeros, ir.DataType[kind.upper()], before=node)
        node.resize_inputs(3)
        node.replace_input_with(2, made)


def _outside(file: LintContext) -> Iterator[Found]:
    for quantizer in file.quantizers:
        grid, zero = quantizer.qparams.qtype, quantizer.qparams.zero_point
        if not grid.is_float and zero.size and (zero.min() < grid.quant_min or zero.max() > grid.quant_max):
            text = f"zero point {int(zero.min())}..{int(zero.max())} on the grid {grid.quant_min}..{grid.quant_max}"
            yield Found(text, quantizer.nodes[0], quantizer.tensor)


RULES = (
    Rule(
        code="zero-point-type",
        severity="error",
        defect="the zero point has another type than the codes",
        reason="the graph is invalid: runtimes refuse it, or read the codes as another type",
        remedy="store the zero point in the type of the codes",
        source="ONNX QuantizeLinear and DequantizeLinear 10 to 25; OpenPPL/ppq#97",
        check=_type,
    ),
    Rule(
        code="zero-point-omitted",
        severity="warning",
        defect="the zero point is left out",
        reason="onnxruntime folded such a DequantizeLinear of negative int8 constants to 0, and some compilers demand three inputs",
        remedy="write a zero point of 0 in the type of the codes",
        source="microsoft/onnxruntime#28491; tpu-mlir asserts three inputs",
        check=_omitted,
        fix=_write,
    ),
    Rule(
        code="zero-point-outside-grid",
        severity="warning",
        defect="the zero point is no code of the grid",
        reason="0 cannot be represented: padding, Relu and zero weights are off by a constant",
        remedy="widen the range until it contains 0 before parameters are computed",
        source="onnxruntime quant_utils.compute_scale_zp: the range always includes 0",
        check=_outside,
    ),
)
