"""Constants that several quantizers read, though they mean different things to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, data_movement, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, scale, storage, zero_point
from onnxqat.linting.rule import Found, Rule
from onnxqat.ops import operators as ops


def _parameter_groups(file: LintContext) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    """Scales that several nodes read, with those nodes."""
    readers: dict[int, tuple[ir.Value, list[ir.Node]]] = {}
    for node in file.ends:
        value = query.input_at(node, 1)
        if value is not None and scale(node) is not None:
            readers.setdefault(id(value), (value, []))[1].append(node)
    yield from (entry for entry in readers.values() if len(entry[1]) > 1)


def _kinds(file: LintContext, nodes: Sequence[ir.Node]) -> dict[tuple[object, ...], list[ir.Node]]:
    """The nodes by what their quantizer is: role, type of the codes, zero point."""
    found: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in nodes:
        quantizer, zero = file.of_node(node), zero_point(node)
        role = "activation" if quantizer is None or not _is_parameter(quantizer) else quantizer.role
        kind = (role, storage(node), None if zero is None else zero.tobytes())
        found.setdefault(kind, []).append(node)
    return found


def _is_parameter(quantizer: Quantizer) -> bool:
    """Check whether `quantizer` is no weight, or one that a layer reads as a parameter.

    In a Concat it is data; a Gather brings the rows of an embedding table into its result as they are.
    """
    if quantizer.role != "weight":
        return True
    return any(not _is_data(node, index) for node, index in quantizer.uses)


def _is_data(node: ir.Node, index: int) -> bool:
    row = ops.of(node)
    is_moved = any(value is node.inputs[index] for value in data_movement.sources(node))
    return is_moved or (row is not None and row.role(index) == "data")


def _scales(file: LintContext) -> Iterator[Found]:
    for value, nodes in _parameter_groups(file):
        kinds = _kinds(file, nodes)
        if len(kinds) > 1:
            first, second = list(kinds.values())[:2]
            text = f"{query.label(first[0])} and {query.label(second[0])} differ in role, type or zero point and share a scale"
            yield Found(text, second[0], str(value.name))


def _split(file: LintContext, found: Sequence[Found]) -> None:
    """Each kind of quantizer gets a scale of its own, of the same value."""
    names = build.Names(file.model)
    for value, nodes in list(_parameter_groups(file)):
        tensor = query.constant_tensor(value)
        for readers in list(_kinds(file, nodes).values())[1:]:
            if tensor is None:
                continue
            for scope in {id(walk.scope_of(n)): walk.scope_of(n) for n in readers}.values():
                inside = [n for n in readers if walk.scope_of(n) is scope]
                made = build.constant(
                    scope, names.fresh(str(value.name)), tensor.numpy(), tensor.dtype, before=inside[0]
                )
                for node in inside:
                    node.replace_input_with(1, made)


def _codes(file: LintContext) -> Iterator[Found]:
    readers: dict[int, list[ir.Node]] = {}
    for node in file.ends:
        if qdq.is_dequantize(node) and query.constant_tensor(node.inputs[0]) is not None:
            readers.setdefault(id(node.inputs[0]), []).append(node)
    for nodes in readers.values():
        first = nodes[0]
        for other in nodes[1:]:
            if _differ(first, other):
                text = f"{query.label(first)} and {query.label(other)} read the same codes as different values"
                yield Found(text, other, str(getattr(other.inputs[0], "name", "")))


def _differ(first: ir.Node, other: ir.Node) -> bool:
    for read in (scale, zero_point):
        a, b = read(first), read(other)
        if a is not None and b is not None and (a.shape != b.shape or not np.array_equal(a, b, equal_nan=True)):
            return True
    return False


def _overridable(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        for value in node.inputs[1:]:
            if value is not None and value.is_graph_input():
                yield Found(
                    f"{value.name!r} is also a graph input, which the caller may override", node, str(value.name)
                )


RULES = (
    Rule(
        code="scale-shared",
        severity="warning",
        defect="quantizers of different kind share one scale",
        reason="training one of them moves the other, and write-back of one overwrites the other",
        remedy="give each its own copy; quantizers that share it on purpose have one type and one zero point",
        source="fold and dedupe passes of exporters merge equal initializers, for example onnxsim and onnxruntime",
        check=_scales,
        fix=_split,
    ),
    Rule(
        code="codes-shared",
        severity="error",
        defect="the same stored codes are dequantized with different parameters",
        reason="one constant cannot be right at two scales: a shared bias needs codes for each of its layers",
        remedy="store the codes once for each scale",
        source="microsoft/onnxruntime#7507",
        check=_codes,
    ),
    Rule(
        code="scale-overridable",
        severity="warning",
        defect="a scale or zero point is also a graph input",
        reason="it is no constant then: compilers cannot fuse the quantizer",
        remedy="remove it from the graph's inputs; the initializer stays",
        source="ONNX IR: initializers that are inputs are defaults; onnxruntime does not fold them",
        check=_overridable,
    ),
)
