"""Channels of layers with weights: how large each is, and weights divided or multiplied channel by channel.

A weight of any layer is looked at as an array (G, O, I, K): groups, outputs and inputs of a group, places of the kernel.
Its G * O outputs and G * I inputs are in the order of the channels of the tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import build, linear, query, walk
from onnxqat.graph.layers import CONVOLUTIONS, LAYERS
from onnxqat.passes import _batchnorm_parts
from onnxqat.passes._edits import exchange_constant, is_private

Array = npt.NDArray[Any]


def is_layer(node: ir.Node) -> bool:
    """Check whether `node` has a constant float weight of its own, which nothing else reads, and takes its input as it is."""
    if node.domain or node.op_type not in LAYERS or query.attribute(node, "transA", 0):
        return False
    weight = query.input_at(node, 1)
    found = query.constant_tensor(weight)
    if weight is None or found is None or found.dtype not in query.FLOATS or not is_private(weight):
        return False
    return len(found.shape) == 2 if node.op_type in ("Gemm", "MatMul") else len(found.shape) > 2


def has_shared_weight(node: ir.Node) -> bool:
    """Check whether `node` would be a layer, were its weight not read elsewhere too."""
    weight = query.input_at(node, 1)
    constant = query.constant_tensor(weight) is not None
    return node.op_type in LAYERS and not node.domain and constant and weight is not None and not is_private(weight)


def channel_axis(node: ir.Node) -> int:
    """Axis of the channels in the input and the output of a layer: 1 of a convolution, -1 of a product of matrices."""
    return 1 if node.op_type in CONVOLUTIONS else -1


def unfolded(node: ir.Node) -> Array:
    """The weight of a layer as (G, O, I, K), float64."""
    return in_groups(node, _weight(node).astype(np.float64))


def magnitudes(node: ir.Node) -> Array:
    """The largest absolute value of a layer's weight over the places of its kernel, float64 (G, O, I)."""
    return np.asarray(np.abs(unfolded(node)).max(axis=3, initial=0.0))


def scaled_weight(node: ir.Node, *, outputs: Array | None = None, inputs: Array | None = None) -> Array:
    """The weight of a layer, float64, times one factor for each of its output channels, or of its input channels.

    Args:
        node: the layer.
        outputs: factors, shape (G * O,).
        inputs: factors, shape (G * I,).
    """
    return _scaled(node, _weight(node), outputs=outputs, inputs=inputs)


def _scaled(node: ir.Node, weight: Array, *, outputs: Array | None = None, inputs: Array | None = None) -> Array:
    """:func:`scaled_weight` of another weight in the shape of that of `node`."""
    scaled = in_groups(node, weight.astype(np.float64))
    groups = scaled.shape[0]
    if outputs is not None:
        scaled *= outputs.astype(np.float64).reshape(groups, -1, 1, 1)
    if inputs is not None:
        scaled *= inputs.astype(np.float64).reshape(groups, 1, -1, 1)
    return _fold(node, scaled, weight.shape)


def scale_outputs(scope: walk.Scope, node: ir.Node, factors: Array, names: build.Names) -> None:
    """Multiply the output channels of a layer by `factors`, shape (G * O,): its weight, and its bias where it has one."""
    row = bias_row(node)
    exchange_constant(scope, node, 1, scaled_weight(node, outputs=factors), names, "equalized")
    if row is not None and bias_of(node) is not None:
        _exchange_bias(scope, node, row * factors, names)
    _batchnorm_parts.behind(node, factors, 0.0)


def scale_inputs(scope: walk.Scope, node: ir.Node, factors: Array, names: build.Names) -> None:
    """Multiply the weights of the input channels of a layer by `factors`, shape (G * I,)."""
    exchange_constant(scope, node, 1, scaled_weight(node, inputs=factors), names, "equalized")
    _batchnorm_parts.in_front(node, lambda weight: _scaled(node, weight, inputs=factors))


def take_channels(
    scope: walk.Scope,
    node: ir.Node,
    names: build.Names,
    *,
    outputs: tuple[Array, Array] | None = None,
    inputs: tuple[Array, Array] | None = None,
) -> None:
    """Let a layer without groups have other channels: for each the number of an old one, and a factor.

    Args:
        scope: where the node is.
        node: the layer.
        names: fresh names.
        outputs: numbers, int64 (M,), and factors, (M,), of output channels.
        inputs: of input channels.
    """
    weight, shape = unfolded(node), list(_weight(node).shape)
    for axis, taken in ((1, outputs), (2, inputs)):
        if taken is not None:
            factors = taken[1].reshape([-1 if i == axis else 1 for i in range(4)])
            weight = np.take(weight, taken[0], axis) * factors
    shape[:2] = weight.shape[1:3] if node.op_type == "Conv" else weight.shape[2:0:-1]
    exchange_constant(scope, node, 1, _fold(node, weight, tuple(shape)), names, "split")


def has_place_for_bias(node: ir.Node) -> bool:
    """Check whether a layer adds a constant row, or could, as it is."""
    if bias_row(node) is None or (node.op_type == "MatMul" and bias_of(node) is None):
        return False
    return all(query.attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))


def bias_of(node: ir.Node) -> tuple[ir.Node, int] | None:
    """The node and the number of its input that hold the bias of a layer; None where it has none."""
    if node.op_type == "MatMul":
        added = linear.bias_behind(node)
        row = None if added is None else linear.constant_side(added)
        return None if added is None or row is None else (added, list(added.inputs).index(row))
    return (node, 2) if query.input_at(node, 2) is not None else None


def bias_row(node: ir.Node) -> Array | None:
    """The bias of a layer as a row, float64 (G * O,): zeros where it has none, None where it is no constant row."""
    channels = outputs_of(node)
    place = bias_of(node)
    if place is None:
        return np.zeros(channels)
    array = query.constant_array(place[0].inputs[place[1]])
    if array is None or array.size not in (1, channels) or (array.size > 1 and array.shape[-1] != channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,)).copy()


def outputs_of(node: ir.Node) -> int:
    """Number of output channels of a layer."""
    groups, outputs, _, _ = unfolded_shape(node)
    return groups * outputs


def inputs_of(node: ir.Node) -> int:
    """Number of input channels of a layer."""
    groups, _, inputs, _ = unfolded_shape(node)
    return groups * inputs


def unfolded_shape(node: ir.Node) -> tuple[int, int, int, int]:
    """Shape (G, O, I, K) of :func:`unfolded`, without reading the weight."""
    tensor = query.constant_tensor(node.inputs[1])
    assert tensor is not None
    shape = [int(d) for d in tensor.shape.numpy()]
    if node.op_type not in CONVOLUTIONS:
        outputs, inputs = shape if query.attribute(node, "transB", 0) else shape[::-1]
        return 1, outputs, inputs, 1
    groups = int(query.attribute(node, "group", 1))
    places = int(np.prod(shape[2:]))
    if node.op_type == "Conv":
        return groups, shape[0] // groups, shape[1], places
    return groups, shape[1], shape[0] // groups, places


def set_bias(scope: walk.Scope, node: ir.Node, row: Array, names: build.Names) -> bool:
    """Let a layer have the bias `row`, shape (G * O,); False where it has no place for one (a MatMul without an Add)."""
    old = bias_row(node)
    if old is not None and old.size == row.size:
        _batchnorm_parts.behind(node, 1.0, row - old)
    if bias_of(node) is not None:
        _exchange_bias(scope, node, row, names)
        return True
    if node.op_type == "MatMul":
        return False
    weight = query.constant_tensor(node.inputs[1])
    assert weight is not None
    base = node.name or str(node.outputs[0].name)
    made = build.constant(scope, names.fresh(f"{base}_bias"), row, weight.dtype, before=node)
    node.resize_inputs(max(len(node.inputs), 3))
    node.replace_input_with(2, made)
    return True


def _exchange_bias(scope: walk.Scope, node: ir.Node, row: Array, names: build.Names) -> None:
    place = bias_of(node)
    assert place is not None
    user, index = place
    old = query.constant_array(user.inputs[index])
    assert old is not None
    shape = [1] * (old.ndim - 1)
    exchange_constant(scope, user, index, row.reshape(*shape, -1) if old.size > 1 else row, names, "equalized")


def _weight(node: ir.Node) -> Array:
    found = query.constant_array(node.inputs[1])
    assert found is not None
    return found


def in_groups(node: ir.Node, weight: Array) -> Array:
    """An array of the shape of a layer's weight as (G, O, I, K)."""
    groups, outputs, inputs, places = unfolded_shape(node)
    if node.op_type not in CONVOLUTIONS:
        rows = weight if query.attribute(node, "transB", 0) else weight.T
        return np.ascontiguousarray(rows).reshape(1, outputs, inputs, 1)
    if node.op_type == "Conv":
        return weight.reshape(groups, outputs, inputs, places)
    return np.ascontiguousarray(weight.reshape(groups, inputs, outputs, places).swapaxes(1, 2))


def _fold(node: ir.Node, unfolded: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`in_groups`; `shape` is that of the weight."""
    if node.op_type not in CONVOLUTIONS:
        rows = unfolded[0, :, :, 0]
        return rows if query.attribute(node, "transB", 0) else rows.T
    return (unfolded if node.op_type == "Conv" else unfolded.swapaxes(1, 2)).reshape(shape)
