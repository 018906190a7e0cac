"""Model-local functions that are worth quantizing become part of the graphs that call them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting


class InlineFunctions(Pass):
    """Calls of a function whose body holds one of `op_types` are replaced by the body; the function goes.

    1. A function counts when an operator of `op_types` lies in its body, in a body of control flow in it, or in a
       function that it calls. Each call gets a copy of its own, so that it can have ranges of its own.
    2. What the call returns keeps its name. What lies inside keeps its own, or gets a numbered one where that is taken,
       as for the second call.
    3. Metadata of the call and of the node in the body come together on the copy, the node's first; doc strings stay.
       Attributes of the call take the place of references.
    4. Left alone: functions without such an operator, and all of them, with the reason, where one cannot be inlined:
       it calls itself, takes a graph as an attribute, or imports an operator set in another version than the model.

    Tolerance: none. ::

        y = local.f(x)   with   f (a) => (b) { t = Relu(a)  b = Neg(t) }
        t = Relu(x)   y = Neg(t)

    Args:
        op_types: operators of the ai.onnx domain that make a function worth it; none for every function.
    """

    def __init__(self, op_types: Iterable[str] | None = None) -> None:
        self.op_types = None if op_types is None else frozenset(op_types)

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Inline functions with operators of the table; for deployment all of them: OpenVINO has no rule for a call."""
        return cls() if setting.deploys else cls(setting.operators)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Inline; see the class."""
        log = Log()
        chosen = _worth_it(model, self.op_types)
        called = [n for n in walk.nodes(model) if n.op_identifier() in chosen]
        reason = _obstacle(model, chosen)
        if called and reason is not None:
            log.left(f"functions are not inlined: {reason}", *called)
        elif called:
            log.did("calls of functions were replaced by their bodies", *called)
            _inline(model, chosen, context)
        return log.result()


def _worth_it(model: ir.Model, op_types: frozenset[str] | None) -> set[ir.OperatorIdentifier]:
    if op_types is None:
        return set(model.functions)
    inside = {key: list(function.all_nodes()) for key, function in model.functions.items()}
    found = {key for key, nodes in inside.items() if any(not n.domain and n.op_type in op_types for n in nodes)}
    while True:
        more = {key for key, nodes in inside.items() if any(n.op_identifier() in found for n in nodes)} - found
        if not more:
            return found
        found |= more


def _obstacle(model: ir.Model, chosen: set[ir.OperatorIdentifier]) -> str | None:
    for key in chosen:
        function, name = model.functions[key], f"{key[0]}.{key[1]}"
        for domain, version in function.opset_imports.items():
            known = query.opset(model, domain=domain) if domain in model.opset_imports else version
            if known != version:
                return f"{name} imports version {version} of operator set {domain!r}, the model {known}"
        graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        if any(attribute.type in graphs for attribute in function.attributes.values()):
            return f"{name} takes a graph as an attribute"
        if _calls(model, key, key):
            return f"{name} calls itself"
    return None


def _calls(model: ir.Model, caller: ir.OperatorIdentifier, wanted: ir.OperatorIdentifier) -> bool:
    pending, seen = [caller], set[ir.OperatorIdentifier]()
    while pending:
        for node in model.functions[pending.pop()].all_nodes():
            key = node.op_identifier()
            if key == wanted:
                return True
            if key in model.functions and key not in seen:
                seen.add(key)
                pending.append(key)
    return False


def _inline(model: ir.Model, chosen: set[ir.OperatorIdentifier], context: Context) -> None:
    from onnx_ir.passes.common import InlinePass

    graphs = [model.graph, *model.graph.subgraphs()]
    values = {id(v): v for graph in graphs for v in walk.values(graph)}
    nodes = {id(n): n for graph in graphs for n in graph}
    returned = {id(v) for n in nodes.values() if n.op_identifier() in chosen for v in n.outputs}
    taken = {v.name for key, v in values.items() if key not in returned} | {n.name for n in nodes.values()}
    for key in chosen:
        _give_outputs_a_node(model.functions[key], context)
    InlinePass(lambda function: function.identifier() in chosen)(model)
    for graph in [model.graph, *model.graph.subgraphs()]:
        for value in walk.values(graph):
            if id(value) not in values and (value.name in taken or not value.name):
                value.name = context.names.fresh(value.name or "value")
            taken.add(value.name)
        for node in graph:
            if id(node) not in nodes and node.name in taken:
                node.name = context.names.fresh(str(node.name))
            taken.add(node.name)


def _give_outputs_a_node(function: ir.Function, context: Context) -> None:
    """Put an Identity behind an input that is an output too: the result of a call has a name of its own."""
    inputs = {id(v) for v in function.inputs}
    for index, value in enumerate(function.outputs):
        if id(value) in inputs:
            name = context.names.fresh(f"{value.name}_returned")
            identity = build.node("Identity", [value], [name], dtype=value.dtype, shape=value.shape, name=name)
            function.append(identity)
            function.outputs[index] = identity.outputs[0]
