"""Edits that keep a graph's invariants: order, names, graph outputs, uses in inner scopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxqat.graph import build, query, walk

WIDE = 64  # inputs from which on one is exchanged without looking at all others


def rewire(uses: Iterable[tuple[ir.Node, int]], value: ir.Value) -> None:
    """Let each (node, input index) read `value`."""
    for node, index in list(uses):
        if len(node.inputs) < WIDE:
            node.replace_input_with(index, value)
        else:
            _replace_inputs(node, {index: value})


def rewire_wide(exchanged: Mapping[ir.Value, ir.Value]) -> None:
    """Let nodes of many inputs read the values of `exchanged` in place of its keys, all inputs of a node at once."""
    found: dict[ir.Node, dict[int, ir.Value]] = {}
    for old, new in exchanged.items():
        for node, index in old.uses():
            if len(node.inputs) >= WIDE:
                found.setdefault(node, {})[index] = new
    for node, changes in found.items():
        _replace_inputs(node, changes)


def _replace_inputs(node: ir.Node, changes: Mapping[int, ir.Value]) -> None:
    """Do what Node.replace_input_with does, which enumerates all inputs in Python: minutes for a Concat of 30,000."""
    inputs = list(node.inputs)
    for index, value in changes.items():
        inputs[index] = value
    before, node._inputs = node.inputs, tuple(inputs)  # noqa: SLF001
    for index, value in changes.items():
        old = before[index]
        if old is not None:
            old._remove_usage(node, index)  # noqa: SLF001
        value._add_usage(node, index)  # noqa: SLF001
        if old is not None and old is not value:
            node._drop_sharding_for_value(old)  # noqa: SLF001


def replace_output(scope: walk.Scope, old: ir.Value, new: ir.Value) -> None:
    """Put `new` where `old` is an output of `scope`; every occurrence."""
    for index, output in enumerate(scope.outputs):
        if output is old:
            scope.outputs[index] = new


def take_over_name(names: build.Names, old: ir.Value, new: ir.Value, suffix: str) -> None:
    """Give `new` the name of `old`, which becomes ``<name>_<suffix>``: graph outputs keep their names."""
    name = str(old.name)
    old.name = names.fresh(f"{name}_{suffix}")
    new.name = name


def bypass(node: ir.Node, source: ir.Value) -> ir.Node | None:
    """Remove a one-output `node`; its consumers read `source` instead.

    When the node's output is a graph output, its name must survive: `source` takes it where `source` is made by a
    node and is no output itself; otherwise the node becomes an Identity, which is returned.
    """
    output, scope = node.outputs[0], walk.scope_of(node)
    if not output.is_graph_output():
        rewire(output.uses(), source)
        scope.remove(node, safe=True)
        return None
    if source.producer() is None or source.is_graph_output() or source.graph is not output.graph:
        identity = ir.Node("", "Identity", [source], num_outputs=1, name=node.name)
        scope.insert_before(node, identity)
        made, name = identity.outputs[0], output.name
        made.type, made.shape = output.type, output.shape
        rewire(output.uses(), made)
        output.replace_all_uses_with(made, replace_graph_outputs=True)
        scope.remove(node, safe=True)
        made.name = name
        return identity
    name = output.name
    source.type = source.type or output.type  # a graph output must state both
    source.shape = output.shape if source.shape is None else source.shape
    rewire(output.uses(), source)
    output.replace_all_uses_with(source, replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name = None
    source.name = name
    return None


def remove_unused(model: ir.Model) -> list[str]:
    """Remove nodes without effect and constants that nothing reads; graph inputs stay.

    Returns:
        Names of the nodes and constants that were removed.
    """
    removed: list[str] = []
    for scope in reversed(list(walk.scopes(model))):
        for node in reversed(list(scope)):
            if not any(map(query.is_used, node.outputs)):
                removed.append(str(node.name or node.op_type))
                scope.remove(node, safe=True)
        if isinstance(scope, ir.Graph):
            removed.extend(_remove_unused_constants(scope))
    return removed


def _remove_unused_constants(graph: ir.Graph) -> list[str]:
    unused = [
        name for name, value in graph.initializers.items() if not query.is_used(value) and not value.is_graph_input()
    ]
    for name in unused:
        graph.initializers.pop(name)
    return unused


class Order:
    """Positions of the nodes of every scope when this was made; nodes inserted later do not disturb it."""

    def __init__(self, model: ir.Model) -> None:
        self._positions: dict[int, dict[int, tuple[int, ir.Node]]] = {}
        for scope in walk.scopes(model):
            known = self._positions.setdefault(id(scope), {})
            for position, node in enumerate(scope):
                for inner in _with_inner(node):
                    known.setdefault(id(inner), (position, node))

    def first(self, scope: walk.Scope, readers: Iterable[ir.Node]) -> ir.Node | None:
        """The earliest node of `scope` that is one of `readers` or holds one in a subgraph."""
        known = self._positions[id(scope)]
        found = [known[id(n)] for n in readers if id(n) in known]
        return min(found, key=lambda entry: entry[0])[1] if found else None


def _with_inner(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph().all_nodes()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from graph.all_nodes()
