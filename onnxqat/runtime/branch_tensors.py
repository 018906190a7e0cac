"""Tensors inside the branches of If, made visible to a session: a runtime returns outputs of the main graph only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import build, walk


def observable(model: ir.Model) -> dict[str, ir.Value]:
    """Values that a session can return, by name: inputs, initializers and outputs of nodes, in branches of If too."""
    main = model.graph
    list(walk.scopes(model))  # notes whose branch each graph is
    made = (v for graph in dataflow.reached_graphs(main) for v in walk.outputs(graph))
    values = (*main.inputs, *main.initializers.values(), *made)
    return {v.name: v for v in reversed(values) if v.name}  # of one name in several branches, the outermost and first


def lifted(value: ir.Value, names: build.Names) -> ir.Value:
    """A value of the main graph that holds `value` where the branch that makes it runs, else an empty tensor.

    Each If on the way out gets one output more: an Identity of the tensor in the one branch, an empty constant in the
    other. The model is changed; a value of the main graph comes back as it is.
    """
    producer = value.producer()
    graph = producer.graph if producer is not None else None
    holder = walk.holder(graph)
    while holder is not None:
        for branch in dataflow.branches(holder):
            branch.outputs.append(_returned(branch, value if branch is graph else None, value, names))
        holder.resize_outputs(len(holder.outputs) + 1)
        outer = holder.outputs[-1]
        outer.name, outer.type = names.fresh(f"{value.name}_observed"), value.type
        value, graph = outer, holder.graph
        holder = walk.holder(graph)
    return value


def _returned(branch: ir.Graph, value: ir.Value | None, like: ir.Value, names: build.Names) -> ir.Value:
    name, dtype = names.fresh(f"{like.name}_returned"), like.dtype or ir.DataType.FLOAT
    if value is not None:
        node = build.node("Identity", [value], [name], dtype=dtype)
    else:
        empty = build.tensor(np.zeros(0, np.float32), dtype, name)
        node = build.node("Constant", [], [name], {"value": empty}, dtype=dtype)
    branch.append(node)
    return node.outputs[0]
