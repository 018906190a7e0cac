"""Walks over every scope of a model: main graph, subgraphs of control flow, model-local functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import onnx_ir as ir

Scope: TypeAlias = "ir.Graph | ir.Function"

_FUNCTION = "onnxqat.function"  # keys of a graph's in-memory notes, not of its metadata
_HOLDER = "onnxqat.holder"
_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """The main graph, its subgraphs (outermost first), then each function with its subgraphs."""
    yield model.graph
    yield from _nested_graphs(model.graph)
    for function in model.functions.values():
        function.graph.meta[_FUNCTION] = function
        yield function
        yield from _nested_graphs(function)


def _nested_graphs(scope: Scope) -> Iterator[ir.Graph]:
    for node in scope:
        for graph in subgraphs(node):
            yield graph
            yield from _nested_graphs(graph)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The bodies that `node` itself holds, in the order of its attributes."""
    for attribute in node.attributes.data.values():  # the dict inside: every walk asks every node, most have no bodies
        if attribute.type not in _BODIES or attribute.is_ref():
            continue
        single = attribute.type == ir.AttributeType.GRAPH
        for graph in [attribute.as_graph()] if single else attribute.as_graphs():
            graph.meta[_HOLDER] = node
            yield graph


def holder(graph: ir.Graph | None) -> ir.Node | None:
    """The node whose body `graph` is, None for a main graph; known once a walk has passed that node."""
    found = None if graph is None else graph.meta.get(_HOLDER)
    return found if isinstance(found, ir.Node) and any(g is graph for g in subgraphs(found)) else None


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of every scope, each scope in its own order; a scope may be edited at the visited node."""
    for scope in scopes(model):
        yield from scope


def nodes_to_edit(model: ir.Model) -> Iterator[tuple[Scope, ir.Node]]:
    """Every node of every scope, with its scope; nodes that are inserted into the scope meanwhile are not visited."""
    for scope in scopes(model):
        for node in list(scope):
            yield scope, node


def outputs(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    """Every output of `nodes`, in their order; the nodes of a graph are the graph itself."""
    for node in nodes:
        yield from node.outputs


def values(scope: Scope) -> Iterator[ir.Value]:
    """Inputs, initializers and node outputs that `scope` itself defines, without subgraphs."""
    yield from scope.inputs
    if isinstance(scope, ir.Graph):
        yield from scope.initializers.values()
    yield from outputs(scope)


def stored_values(model: ir.Model) -> dict[str, ir.Value]:
    """Values of all scopes that hold a tensor, by name."""
    return {str(v.name): v for scope in scopes(model) for v in values(scope) if v.const_value is not None}


def scope_of(node: ir.Node) -> Scope:
    """The graph or function that holds `node`.

    A node of a function body knows the function's inner graph only, in which an initializer would be lost; the
    function is known once :func:`scopes` has walked the model.
    """
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    function = graph.meta.get(_FUNCTION)
    return function if isinstance(function, ir.Function) and function.graph is graph else graph
