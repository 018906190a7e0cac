"""Edits that several passes share: collect remarks, exchange a constant, let one value take over from another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, graphsurgeon, query, walk
from onnxqat.passes._base import Rewrite
from onnxqat.types import Remark


class Log:
    """Log of what a pass changed and left alone, grouped by message so that 100 folded nodes are one remark."""

    def __init__(self) -> None:
        self.changed = False
        self._nodes: dict[str, dict[str, None]] = {}  # names once each, in order
        self._details: set[str] = set()

    def did(self, message: str, *nodes: ir.Node | str) -> None:
        """Note a rewrite."""
        self.changed = True
        self.left_for_later(message, *nodes)

    def left_for_later(self, message: str, *nodes: ir.Node | str) -> None:
        """Note that `nodes` were left to a later pass, which says what became of them: a detail."""
        self._details.add(message)
        self.left(message, *nodes)

    def left(self, message: str, *nodes: ir.Node | str) -> None:
        """Note that `nodes` were left alone; `message` says why."""
        names = [node if isinstance(node, str) else query.label(node) for node in nodes]
        self._nodes.setdefault(message, {}).update(dict.fromkeys(names))

    def result(self) -> Rewrite:
        """Result for ``Pass.rewrite``, with one remark per message."""
        remarks = (
            Remark(message, tuple(nodes), concern="detail" if message in self._details else "note")
            for message, nodes in self._nodes.items()
        )
        return Rewrite(self.changed, tuple(remarks))


def absorb(node: ir.Node, source: ir.Value) -> None:
    """Remove `node`; `source`, which nothing else may read, takes over its first output.

    Name, type, shape, metadata, consumers and graph output go over, so that the tensor that the user sees behind the
    removed node keeps its name.
    """
    output, scope = node.outputs[0], walk.scope_of(node)
    name = output.name
    output.replace_all_uses_with(source, replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name = None
    source.name = name
    source.type = output.type or source.type
    source.shape = output.shape if output.shape is not None else source.shape
    source.doc_string = output.doc_string or source.doc_string
    source.metadata_props.update(output.metadata_props)


def replace(node: ir.Node, made: ir.Value) -> None:
    """Remove `node`; readers, graph output and metadata of its first output go over to `made`, which has a name already."""
    output = node.outputs[0]
    made.metadata_props.update(output.metadata_props)
    output.replace_all_uses_with(made, replace_graph_outputs=True)
    walk.scope_of(node).remove(node, safe=True)


def as_gemm(scope: walk.Scope, matmul: ir.Node, stamp: dict[str, str]) -> ir.Node:
    """Replace a MatMul of two matrices by a Gemm, which has a bias; the node and its output keep their names."""
    output = matmul.outputs[0]
    name, node_name = str(output.name), matmul.name
    gemm = build.node(
        "Gemm", list(matmul.inputs), [name], dtype=output.dtype, shape=output.shape, name=node_name, stamp=stamp
    )
    scope.insert_before(matmul, gemm)
    output.replace_all_uses_with(gemm.outputs[0])
    scope.remove(matmul, safe=True)
    return gemm


def is_private(value: ir.Value) -> bool:
    """Check whether exactly one node input reads `value` and it is no graph output."""
    return query.reads(value) == 1 and not value.is_graph_output()


def exchange_constant(
    scope: walk.Scope, node: ir.Node, index: int, array: np.ndarray, names: build.Names, suffix: str
) -> None:
    """Let constant input `index` of `node` hold `array`, in the dtype that it has.

    An initializer that only this input reads is overwritten. Otherwise the others keep theirs, and this input gets
    ``<name>_<suffix>``.
    """
    old = node.inputs[index]
    found = query.constant_tensor(old)
    if old is None or found is None:
        raise ValueError(f"input {index} of {query.label(node)} is not constant")
    if old.producer() is None and is_private(old):
        old.const_value = build.tensor(array, found.dtype, old.name)
        old.shape = ir.Shape(array.shape)
        return
    new = build.constant(scope, names.fresh(f"{old.name}_{suffix}"), array, found.dtype, before=node)
    node.replace_input_with(index, new)
    drop_unused(old)


def drop_unused(value: ir.Value | None) -> None:
    """Remove a constant that nothing reads any more."""
    if value is None or query.is_used(value) or value.is_graph_input():
        return
    producer = value.producer()
    if producer is not None:
        if producer.op_type == "Constant" and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
    elif value.is_initializer() and value.graph is not None and value.name is not None:
        value.graph.initializers.pop(value.name)


def remove_with_constants(node: ir.Node) -> None:
    """Remove `node`, which nothing reads any more, and the constants that only it read."""
    inputs = list(node.inputs)
    walk.scope_of(node).remove(node, safe=True)
    for value in inputs:
        drop_unused(value)


def replace_by_constant(value: ir.Value, data: ir.TensorProtocol, graph: ir.Graph) -> None:
    """Let an initializer of `graph` take over from `value`, a node's output, under the same name; the node stays."""
    new = ir.Value(
        name=None,
        type=ir.TensorType(data.dtype),
        shape=ir.Shape(data.shape.numpy()),
        doc_string=value.doc_string,
        const_value=data,
        metadata_props=value.metadata_props,
    )
    name = value.name
    value.replace_all_uses_with(new)
    value.name = None
    new.name = name
    graph.register_initializer(new)


def inline_graphs(model: ir.Model) -> list[ir.Graph]:
    """The main graph and its subgraphs, where constants are initializers; function bodies and theirs are not in it."""
    return [model.graph, *model.graph.subgraphs()]


def scope_map(model: ir.Model) -> dict[int, walk.Scope]:
    """The scope of each graph, by the graph's id; a node of a function body knows its inner graph only."""
    return {id(s.graph if isinstance(s, ir.Function) else s): s for s in walk.scopes(model)}


def adopt(model: ir.Model, other: ir.Model) -> None:
    """Let `model` hold the graphs of `other`, which another tool rewrote, with the notes that it had before."""
    graphsurgeon.restore_metadata(model, other)
    model.graph = other.graph
    model.functions.clear()
    model.functions.update(other.functions)
    model.ir_version = other.ir_version
