"""The lowest ai.onnx opset and IR version that can express a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

from onnxqat.errors import BackendError
from onnxqat.graph import query, walk
from onnxqat.passes.raise_opset import OLDEST, ir_version_of

PER_CHANNEL = 13
WIDE = 21
TWO_BITS = 25
ADDED_TYPES = 19  # from here on, a new version of an operator mostly adds types of 2, 4, 8 or 16 bits
ADDED_ATTRIBUTES = {
    ("AveragePool", 19): "dilations",
    **{(op, version): name for op in ("Cast", "CastLike") for version, name in ((19, "saturate"), (24, "round_mode"))},
}
"""Attributes that a version added, by operator and version: a node without one means what it meant before."""
ADDED_VALUES = {
    ("Pad", 19): ("mode", "wrap"),
    ("Resize", 19): ("coordinate_transformation_mode", "half_pixel_symmetric"),
}
"""Values of an attribute that a version added and its signature does not show."""

FIRST_OPSET = {
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4), WIDE),
    **dict.fromkeys((ir.DataType.INT2, ir.DataType.UINT2), TWO_BITS),
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32), 10),
}
FIRST_IR = {
    **dict.fromkeys((ir.DataType.INT4, ir.DataType.UINT4), 10),
    **dict.fromkeys((ir.DataType.INT2, ir.DataType.UINT2), 13),
}
LOWEST_IR = 4
FUNCTIONS_IR = 8
_SHOWN = 3


def lowest_opset(model: ir.Model) -> int:
    """Lowest opset at which every node means what it means now.

    That is the version that its schema has, or where versions from 19 on only added types, as most did, or what the node
    does not use, the one before them, for a node of older types. QuantizeLinear and DequantizeLinear are judged by their
    contents instead, since each newer version only added types and attributes: 8 bits with one scale need 10, a scale
    per channel 13, 4 and 16 bits 21, 2 bits 25.
    """
    current = query.opset(model)
    return max((_node_opset(node, current) for node in _nodes(model)), default=current)


def too_new(model: ir.Model, highest: int) -> list[ir.Node]:
    """Nodes that mean what they mean only in opsets above `highest`."""
    current = query.opset(model)
    return [n for n in _nodes(model) if current > highest and _node_opset(n, current) > highest]


def check(model: ir.Model, backend: str, opsets: tuple[int, int]) -> None:
    """Raise an error for nodes that no opset in the range `opsets` of `backend` has.

    Raises:
        BackendError: ``backend-opset``.
    """
    newer = too_new(model, opsets[1])
    if newer:
        current = query.opset(model)
        raise refusal(backend, opsets, max(_node_opset(node, current) for node in newer), newer)


def refusal(backend: str, opsets: tuple[int, int], needed: int, nodes: Sequence[ir.Node]) -> BackendError:
    """The error for a model that needs opset `needed`, above the range `opsets` of `backend`, because of `nodes`."""
    named = ", ".join(f"{query.label(node)!r} ({node.op_type})" for node in nodes[:_SHOWN])
    return BackendError(
        "backend-opset",
        f"{backend} reads opset {opsets[0]} to {opsets[1]}; this model needs {needed}"
        + (f" for {named}" if named else "")
        + (", ..." if nodes[_SHOWN:] else ""),
        hint=f"use 8-bit types where it is 4 or 16 bits that need it; export the operator for opset {opsets[1]}, "
        "as its parts, or cut it off with `onnxqat cut`",
    )


def lowest_ir_version(model: ir.Model, opset: int) -> int:
    """Lowest IR version for `opset` and the tensor types of the model; the present one where something else needs it."""
    if model.device_configurations:
        return model.ir_version
    types = [v.dtype for scope in walk.scopes(model) for v in walk.values(scope)]
    needed = [LOWEST_IR, ir_version_of(opset), *(FIRST_IR.get(t, LOWEST_IR) for t in types if t is not None)]
    if model.functions:
        needed.append(FUNCTIONS_IR)
    return min(model.ir_version, max(needed))


def lower(model: ir.Model) -> bool:
    """Set both to the lowest; never raises one. A model with functions keeps its opset, which they import too."""
    opset = query.opset(model)
    # a LeakyRelu in float alone is of opset 6, from which no step behind this one can raise it again
    target = opset if model.functions else min(opset, max(OLDEST, lowest_opset(model)))
    version = lowest_ir_version(model, target)
    changed = (target, version) != (opset, model.ir_version)
    model.opset_imports["" if "" in model.opset_imports else "ai.onnx"] = target
    model.ir_version = version
    return changed


def _nodes(model: ir.Model) -> Iterable[ir.Node]:
    return (n for n in walk.nodes(model) if n.domain in ("", "ai.onnx"))


def _node_opset(node: ir.Node, current: int) -> int:
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return _qdq_opset(node, current)
    try:
        schema = onnx.defs.get_schema(node.op_type, current, "")
    except onnx.defs.SchemaError:
        return current
    while schema.since_version >= ADDED_TYPES:
        try:
            older = onnx.defs.get_schema(node.op_type, schema.since_version - 1, "")
        except onnx.defs.SchemaError:  # the operator's first version
            break
        if not _is_the_same(node, older, schema):
            break
        schema = older
    return int(schema.since_version)


def _is_the_same(node: ir.Node, older: onnx.defs.OpSchema, newer: onnx.defs.OpSchema) -> bool:
    """Check whether `node` of version `newer` means the same in `older`, the version before it."""
    version = (newer.name, int(newer.since_version))
    added = ADDED_ATTRIBUTES.get(version, "")
    name, value = ADDED_VALUES.get(version, ("", None))
    unused = added not in node.attributes and (not name or query.attribute(node, name, None) != value)
    return unused and _signature(older) == _signature(newer, without=added) and _takes(older, node)


def _signature(schema: onnx.defs.OpSchema, without: str = "") -> tuple[object, ...]:
    """Attributes and input/output options of a schema version, without types, descriptions and the attribute `without`."""
    attributes = {
        name: (str(a.type), a.required, a.default_value.SerializeToString())
        for name, a in schema.attributes.items()
        if name != without
    }
    return attributes, [[str(v.option) for v in side] for side in (schema.inputs, schema.outputs)]


def _takes(schema: onnx.defs.OpSchema, node: ir.Node) -> bool:
    """Check whether `schema` accepts the types of `node`; False for ceil_mode, of which only the words changed."""
    if query.attribute(node, "ceil_mode", 0):
        return False
    for formal, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if value is None:
                continue
            if (
                value.dtype is None
                or f"tensor({value.dtype.name.lower()})" not in formal[min(index, len(formal) - 1)].types
            ):
                return False
    return True


def _qdq_opset(node: ir.Node, current: int) -> int:
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    zero_point = query.input_at(node, 2)
    typed = codes if zero_point is None else zero_point
    dtype = None if typed is None else typed.dtype
    scale = query.constant_tensor(node.inputs[1])
    plain = set(node.attributes) <= {"axis"} and scale is not None and scale.dtype == ir.DataType.FLOAT
    if dtype not in FIRST_OPSET or not plain or scale is None:
        return current
    per_channel = len(scale.shape) > 0 and scale.size > 1
    return max(FIRST_OPSET[dtype], PER_CHANNEL if per_channel or "axis" in node.attributes else 0)
