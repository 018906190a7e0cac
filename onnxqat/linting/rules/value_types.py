"""Types and domains that the file's opset or its runtime does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import qdq, query
from onnxqat.linting import fix
from onnxqat.linting.context import LintContext, block_size, scale, storage
from onnxqat.linting.rule import Found, Rule
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.types import FLOAT_STORAGE, STORAGE, first_opset

PER_CHANNEL, BLOCKS, SHORT_SCALES, FREE_SCALES = 13, 21, 19, 23


def _needs(node: ir.Node) -> tuple[int, str]:
    """First opset that can express a Q or DQ node, and what of it needs that."""
    size, kind, step = scale(node), storage(node), query.input_at(node, 1)
    found = [(first_opset(kind) if kind in STORAGE or kind in FLOAT_STORAGE else 0, f"codes of type {kind}")]
    if size is not None and size.ndim and size.size > 1:
        found.append((PER_CHANNEL, "one scale a channel"))
    if block_size(node):
        found.append((BLOCKS, "scales of blocks"))
    if step is not None and step.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        found.append((SHORT_SCALES, f"a scale of type {step.dtype.name.lower()}"))
    return max(found)


def _opset(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        needed, what = _needs(node)
        if not node.domain and needed > file.opset(node):
            yield Found(f"{what} needs opset {needed}, the file imports {file.opset(node)}", node)


def _raise(file: LintContext, found: Sequence[Found]) -> None:
    """The whole model goes to the opset that the last of them needs."""
    needed = max(_needs(place.node)[0] for place in found if place.node is not None)
    fix.apply(RaiseOpset(needed), file.model)


def _scale_type(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        source, step = node.inputs[0], query.input_at(node, 1)
        if not qdq.is_quantize(node) or source is None or step is None or file.opset(node) >= FREE_SCALES:
            continue
        if source.dtype in query.FLOATS and step.dtype in query.FLOATS and source.dtype is not step.dtype:
            kinds = source.dtype, step.dtype
            yield Found(f"the tensor is {kinds[0].name.lower()}, its scale {kinds[1].name.lower()}", node)


def _contrib(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if node.domain and _needs(node)[0] <= file.opset(node):
            yield Found(
                f"{node.domain}:{node.op_type}, where ONNX's own operator of opset {file.opset(node)} would do", node
            )


def _to_onnx(file: LintContext, found: Sequence[Found]) -> None:
    """The same node in ONNX's own domain, its axis written out."""
    for place in found:
        if place.node is not None:
            place.node.domain = ""


def _unsaturated(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if qdq.is_quantize(node) and not query.attribute(node, "saturate", 1) and storage(node) in FLOAT_STORAGE:
            yield Found("values beyond the largest become NaN or infinity (saturate=0)", node)


def _truncating(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        source = node.inputs[0]
        if qdq.is_quantize(node) and source is not None and source.dtype is ir.DataType.FLOAT16:
            yield Found("a float16 tensor is quantized", node, str(source.name))


def _codes(file: LintContext) -> Iterator[Found]:
    """Stored int32 codes with a zero point: ONNX knows none there."""
    for node in file.ends:
        zero = query.constant_array(query.input_at(node, 2))
        if qdq.is_dequantize(node) and storage(node) == "int32" and zero is not None and np.any(zero):
            yield Found("int32 codes have a zero point other than 0", node)


RULES = (
    Rule(
        code="opset-too-low",
        severity="error",
        defect="the file's opset has no QuantizeLinear or DequantizeLinear of this kind",
        reason="runtimes refuse the model, or ignore the channel axis",
        remedy="raise the opset: 13 for one scale a channel, 19 for float8, 21 for 16 and 4 bits and blocks, 25 for 2 bits",
        source="ONNX operator schemas, versions 10, 13, 19, 21, 23 and 25; NVIDIA/TensorRT#1685",
        check=_opset,
        fix=_raise,
    ),
    Rule(
        code="scale-type",
        severity="error",
        defect="tensor and scale have different float types below opset 23",
        reason="the graph is invalid: runtimes refuse it",
        remedy="store the scale in the tensor's type, or quantize behind a Cast",
        source="ONNX QuantizeLinear 19 and 21; microsoft/onnxruntime#32719",
        check=_scale_type,
    ),
    Rule(
        code="int32-zero-point",
        severity="error",
        defect="int32 codes have a zero point other than 0",
        reason="ONNX has none there: onnxruntime refuses the model",
        remedy="subtract the zero point from the codes",
        source="ONNX DequantizeLinear 10 to 25: no zero point for int32",
        check=_codes,
    ),
    Rule(
        code="contrib-domain",
        severity="note",
        defect="the node is one of com.microsoft, though ONNX's own would do",
        reason="compilers other than onnxruntime do not know it",
        remedy="write the node in ONNX's own domain",
        source="onnxruntime contrib operators com.microsoft.QuantizeLinear and DequantizeLinear",
        check=_contrib,
        fix=_to_onnx,
    ),
    Rule(
        code="saturate-off",
        severity="warning",
        defect="a float8 quantizer does not saturate",
        reason="what exceeds the range becomes NaN or infinity and spreads",
        remedy="set saturate to 1",
        source="ONNX Cast 19 and QuantizeLinear 19, attribute saturate",
        check=_unsaturated,
    ),
    Rule(
        code="half-precision-input",
        severity="note",
        defect="a float16 tensor is quantized",
        reason="onnxruntime's CPU kernel truncates instead of rounding to even: other codes than on a GPU",
        remedy="quantize in float32, or compare on the device that is deployed",
        source="microsoft/onnxruntime#18576",
        check=_truncating,
    ),
)
