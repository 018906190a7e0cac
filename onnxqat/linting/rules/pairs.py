"""Q and DQ nodes that do not make up a pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import edit, qdq, query, walk
from onnxqat.linting.context import LintContext, axis, block_size, scale, storage, zero_point
from onnxqat.linting.rule import Found, Rule, Severity
from onnxqat.ops import operators as ops
from onnxqat.types import STORAGE

_INTEGER_OPERATORS = ("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger", "QOrdered", "QEmbed")


def _codes_of(quantize: ir.Node) -> ir.Value:
    """The codes that readers see: behind a Clip that only limits them."""
    codes = quantize.outputs[0]
    users = codes.consumers()
    if len(users) == 1 and users[0].op_type == "Clip" and not users[0].domain and not codes.is_graph_output():
        return users[0].outputs[0]
    return codes


def _differences(quantize: ir.Node, dequantize: ir.Node) -> Iterator[str]:
    """Yield each way in which the two ends of a pair disagree: scale, zero point, axis, size of blocks."""
    scales, zeros = (scale(quantize), scale(dequantize)), (zero_point(quantize), zero_point(dequantize))
    if scales[0] is None or scales[1] is None:
        if quantize.inputs[1] is not dequantize.inputs[1]:
            yield "computed scales of different origin"
        return
    if scales[0].shape != scales[1].shape:
        yield f"scales of shape {scales[0].shape} and {scales[1].shape}"
    elif not np.array_equal(scales[0], scales[1], equal_nan=True):
        ratio = np.divide(scales[1], scales[0], out=np.ones_like(scales[0]), where=scales[0] != 0)
        yield f"scales that differ by a factor of up to {ratio.ravel()[np.abs(np.log(np.abs(ratio) + 1e-30)).argmax()]:.6g}"
    if (
        zeros[0] is not None
        and zeros[1] is not None
        and zeros[0].shape == zeros[1].shape
        and (zeros[0] != zeros[1]).any()
    ):
        yield f"zero points that differ by up to {int(np.abs(zeros[0] - zeros[1]).max())}"
    rank = query.rank(quantize.inputs[0]) or 0
    if scales[0].ndim and axis(quantize) % max(rank, 1) != axis(dequantize) % max(rank, 1):
        yield f"axis {axis(quantize)} and axis {axis(dequantize)}"
    if block_size(quantize) != block_size(dequantize):
        yield f"block sizes {block_size(quantize)} and {block_size(dequantize)}"


def _mismatch(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if not qdq.is_quantize(node):
            continue
        for user in _codes_of(node).consumers():
            found = list(_differences(node, user)) if qdq.is_dequantize(user) else []
            if found:
                yield Found(
                    f"{query.label(node)} and {query.label(user)} have " + ", ".join(found),
                    user,
                    str(getattr(node.inputs[0], "name", "")),
                )


def _unused_quantize(file: LintContext) -> Iterator[Found]:
    yield from _unused(file, qdq.QUANTIZE)


def _unused_dequantize(file: LintContext) -> Iterator[Found]:
    yield from _unused(file, qdq.DEQUANTIZE)


def _unused(file: LintContext, op_type: str) -> Iterator[Found]:
    for node in file.ends:
        value = node.outputs[0]
        if node.op_type == op_type and not query.is_used(value):
            yield Found("nothing reads its result", node, str(value.name))


def _remove(file: LintContext, found: Sequence[Found]) -> None:
    """The node goes, and what was there for it alone."""
    for place in found:
        node = place.node
        if node is not None and node.graph is not None:
            walk.scope_of(node).remove(node, safe=True)
    edit.remove_unused(file.model)


def _read_as_codes(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if not qdq.is_quantize(node):
            continue
        codes = _codes_of(node)
        users = [u for u in codes.consumers() if not qdq.is_dequantize(u)]
        for user in users[:1]:
            kind = user.op_type
            known = kind.startswith(_INTEGER_OPERATORS)
            text = f"{query.label(user)} ({kind}) reads the integer codes"
            yield Found(text, node, str(codes.name), "note" if known else None)


def _leaving(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        codes = _codes_of(node)
        if qdq.is_quantize(node) and codes.is_graph_output():
            yield Found(f"the codes ({storage(node)}) are an output of the graph", node, str(codes.name))


def _find_lone_dequantizes(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if not qdq.is_dequantize(node) or qdq.is_quantize(query.producer(node.inputs[0])):
            continue
        origin = _origin_of_codes(node.inputs[0])
        if origin is None or query.constant_tensor(origin) is not None:
            continue
        maker = origin.producer()
        if maker is None:
            kind: Severity | None = "note" if origin.is_graph_input() else None
            yield Found(f"its codes are the graph input {origin.name!r}", node, str(origin.name), kind)
        elif not qdq.is_quantize(maker):
            known = maker.op_type.startswith((*_INTEGER_OPERATORS, "DynamicQuantize"))
            text = f"its codes come from {query.label(maker)} ({maker.op_type})"
            yield Found(text, node, str(origin.name), "note" if known else None)


def _origin_of_codes(value: ir.Value | None) -> ir.Value | None:
    """Return the value that the codes come from, in front of Clips and operators that only move them."""
    while value is not None and (maker := value.producer()) is not None:
        if not (maker.op_type == "Clip" or ops.is_passthrough(maker)) or not maker.inputs:
            break
        value = maker.inputs[0]
    return value


def _clip(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        codes = _codes_of(node)
        clip = codes.producer()
        if not qdq.is_quantize(node) or clip is None or clip.op_type != "Clip" or storage(node) not in STORAGE:
            continue
        low, high, _ = STORAGE[storage(node)]
        bounds = [low, high]
        constant = True
        for index in (1, 2):
            value = query.input_at(clip, index)
            array = query.constant_array(value)
            constant &= value is None or (array is not None and array.size == 1)
            if array is not None and array.size == 1:
                bounds[index - 1] = int(np.asarray(array).astype(np.int64).reshape(()))
        if not constant or not bounds[0] < bounds[1]:
            text = f"limits {bounds[0]}..{bounds[1]}" if constant else "limits that are computed"
            yield Found(f"the Clip of the codes has {text}", clip, str(codes.name))


RULES = (
    Rule(
        code="pair-mismatch",
        severity="error",
        defect="QuantizeLinear and its DequantizeLinear differ in scale, zero point, axis or blocks",
        reason="values come back scaled, shifted or torn; compilers use the parameters of one of the two, silently",
        remedy="let both read the same constants",
        source="ONNX DequantizeLinear; onnxruntime qdq_util.cc IsQDQPairSupported",
        check=_mismatch,
    ),
    Rule(
        code="quantize-unused",
        severity="warning",
        defect="nothing reads the result of a QuantizeLinear",
        reason="it costs time, and some compilers stop at it",
        remedy="remove it",
        source="dx-com 2.5 `GraphStructureError: Graph contains isolated node(s)`",
        check=_unused_quantize,
        fix=_remove,
    ),
    Rule(
        code="dequantize-unused",
        severity="warning",
        defect="nothing reads the result of a DequantizeLinear",
        reason="it costs time, and some compilers stop at it",
        remedy="remove it",
        source="dx-com 2.5 `GraphStructureError: Graph contains isolated node(s)`",
        check=_unused_dequantize,
        fix=_remove,
    ),
    Rule(
        code="codes-read",
        severity="warning",
        defect="an operator reads the integer codes without DequantizeLinear",
        reason="compilers recognise QuantizeLinear followed by DequantizeLinear only; the tensor's neighbours run in float",
        remedy="put a DequantizeLinear right behind the QuantizeLinear, and let the operator read that",
        source="onnxruntime qdq_selectors.cc; openvinotoolkit/openvino#2976 (QDQ form advised)",
        check=_read_as_codes,
    ),
    Rule(
        code="codes-leave",
        severity="note",
        defect="the integer codes are a graph output",
        reason="the caller must dequantize by itself, with a scale that the interface does not tell",
        remedy="put a DequantizeLinear at the end, unless the device's driver wants codes",
        source="microsoft/onnxruntime#13328",
        check=_leaving,
    ),
    Rule(
        code="dequantize-alone",
        severity="warning",
        defect="the codes of a DequantizeLinear come neither from a QuantizeLinear nor from a constant",
        reason="compilers recognise no quantizer here; the operator behind it runs in float",
        remedy="quantize the float tensor with a pair of its own",
        source="onnxruntime qdq_selectors.cc",
        check=_find_lone_dequantizes,
    ),
    Rule(
        code="codes-clip",
        severity="error",
        defect="the Clip between QuantizeLinear and DequantizeLinear has no two constant limits",
        reason="the grid is not known: no tool can train or deploy it",
        remedy="give the Clip two constants of the codes' type, the smaller one first",
        source="QCDQ form, fastmachinelearning/qonnx docs",
        check=_clip,
    ),
)
