"""Operators, attributes and opsets that a target refuses or runs in float; the pre-flight of a float model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.backends import conditions
from onnxqat.graph import quantized_forms, query, windows
from onnxqat.graph.layers import LAYERS, RECURRENT
from onnxqat.linting import fix
from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule
from onnxqat.passes import _opset as _opset_of
from onnxqat.passes.raise_opset import RaiseOpset

HEAVY = (*LAYERS, *RECURRENT)


def _refused(file: LintContext) -> Iterator[Found]:
    if file.refusal is not None and file.table is not None:
        error = file.refusal
        if file.is_quantized:
            yield Found(f"what the target wants cannot be compared: {error.message}", severity="note")
        else:
            yield Found(error.message)


def _float(file: LintContext) -> Iterator[Found]:
    target = file.target
    for name, reason in () if target is None else target.plan.float_nodes:
        assert target is not None
        if name in target.fused:
            continue
        node = target.original(name)
        if node is not None and quantized_forms.is_integer_operator(node):
            continue  # the rules of other forms tell of it, and it does not run in float
        op_type = node.op_type if node is not None else ""
        # in a QDQ file that is as it should be; before calibration it is news
        heavy = op_type in HEAVY and not file.is_quantized
        yield Found(f"{op_type or name} runs in float: {reason}", node, "", "warning" if heavy else None)


def _remarks(file: LintContext) -> Iterator[Found]:
    target = file.target
    for remark in () if target is None or file.is_quantized else target.plan.remarks:
        assert target is not None
        node = next((n for name in remark.nodes if (n := target.original(name)) is not None), None)
        yield Found(remark.message, node)


def _opset(file: LintContext) -> Iterator[Found]:
    if file.table is None:
        return
    have, (low, high) = query.opset(file.model), file.table.opset
    if have > high or (have < low and file.is_quantized):
        # of a float model, what insert-qdq makes of it counts: some operators become their parts
        model = file.model if file.is_quantized or file.target is None else file.target.plain.model
        lowest = _opset_of.lowest_opset(model) if have > high and not model.functions else have
        text = f"the file imports opset {have}; {file.table.backend} reads {low} to {high}"
        yield Found(f"{text}, and handoff lowers it to {lowest}", severity="note") if lowest <= high else Found(text)


def _lower_opset(file: LintContext, found: Sequence[Found]) -> None:
    """To the target's lowest, or as low as the operators allow."""
    if not found or file.table is None:
        return
    if query.opset(file.model) < file.table.opset[0]:
        fix.apply(RaiseOpset(file.table.opset[0]), file.model)
    elif not file.model.functions and _opset_of.lowest_opset(file.model) <= file.table.opset[1]:
        _opset_of.lower(file.model)
        if query.opset(file.model) < file.table.opset[0]:
            fix.apply(RaiseOpset(file.table.opset[0]), file.model)


def _attributes(file: LintContext) -> Iterator[Found]:
    for node in file.nodes if file.table is not None else ():
        assert file.table is not None
        row = file.table.ops.get(node.op_type) if not node.domain else None
        if row is None or file.reading(node, 0) is None or not any(file.on(v) for v in node.outputs):
            continue
        for key in conditions.unmet(node, row.when):
            if not _is_idle(file, node, key):
                taken = conditions.spelled(key, row.when[key])
                yield Found(f"{file.table.backend} takes it on integers only {taken}", node)


def _is_idle(file: LintContext, node: ir.Node, name: str) -> bool:
    """Check whether an unmet attribute has no effect: ``count_include_pad`` without padding, or with zero point 0."""
    if name != "count_include_pad":
        return False
    quantizer = file.reading(node, 0)
    return not windows.is_padded(node) or quantizer is None or not quantizer.qparams.zero_point.any()


RULES = (
    Rule(
        code="target-refused",
        severity="error",
        defect="the model cannot be prepared for the target",
        reason="placement would stop there",
        remedy="see the message; every code is explained in the page of errors",
        source="prepare passes of insert-qdq",
        check=_refused,
        target=True,
    ),
    Rule(
        code="target-opset",
        severity="error",
        defect="the file's opset is not one that the target reads",
        reason="the target refuses the file; RKNN: `Unsupport onnx opset 21, need <= 19!`",
        remedy="export at an opset in the range; handoff lowers it as far as the operators allow",
        source="backend table, opset",
        check=_opset,
        fix=_lower_opset,
        target=True,
    ),
    Rule(
        code="target-operator-float",
        severity="note",
        defect="the target runs an operator in float",
        reason="around it values are dequantized and quantized again; on a device without float units the file is refused",
        remedy="replace the operator by one that the target has on integers, or accept it",
        source="backend table, ops, and the planner's reasons",
        check=_float,
        target=True,
    ),
    Rule(
        code="target-remark",
        severity="note",
        defect="placement for the target has something to say",
        reason="it will say so after calibration too",
        remedy="see the message",
        source="planner",
        check=_remarks,
        target=True,
    ),
    Rule(
        code="target-attribute",
        severity="error",
        defect="an operator is quantized in a form that the target's table excludes",
        reason="OpenVINO gives border values that are off by up to 201 LSB for a padded AveragePool that counts its padding",
        remedy="leave the operator in float, or change the attribute",
        source="backend table, ops, key when; OpenVINO run with count_include_pad=1 and a zero point",
        check=_attributes,
        target=True,
    ),
)
