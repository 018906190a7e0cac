"""Models that are quantized in another form than pairs: operators on codes, dynamic quantization, vendors' operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxqat.graph import quantized_forms
from onnxqat.linting import fix
from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule
from onnxqat.passes.qoperator_to_qdq import to_qdq_form


def _kinds(nodes: Sequence[ir.Node], text: Callable[[ir.Node], str]) -> Iterator[Found]:
    """One finding per operator of `nodes`, at its first node, with the number of its nodes."""
    for kind in dict.fromkeys((node.domain, node.op_type) for node in nodes):
        of_kind = [node for node in nodes if (node.domain, node.op_type) == kind]
        count = f"{len(of_kind)} nodes" if len(of_kind) > 1 else "1 node"
        yield Found(f"{count} of {text(of_kind[0])}", of_kind[0])


def _qoperators(file: LintContext) -> Iterator[Found]:
    yield from _kinds([n for n in file.nodes if quantized_forms.is_qoperator(n)], lambda node: node.op_type)


def _dynamic(file: LintContext) -> Iterator[Found]:
    yield from _kinds(quantized_forms.dynamic(file.nodes), lambda node: node.op_type)


def _vendor(file: LintContext) -> Iterator[Found]:
    def text(node: ir.Node) -> str:
        tool = quantized_forms.tool_of(node.domain)
        return f"{node.op_type}, domain {node.domain}" + (f" ({tool})" if tool else "")

    yield from _kinds([n for n in file.nodes if quantized_forms.is_vendor_quantizer(n)], text)


def _to_pairs(file: LintContext, found: Sequence[Found]) -> None:
    for step in to_qdq_form():
        fix.apply(step, file.model)


RULES = (
    Rule(
        code="qoperator-form",
        severity="note",
        defect="operators on codes (QLinearConv, QGemm) instead of pairs",
        reason="onnxruntime runs them; other compilers take pairs, and there are no quantizers to train",
        remedy="write it as QDQ: the same grids and codes, equal but for ties; finetune does so by itself",
        source="onnxruntime quantization, QuantFormat.QOperator and QuantFormat.QDQ",
        check=_qoperators,
        fix=_to_pairs,
    ),
    Rule(
        code="dynamic-quantization",
        severity="note",
        defect="scales follow from each batch while the model runs",
        reason="compilers of integer hardware need scales that are constant, and there is nothing to train",
        remedy="start from the float model, with onnxqat insert-qdq",
        source="onnxruntime quantize_dynamic; ONNX DynamicQuantizeLinear 11",
        check=_dynamic,
    ),
    Rule(
        code="vendor-quantizers",
        severity="warning",
        defect="quantizers of another tool's domain",
        reason="no runtime but that tool's has them, and what they mean is not written in the file",
        remedy="export with QuantizeLinear and DequantizeLinear of ONNX, which most of these tools can write",
        source="onnx.brevitas and QONNX Quant; NVIDIA ModelOpt TRT_FP8QuantizeLinear; AMD Quark ExtendedQuantizeLinear",
        check=_vendor,
    ),
)
