"""The graph verifier: what must hold after every pass, as a table of small checks.

Linear in the number of nodes and read-only. It looks at what rewriting can break; the rest of the ONNX rules is
``onnx.checker``'s, which reads every weight and is therefore left to the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import quantizer_checks, query, walk

NEIGHBOURS = 3


def repeated_names(model: ir.Model) -> frozenset[str]:
    """Return the names that several nodes of one scope have, which ONNX allows."""
    counts = (Counter(node.name for node in scope if node.name) for scope in walk.scopes(model))
    return frozenset(name for found in counts for name, count in found.items() if count > 1)


def verify(model: ir.Model, repeated: frozenset[str] = frozenset()) -> None:
    """Check the invariants of every scope of `model`.

    1. A value name means one value in each scope, outer scopes included; node names are unique within a scope.
    2. An input of a node, and what its subgraphs capture, is defined before the node; outputs of a graph are defined.
    3. An initializer is registered under its own name and has data.
    4. The types of QuantizeLinear and DequantizeLinear fit together, constant scales are finite and > 0, a channel
       axis lies inside the rank and has as many elements as there are scales, int32 zero points are 0.

    Args:
        model: it is not changed.
        repeated: names that several nodes may have, since they had them before: a pass is not blamed for what it found.

    Raises:
        ModelError: ``pass-postcondition``, with the nodes around the broken place.
    """
    _Scopes(repeated).check(model.graph)
    for function in model.functions.values():
        _Scopes(repeated).check(function)


class _Scopes:
    """Values that are visible at the place that is being checked."""

    def __init__(self, repeated: frozenset[str]) -> None:
        self.repeated = repeated
        self.by_name: dict[str, ir.Value] = {}
        self.defined: set[int] = set()

    def check(self, scope: walk.Scope) -> None:
        added: list[ir.Value] = []
        for value in scope.inputs:
            self._define(value, scope, None, added)
        if isinstance(scope, ir.Graph):
            for name, value in scope.initializers.items():
                _check_initializer(name, value, scope)
                if not value.is_graph_input():
                    self._define(value, scope, None, added)
        node_names: set[str] = set()
        for node in scope:
            self._check_node(node, scope, node_names)
            for value in node.outputs:
                self._define(value, scope, node, added)
        for output in scope.outputs:
            if id(output) not in self.defined:
                _fail(scope, None, f"graph output {output.name!r} is not defined")
        for value in added:
            self.by_name.pop(str(value.name), None)
            self.defined.discard(id(value))

    def _define(self, value: ir.Value, scope: walk.Scope, node: ir.Node | None, added: list[ir.Value]) -> None:
        if not value.name:
            if value.uses() or value.is_graph_output():
                _fail(scope, node, "a value that is read has no name")
            return
        if value.name in self.by_name:
            _fail(scope, node, f"two values are called {value.name!r}")
        self.by_name[value.name] = value
        self.defined.add(id(value))
        added.append(value)

    def _check_node(self, node: ir.Node, scope: walk.Scope, node_names: set[str]) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and id(value) not in self.defined:
                _fail(scope, node, f"input {index}, {value.name!r}, is not defined before it is read")
        if node.name:
            if node.name in node_names and node.name not in self.repeated:
                _fail(scope, node, f"two nodes are called {node.name!r}", "run the pass unique-names first")
            node_names.add(node.name)
        problem = quantizer_checks.problem(node)
        if problem:
            _fail(scope, node, problem)
        for graph in walk.subgraphs(node):
            self.check(graph)


def _check_initializer(name: str, value: ir.Value, scope: walk.Scope) -> None:
    if name != value.name:
        _fail(scope, None, f"initializer {value.name!r} is registered as {name!r}")
    if value.const_value is None:
        _fail(scope, None, f"initializer {name!r} has no data")


def _fail(scope: walk.Scope, node: ir.Node | None, problem: str, hint: str = "") -> NoReturn:
    where = f"node {query.label(node)!r} ({node.op_type}): " if node is not None else f"graph {scope.name!r}: "
    around = "" if node is None else "\n" + "\n".join(_neighbourhood(scope, node))
    raise ModelError("pass-postcondition", f"{where}{problem}{around}", hint=hint)


def _neighbourhood(scope: walk.Scope, node: ir.Node) -> Iterator[str]:
    nodes = list(scope)
    place = next((i for i, other in enumerate(nodes) if other is node), 0)
    for other in nodes[max(0, place - NEIGHBOURS) : place + NEIGHBOURS + 1]:
        mark = ">" if other is node else " "
        outputs = ", ".join(str(v.name) for v in other.outputs)
        inputs = ", ".join("" if v is None else str(v.name) for v in other.inputs)
        yield f"{mark} {outputs} = {other.op_type}({inputs})"
