"""Tensors that should share one grid and do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.graph import data_movement, edit, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, constant_values, is_integer, same_grid, same_width
from onnxqat.linting.rule import Found, Rule
from onnxqat.ops import operators as ops

MIXED = 100.0
"""Ratio of ranges from which on the smaller branch of a Concat has at most two codes left of 256."""


def _moved(file: LintContext) -> Iterator[tuple[ir.Node, Quantizer, Quantizer]]:
    """Operators that only move numbers, their input's quantizer and one behind them that differs from it."""
    for node in file.nodes:
        inner = file.reading(node, 0) if _moves(file, node) and node.inputs else None
        if inner is None or inner.qparams.scale.ndim or not is_integer(inner) or node.op_type == "Identity":
            continue
        for value in node.outputs:
            for outer in file.on(value):
                if same_width(inner, outer) and not same_grid(inner, outer) and not outer.qparams.scale.ndim:
                    yield node, inner, outer


def _moves(file: LintContext, node: ir.Node) -> bool:
    """Check whether `node` only moves numbers, on integers too where there is a target."""
    if file.table is None or not ops.is_passthrough(node) or data_movement.is_removed(node):
        return ops.is_passthrough(node)
    return not {node.op_type, f"{node.op_type}/{query.mode(node)}"}.isdisjoint(file.table.passthrough)


def _passthrough(file: LintContext) -> Iterator[Found]:
    for node, inner, outer in _moved(file):
        ratio = float(outer.qparams.scale / inner.qparams.scale)
        zeros = int(inner.qparams.zero_point), int(outer.qparams.zero_point)
        text = f"{node.op_type} goes from one grid to another: scale times {ratio:.6g}, zero point {zeros[0]} to {zeros[1]}"
        yield Found(text, node, outer.tensor)


def _take_over(file: LintContext, found: Sequence[Found]) -> None:
    """The pair behind takes the parameters in front: what it gets lies on that grid, so it changes nothing any more."""
    nodes = {id(place.node) for place in found}
    for node, inner, outer in list(_moved(file)):
        source = inner.dequantize[0]
        if id(node) not in nodes or source.graph is not outer.nodes[0].graph or len(source.inputs) < 3:
            continue
        for end in (*outer.dequantize, outer.quantize):
            if end is not None and len(end.inputs) == 3:
                edit.rewire([(end, 1)], source.inputs[1])  # type: ignore[arg-type]
                edit.rewire([(end, 2)], source.inputs[2])  # type: ignore[arg-type]
    edit.remove_unused(file.model)


def _concat_quantizers(file: LintContext) -> Iterator[tuple[ir.Node, list[Quantizer], Quantizer | None]]:
    for node in file.layers("Concat"):
        sides = [file.reading(node, index) for index in range(len(node.inputs))]
        known = [q for q in sides if q is not None and is_integer(q) and not q.qparams.scale.ndim]
        behind = [q for q in file.on(node.outputs[0]) if is_integer(q) and not q.qparams.scale.ndim]
        if len(known) > 1:
            yield node, known, behind[0] if behind else None


def _concat(file: LintContext) -> Iterator[Found]:
    for node, sides, behind in _concat_quantizers(file):
        grids = [*sides, *([behind] if behind is not None else [])]
        if any(not same_grid(grids[0], other) for other in grids[1:]):
            scales = sorted(float(q.qparams.scale) for q in grids)
            yield Found(f"its inputs and output have scales from {scales[0]:.4g} to {scales[-1]:.4g}", node)


def _range(quantizer: Quantizer) -> float:
    grid = quantizer.qparams.qtype
    return float(quantizer.qparams.scale) * (grid.quant_max - grid.quant_min)


def _mixed(file: LintContext) -> Iterator[Found]:
    for node, sides, behind in _concat_quantizers(file):
        ranges = sorted(map(_range, sides))
        if behind is not None and behind.qparams.qtype.bits <= 8 and ranges[-1] > MIXED * ranges[0]:
            text = f"ranges from {ranges[0]:.4g} to {ranges[-1]:.4g} are joined on one scale"
            yield Found(text, node, behind.tensor)


def _ties(file: LintContext) -> Iterator[Found]:
    """Branches of an addition whose scales differ so much that one of them is lost."""
    for node in file.layers("Add", "Sub"):
        sides = [file.reading(node, index) for index in (0, 1)]
        known = [
            q
            for q in sides
            if q is not None
            and is_integer(q)
            and not q.qparams.scale.ndim
            and q.role == "activation"
            and constant_values(q) is None
        ]
        behind = [q for q in file.on(node.outputs[0]) if is_integer(q) and not q.qparams.scale.ndim]
        if len(known) == 2 and behind:
            small = min(map(_range, known))
            if small < 2.0 * float(behind[0].qparams.scale):
                yield Found(
                    f"one input's whole range, {small:.4g}, is less than two LSB of the sum", node, behind[0].tensor
                )


RULES = (
    Rule(
        code="moved-grid",
        severity="warning",
        defect="an operator that only moves numbers has another grid behind it than in front of it",
        reason="numbers are rounded again for nothing, and onnxruntime and QNN run MaxPool, Reshape and their like in float",
        remedy="give the pair behind the parameters of the pair in front; less is rounded then",
        source="MaxPool with different scales run: float in onnxruntime and QNN; microsoft/onnxruntime#18332",
        check=_passthrough,
        fix=_take_over,
    ),
    Rule(
        code="concat-grids",
        severity="note",
        defect="inputs and output of a Concat have different scales",
        reason="each branch that differs is requantized: one more node in OpenVINO, a slower kernel elsewhere",
        remedy="merge the ranges, so that all share one scale, unless the ranges differ by much",
        source="OpenVINO run: one FakeQuantize less with shared scales; NVIDIA/TensorRT#3861",
        check=_concat,
        table_decides=True,
    ),
    Rule(
        code="concat-mixed-range",
        severity="warning",
        defect="a Concat joins branches of very different range on one scale",
        reason="the small branch keeps one or two codes: boxes of 0..640 leave nothing of scores of 0..1",
        remedy="leave the Concat in float, or quantize it to 16 bits",
        source="ultralytics/ultralytics#14711, meituan/YOLOv6#969",
        check=_mixed,
    ),
    Rule(
        code="sum-swallows-input",
        severity="warning",
        defect="one input of an addition is smaller than an LSB of the sum",
        reason="the branch has no effect any more",
        remedy="quantize the sum to 16 bits, or leave it in float",
        source="arithmetic of the grids; residual branches of very different range",
        check=_ties,
    ),
)
