"""Affine functions per output channel folded into the weight and bias of a layer, shared by the passes that do so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._batchnorm import Affine
from onnxqat.passes._edits import exchange_constant, is_private


def _fold_conv(
    scope: walk.Scope, conv: ir.Node, function: Affine, names: build.Names, stamp: dict[str, str]
) -> str | ir.Value:
    weight, bias = _weight(conv, 1), _bias(conv, 2)
    if isinstance(weight, str) or isinstance(bias, str):
        return weight if isinstance(weight, str) else str(bias)
    groups = int(query.attribute(conv, "group", 1)) if conv.op_type == "ConvTranspose" else 0
    channels = weight.shape[1] * groups if groups else weight.shape[0]
    if function.factor.shape != (channels,) or bias.shape not in ((), (channels,)):
        return MISMATCH
    if groups:
        split = weight.reshape(groups, -1, *weight.shape[1:])
        factor = function.factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        scaled = (split * factor).reshape(weight.shape)
    else:
        scaled = weight * function.factor.reshape(channels, *[1] * (weight.ndim - 1))
    return _store(scope, conv, None if _is_one(function) else scaled, bias * function.factor + function.offset, names)


def _fold_gemm(
    scope: walk.Scope, gemm: ir.Node, function: Affine, names: build.Names, stamp: dict[str, str]
) -> str | ir.Value:
    weight, bias = _weight(gemm, 1), _bias(gemm, 2)
    if isinstance(weight, str) or isinstance(bias, str):
        return weight if isinstance(weight, str) else str(bias)
    if function.factor.shape != (weight.shape[0 if query.attribute(gemm, "transB", 0) else 1],):
        return MISMATCH
    if not _broadcasts_to_channels(bias, function.factor):
        return MISMATCH
    factor = function.factor[:, None] if query.attribute(gemm, "transB", 0) else function.factor
    acting = bias * float(query.attribute(gemm, "beta", 1.0))
    scaled = None if _is_one(function) else weight * factor
    result = _store(scope, gemm, scaled, acting * function.factor + function.offset, names)
    if isinstance(result, ir.Value):
        gemm.attributes.pop("beta", None)
    return result


def _fold_matmul(
    scope: walk.Scope, matmul: ir.Node, function: Affine, names: build.Names, stamp: dict[str, str]
) -> str | ir.Value:
    """Fold into a MatMul's columns and, where there is an offset, a new Add. Return its output, or the reason."""
    weight = _matrix(matmul, function)
    if isinstance(weight, str):
        return weight
    scaled = weight * function.factor
    if not fits(matmul.inputs[1], scaled, function.offset):
        return OVERFLOW
    output = matmul.outputs[0]
    dtype = _dtype(matmul.inputs[1])
    exchange_constant(scope, matmul, 1, scaled, names, "folded")
    if not function.offset.any():
        return output
    base = matmul.name or str(output.name)
    bias = build.constant(scope, names.fresh(f"{base}_bias"), function.offset, dtype, before=matmul)
    add = build.node(
        "Add",
        [output, bias],
        [names.fresh(f"{output.name}_biased")],
        dtype=dtype,
        shape=output.shape,
        name=names.fresh(f"{base}_Add"),
        stamp=stamp,
    )
    scope.insert_after(matmul, add)
    return add.outputs[0]


def _fold_add(
    scope: walk.Scope, add: ir.Node, function: Affine, names: build.Names, stamp: dict[str, str]
) -> str | ir.Value:
    """Fold into a MatMul and the Add of a row behind it. Return the output of the Add, or the reason."""
    for index in (0, 1):
        product, row = add.inputs[index], query.constant_array(add.inputs[1 - index])
        matmul = query.producer(product)
        if row is None or product is None or matmul is None or matmul.op_type != "MatMul" or matmul.domain:
            continue
        if not is_private(product) or matmul.graph is not add.graph:
            return "the tensor between MatMul and Add is read elsewhere or is a graph output"
        weight = _matrix(matmul, function)
        if isinstance(weight, str):
            return weight
        if row.ndim > 2 or (row.ndim == 2 and row.shape[0] != 1):
            return "what is added behind MatMul is no row"
        scaled = weight * function.factor
        offset = row.astype(np.float64) * function.factor + function.offset
        if not fits(matmul.inputs[1], scaled, offset):
            return OVERFLOW
        if not _is_one(function):
            exchange_constant(scope, matmul, 1, scaled, names, "folded")
        exchange_constant(scope, add, 1 - index, offset, names, "folded")
        return add.outputs[0]
    return NO_LAYER


Fold = Callable[[walk.Scope, ir.Node, Affine, build.Names, dict[str, str]], "str | ir.Value"]
FOLDS: dict[str, Fold] = {
    "Conv": _fold_conv,
    "ConvTranspose": _fold_conv,
    "Gemm": _fold_gemm,
    "MatMul": _fold_matmul,
    "Add": _fold_add,
}
NO_LAYER = "no layer with weights is in front of BatchNormalization"
MISMATCH = "BatchNormalization has another number of channels than the layer"
OVERFLOW = "folded weights overflow the weight's type"


def _weight(node: ir.Node, index: int) -> np.ndarray | str:
    if query.takes_arguments(node):
        return f"attributes of {node.op_type} are arguments of a function"
    found = query.constant_array(node.inputs[index])
    return f"the weight of {node.op_type} is not constant" if found is None else found.astype(np.float64)


def _bias(node: ir.Node, index: int) -> np.ndarray | str:
    value = query.input_at(node, index)
    if value is None:
        return np.zeros(())
    found = query.constant_array(value)
    return f"the bias of {node.op_type} is not constant" if found is None else found.astype(np.float64)


def _broadcasts_to_channels(bias: np.ndarray, factor: np.ndarray) -> bool:
    """Return True when the C of a Gemm has one value, or one per channel, in each row."""
    return bias.ndim <= 2 and bias.shape[-1:] in ((), (1,), factor.shape)


def _matrix(matmul: ir.Node, function: Affine) -> np.ndarray | str:
    weight = _weight(matmul, 1)
    if isinstance(weight, np.ndarray) and (
        weight.ndim != 2 or (function.axis == 1 and query.rank(matmul.inputs[0]) != 2)
    ):
        return "channels of BatchNormalization are not the columns of MatMul's matrix, or ranks are unknown"
    if isinstance(weight, np.ndarray) and function.factor.shape != weight.shape[1:]:
        return MISMATCH
    return weight


def _dtype(value: ir.Value | None) -> ir.DataType:
    found = query.constant_tensor(value)
    return ir.DataType.FLOAT if found is None else found.dtype


def fits(weight: ir.Value | None, *arrays: np.ndarray) -> bool:
    """Check whether `arrays` are finite in the type of the constant `weight`."""
    with np.errstate(over="ignore"):
        return all(np.isfinite(a.astype(_dtype(weight).numpy()).astype(np.float32)).all() for a in arrays)


def _is_one(function: Affine) -> bool:
    """Check whether nothing is scaled, so that the weight can stay, others may read it too."""
    return bool((function.factor == 1.0).all())


def _store(
    scope: walk.Scope, layer: ir.Node, weight: np.ndarray | None, bias: np.ndarray, names: build.Names
) -> str | ir.Value:
    """Give `layer` the `weight`, unless it is None, and the `bias`, unless there is none and it is zero."""
    if not fits(layer.inputs[1], bias, *([] if weight is None else [weight])):
        return OVERFLOW
    if weight is not None:
        exchange_constant(scope, layer, 1, weight, names, "folded")
    give_bias(scope, layer, bias, names)
    return layer.outputs[0]


def give_bias(scope: walk.Scope, layer: ir.Node, bias: np.ndarray, names: build.Names) -> None:
    """Give `layer` the `bias`, unless it has none and this one is zero."""
    if query.input_at(layer, 2) is not None:
        exchange_constant(scope, layer, 2, bias, names, "folded")
    elif bias.any():
        base = layer.name or str(layer.outputs[0].name)
        made = build.constant(scope, names.fresh(f"{base}_bias"), bias, _dtype(layer.inputs[1]), before=layer)
        layer.resize_inputs(3)
        layer.replace_input_with(2, made)
