"""Nodes that the target's compiler stops at, or leaves to the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule
from onnxqat.placement import compiler_limits


def _met(file: LintContext, *, stops: bool) -> Iterator[Found]:
    target = file.target
    if target is None or not target.table.limits:
        return
    planned = compiler_limits.planned(target.plan)

    def is_quantized(node: ir.Node) -> bool:
        original = target.original(str(node.name))
        if not file.is_quantized or original is None:
            return planned(node)
        reads = any(file.reading(original, index) is not None for index in range(len(original.inputs)))
        return reads and any(map(file.on, original.outputs))

    for node, limit in compiler_limits.met(target.plain.model, target.table, is_quantized):
        if limit.stops == stops:
            original = target.original(str(node.name))
            yield Found(compiler_limits.sentence(node, limit, target.table), node if original is None else original)


def _refused(file: LintContext) -> Iterator[Found]:
    return _met(file, stops=True)


def _left(file: LintContext) -> Iterator[Found]:
    return _met(file, stops=False)


RULES = (
    Rule(
        code="target-compiler-stops",
        severity="error",
        defect="the target's compiler refuses, crashes or hangs at a node",
        reason="nothing is compiled, whatever the rest of the model is",
        remedy="replace the operator, or cut it off with `onnxqat cut`",
        source="backend table, limits: what the compiler did with one-operator models",
        check=_refused,
        target=True,
    ),
    Rule(
        code="target-node-on-cpu",
        severity="warning",
        defect="the target's compiler leaves a node to the CPU",
        reason="data go to the CPU and back for it",
        remedy="replace the operator by one that the target has, or accept it",
        source="backend table, limits: what the compiler did with one-operator models",
        check=_left,
        target=True,
    ),
)
