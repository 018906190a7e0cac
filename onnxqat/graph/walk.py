"""Walks over every scope of a model: main graph, subgraphs of control flow, model-local functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx_ir as ir

Scope: TypeAlias = "ir.Graph | ir.Function"


def scopes(model: ir.Model) -> Iterator[Scope]:
    """The main graph, its subgraphs (outermost first), then each function with its subgraphs."""
    yield model.graph
    yield from model.graph.subgraphs()
    for function in model.functions.values():
        yield function
        yield from function.subgraphs()


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of every scope, each scope in its own order; a scope may be edited at the visited node."""
    for scope in scopes(model):
        yield from scope


def values(scope: Scope) -> Iterator[ir.Value]:
    """Inputs, initializers and node outputs that `scope` itself defines, without subgraphs."""
    yield from scope.inputs
    if isinstance(scope, ir.Graph):
        yield from scope.initializers.values()
    for node in scope:
        yield from node.outputs


def scope_of(node: ir.Node) -> Scope:
    """The graph or function that holds `node`."""
    if node.graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    return node.graph
