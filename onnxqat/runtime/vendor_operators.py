"""Operators that onnxruntime does not have, of a vendor's domain: calibration runs what does not depend on them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.runtime import custom_ops
from onnxqat.types import Remark

RUNTIME_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"}
    | {"com.microsoft", "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)


def dependents(model: ir.Model) -> list[ir.Node]:
    """Nodes of the main graph that are, hold or depend on an operator that onnxruntime does not have, in order."""
    found: list[ir.Node] = []
    behind: set[int] = set()
    for node in model.graph:
        inside = [n for body in walk.subgraphs(node) for n in body.all_nodes()]
        reads = {id(v) for n in (node, *inside) for v in n.inputs}
        if reads & behind or any(_is_foreign(n, model) for n in (node, *inside)):
            found.append(node)
            behind.update(id(v) for v in node.outputs)
    return found


def _is_foreign(node: ir.Node, model: ir.Model) -> bool:
    """Check whether onnxruntime lacks the operator; with custom-operator libraries none is assumed to be missing."""
    return (
        not custom_ops.libraries()
        and node.domain not in RUNTIME_DOMAINS
        and node.op_identifier() not in model.functions
    )


def out_of_reach(model: ir.Model) -> tuple[list[str], str, list[Remark]]:
    """Names of nodes that calibration cannot run, those in bodies too; the reason; and a remark."""
    nodes: list[ir.Node] = []
    for node in dependents(model):
        nodes.append(node)
        for body in walk.subgraphs(node):
            nodes.extend(body.all_nodes())
    foreign = [n for n in nodes if _is_foreign(n, model)]
    if not foreign:
        return [], "", []
    kinds = ", ".join(sorted({f"{n.domain}:{n.op_type}" for n in foreign}))
    message = f"onnxruntime has no operator {kinds}: calibration stops in front of it, and what follows stays float"
    message += f"; {custom_ops.VARIABLE} names libraries of such operators"
    reason = f"follows {kinds}, which calibration cannot run"
    return [str(n.name) for n in nodes], reason, [Remark(message, tuple(map(query.label, foreign)), "calibrate")]


def runnable_part(model: ir.Model) -> ir.Model:
    """`model` without the nodes that onnxruntime cannot run and the outputs that they lead to; itself where it can."""
    if not dependents(model):
        return model
    copy = model.clone()
    cut = dependents(copy)
    made = set(map(id, walk.outputs(cut)))
    kept = [v for v in copy.graph.outputs if id(v) not in made]
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(kept)
    copy.graph.remove(cut, safe=True)
    return copy
