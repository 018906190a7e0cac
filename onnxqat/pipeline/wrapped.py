"""The same graph in other places: as both bodies of an If, and as a model-local function."""

from __future__ import annotations

import onnx
from onnx import helper


def in_if(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the graph as both bodies of an If that reads the graph's inputs from outside."""
    wrapped = onnx.ModelProto()
    wrapped.CopyFrom(model)
    graph = wrapped.graph
    constant = {i.name for i in graph.initializer}
    outer = [v for v in graph.input if v.name not in constant]
    branches = []
    for branch in ("then_", "else_"):
        inner = onnx.GraphProto()
        inner.CopyFrom(graph)
        inner.name = branch + graph.name
        del inner.input[:]
        kept = {v.name for v in outer}
        _rename(inner, {name: branch + name for name in _names_of(inner) if name and name not in kept})
        branches.append(inner)
    outputs = [v.name for v in graph.output]
    choose = helper.make_node(
        "If", ["choose"], outputs, name="choose_If", then_branch=branches[0], else_branch=branches[1]
    )
    flag = helper.make_tensor_value_info("choose", onnx.TensorProto.BOOL, [])
    new = helper.make_graph([choose], graph.name, [flag, *outer], list(graph.output))
    wrapped.graph.CopyFrom(new)
    wrapped.ir_version = max(wrapped.ir_version, 4)
    onnx.checker.check_model(wrapped)
    return wrapped


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the graph as a model-local function, its initializers as Constant nodes."""
    wrapped = onnx.ModelProto()
    wrapped.CopyFrom(model)
    graph = wrapped.graph
    constant = {i.name for i in graph.initializer}
    outer = [v for v in graph.input if v.name not in constant]
    nodes = [helper.make_node("Constant", [], [i.name], name=f"{i.name}_node", value=i) for i in graph.initializer]
    function = helper.make_function(
        "local",
        "body",
        [v.name for v in outer],
        [v.name for v in graph.output],
        [*nodes, *graph.node],
        [helper.make_opsetid(e.domain, e.version) for e in model.opset_import],
    )
    call = helper.make_node(
        "body", [v.name for v in outer], [v.name for v in graph.output], name="call", domain="local"
    )
    wrapped.graph.CopyFrom(helper.make_graph([call], graph.name, outer, list(graph.output)))
    wrapped.functions.append(function)
    wrapped.opset_import.append(helper.make_opsetid("local", 1))
    wrapped.ir_version = max(wrapped.ir_version, 8)
    onnx.checker.check_model(wrapped)
    return wrapped


def _names_of(graph: onnx.GraphProto) -> set[str]:
    found = {i.name for i in graph.initializer} | {v.name for v in graph.output}
    for node in graph.node:
        found.update(node.input)
        found.update(node.output)
    return found


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for item in (*graph.initializer, *graph.output, *graph.value_info):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        if node.name:
            node.name = graph.name + node.name
