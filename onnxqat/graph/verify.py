"""The graph verifier: what must hold after every pass, as a table of small checks.

Linear in the number of nodes and read-only. It looks at what rewriting can break; the rest of the ONNX rules is
``onnx.checker``'s, which reads every weight and is therefore left to the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import query, scale_defects, walk

NEIGHBOURS = 3
_NO_CODES = frozenset({*query.FLOATS, ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.STRING})

NodeCheck: TypeAlias = "Callable[[ir.Node], str | None]"


def verify(model: ir.Model) -> None:
    """Check the invariants of every scope of `model`.

    1. A value name means one value in each scope, outer scopes included; node names are unique within a scope.
    2. An input of a node, and what its subgraphs capture, is defined before the node; outputs of a graph are defined.
    3. An initializer is registered under its own name and has data.
    4. The types of QuantizeLinear and DequantizeLinear fit together, constant scales are finite and > 0, a channel
       axis lies inside the rank and has as many elements as there are scales, int32 zero points are 0.

    Raises:
        ModelError: ``pass-postcondition``, with the nodes around the broken place.
    """
    _Scopes().check(model.graph)
    for function in model.functions.values():
        _Scopes().check(function)


def check_zero_points(model: ir.Model) -> None:
    """Refuse a model with a constant zero point of a type that no version of Q/DQ has, before a pass is blamed for it.

    Raises:
        ModelError: ``model-invalid``, with the node.
    """
    for node in walk.nodes(model):
        if node.op_type not in NODE_CHECKS or node.domain not in ("", "com.microsoft"):
            continue
        tensor = query.constant_tensor(_input(node, 2))
        if tensor is not None and tensor.dtype in _NO_CODES:
            raise ModelError(
                "model-invalid",
                f"node {query.label(node)!r}: the zero point {tensor.name!r} is {tensor.dtype}, which {node.op_type} lacks",
                hint="export it again; onnxruntime refuses the file too",
            )


class _Scopes:
    """What is visible at the place that is being checked."""

    def __init__(self) -> None:
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
            if node.name in node_names:
                _fail(scope, node, f"two nodes are called {node.name!r}", "run the pass unique-names first")
            node_names.add(node.name)
        for check in NODE_CHECKS.get(node.op_type, ()):
            if node.domain in ("", "com.microsoft") and (problem := check(node)):
                _fail(scope, node, problem)
        for graph in walk.subgraphs(node):
            self.check(graph)


def _check_initializer(name: str, value: ir.Value, scope: walk.Scope) -> None:
    if name != value.name:
        _fail(scope, None, f"initializer {value.name!r} is registered as {name!r}")
    if value.const_value is None:
        _fail(scope, None, f"initializer {name!r} has no data")


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None


def _has_scale(node: ir.Node) -> str | None:
    return "it has no scale" if _input(node, 0) is None or _input(node, 1) is None else None


def _types_fit(node: ir.Node) -> str | None:
    zero_point = _input(node, 2)
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else _input(node, 0)
    if zero_point is None or codes is None or None in (zero_point.dtype, codes.dtype):
        return None
    if zero_point.dtype != codes.dtype:
        return f"the zero point {zero_point.name!r} is {zero_point.dtype}, the codes are {codes.dtype}"
    return None


def _shapes_fit(node: ir.Node) -> str | None:
    scale, zero_point = _input(node, 1), _input(node, 2)
    scales, points = query.static_shape(scale), query.static_shape(zero_point)
    if scales is None or points is None or scales == points:
        return None
    one = np.prod(scales) == np.prod(points) == 1
    return None if one else f"the scale has shape {list(scales)}, the zero point {list(points)}"


def _scale_is_positive(node: ir.Node) -> str | None:
    scale = query.constant_array(_input(node, 1))
    if scale is None:
        return None
    found = scale_defects.defect(np.asarray(scale, np.float32))
    return f"its scale {found}" if found else None


def _axis_fits(node: ir.Node) -> str | None:
    data, scales = _input(node, 0), query.static_shape(_input(node, 1))
    if data is None or data.shape is None or scales is None or len(scales) != 1 or scales == (1,):
        return None
    if query.attribute(node, "block_size", 0):
        return None
    axis, rank = int(query.attribute(node, "axis", 1)), len(data.shape)
    if not -rank <= axis < rank:
        return f"axis {axis} lies outside the rank {rank} of {data.name!r}"
    size = data.shape[axis]
    if isinstance(size, int) and size != scales[0]:
        return f"{scales[0]} scales along axis {axis} of {data.name!r}, which has {size} elements there"
    return None


def _wide_codes_are_centred(node: ir.Node) -> str | None:
    zero_point = _input(node, 2)
    if zero_point is None or zero_point.dtype != ir.DataType.INT32:
        return None
    codes = query.constant_array(zero_point)
    return "its int32 zero point is not 0" if codes is not None and codes.any() else None


_QDQ: tuple[NodeCheck, ...] = (
    _has_scale,
    _types_fit,
    _shapes_fit,
    _scale_is_positive,
    _axis_fits,
    _wide_codes_are_centred,
)
NODE_CHECKS: dict[str, tuple[NodeCheck, ...]] = {"QuantizeLinear": _QDQ, "DequantizeLinear": _QDQ}


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
