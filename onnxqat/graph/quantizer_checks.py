"""Table of small checks that each QuantizeLinear and DequantizeLinear must pass, in a user's file and after a pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx.defs
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import qdq, query, scale_defects, walk

NodeCheck: TypeAlias = "Callable[[ir.Node], str | None]"


def problem(node: ir.Node) -> str | None:
    """Return a text on the defect of `node`; None if it has none, or is neither operator."""
    if not qdq.is_qdq(node):
        return None
    return next(filter(None, (check(node) for check in NODE_CHECKS)), None)


def check(model: ir.Model, name: str = "the model") -> None:
    """Refuse a model that breaks a rule before a pass or the bridge is blamed for it.

    Sizes that the file states of computed tensors may be stale, and count for nothing here.

    Args:
        model: any model.
        name: of the model, for the message.

    Raises:
        ModelError: ``model-invalid``, with the node; ``scale-invalid`` for a scale that is no step.
    """
    for node in walk.nodes(model):
        if qdq.is_qdq(node):
            found = next(filter(None, (test(node) for test in FILE_CHECKS)), None)
            if found:
                raise ModelError(
                    "model-invalid",
                    f"{name}: node {query.label(node)!r}: {found}",
                    hint="export it again; onnxruntime refuses the file too",
                )
    scale_defects.check(model, name)


def _has_scale(node: ir.Node) -> str | None:
    if query.input_at(node, 0) is None or query.input_at(node, 1) is None:
        return "it has no scale"
    scale = query.constant_tensor(query.input_at(node, 1))
    return f"the scale {scale.name!r} has no elements" if scale is not None and not scale.size else None


def _types_exist(node: ir.Node) -> str | None:
    for index, name in ((1, "scale"), (2, "zero point")):
        tensor = query.constant_tensor(query.input_at(node, index))
        if tensor is not None and tensor.dtype not in _types(node.op_type, index):
            return f"the {name} {tensor.name!r} is {tensor.dtype}, which {node.op_type} lacks"
    return None


@functools.cache
def _types(operator: str, index: int) -> frozenset[ir.DataType]:
    """Element types that the newest version of `operator` has for an input; no version has others."""
    schema = onnx.defs.get_schema(operator)
    variable = schema.inputs[index].type_str
    names = {name for c in schema.type_constraints if c.type_param_str == variable for name in c.allowed_type_strs}
    return frozenset(kind for kind in ir.DataType if f"tensor({kind.name.lower()})" in names)


def _types_fit(node: ir.Node) -> str | None:
    zero_point = query.input_at(node, 2)
    codes = node.outputs[0] if qdq.is_quantize(node) else query.input_at(node, 0)
    if zero_point is None or codes is None or None in (zero_point.dtype, codes.dtype):
        return None
    if zero_point.dtype != codes.dtype:
        return f"the zero point {zero_point.name!r} is {zero_point.dtype}, the codes are {codes.dtype}"
    return None


def _shapes_fit(node: ir.Node) -> str | None:
    scale, zero_point = query.input_at(node, 1), query.input_at(node, 2)
    scales, points = query.static_shape(scale), query.static_shape(zero_point)
    if scales is None or points is None or scales == points:
        return None
    one = np.prod(scales) == np.prod(points) == 1
    return None if one else f"the scale has shape {list(scales)}, the zero point {list(points)}"


def _scale_is_positive(node: ir.Node) -> str | None:
    scale = query.constant_array(query.input_at(node, 1))
    if scale is None:
        return None
    blocked = bool(query.attribute(node, "block_size", 0))
    found = scale_defects.defect(np.asarray(scale, np.float32), blocked=blocked)
    return f"its scale {found}" if found else None


def _axis_fits(node: ir.Node) -> str | None:
    data, scales = query.input_at(node, 0), query.static_shape(query.input_at(node, 1))
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


def _constant_axis_fits(node: ir.Node) -> str | None:
    return None if query.constant_tensor(query.input_at(node, 0)) is None else _axis_fits(node)


def _wide_codes_are_centred(node: ir.Node) -> str | None:
    zero_point = query.input_at(node, 2)
    if zero_point is None or zero_point.dtype != ir.DataType.INT32:
        return None
    codes = query.constant_array(zero_point)
    return "its int32 zero point is not 0" if codes is not None and codes.any() else None


FILE_CHECKS: tuple[NodeCheck, ...] = (
    _has_scale,
    _types_exist,
    _types_fit,
    _shapes_fit,
    _constant_axis_fits,
    _wide_codes_are_centred,
)
NODE_CHECKS: tuple[NodeCheck, ...] = (
    _has_scale,
    _types_exist,
    _types_fit,
    _shapes_fit,
    _scale_is_positive,
    _axis_fits,
    _wide_codes_are_centred,
)
