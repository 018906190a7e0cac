"""Outputs that depend on numbers which the graph draws: no two runs of it on the same input are alike."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import query, walk
from onnxqat.types import Remark

DRAWS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""ONNX's operators that draw numbers; Dropout does where it is told to train."""


def remarks(model: ir.Model) -> list[Remark]:
    """One remark that names the outputs of `model` which differ from run to run, and what draws their numbers."""
    drawing = [node for node in walk.nodes(model) if _draws(node)]
    outputs = _outputs_behind(drawing, model)
    if not outputs:
        return []
    made = ", ".join(f"{query.label(node)} ({node.op_type})" for node in drawing[:3])
    text = (
        f"{', '.join(map(repr, outputs))} differ from run to run, since {made} draws random numbers: comparing them "
        "means nothing. Export the network without (of a VAE the mean), or with the numbers as an input"
    )
    return [Remark(text, tuple(query.label(node) for node in drawing), "data", "result")]


def _draws(node: ir.Node) -> bool:
    if node.domain:
        return False
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        trains = query.constant_array(node.inputs[2])
        return trains is not None and bool(trains)
    return node.op_type in DRAWS


def _outputs_behind(nodes: list[ir.Node], model: ir.Model) -> list[str]:
    """Names of the outputs of the main graph that depend on `nodes`, in the order of the graph."""
    seen = dataflow.behind(nodes)
    return [str(v.name) for v in model.graph.outputs if v.producer() in seen]
