"""Parts of a layer and the BatchNormalization behind it, noted at the layer before they become one, in memory.

What changes the folded weight or bias afterwards (equalization, rounding, constants behind the layer) changes the parts
too, so that they still fold to it: the graph can only compute what is there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import batchnorm, build, folded_batchnorm, query, walk
from onnxqat.passes._batchnorm import affine, layer_bias
from onnxqat.passes._edits import as_gemm
from onnxqat.placement.tensor_specs import output_axis

NOTE = "onnxqat.batch_norm"
"""Under this name a layer of a model in memory holds what fold-batchnorm is about to fold: :class:`Parts`."""


Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """A layer and the BatchNormalization behind it, in float32, before they become one.

    Attributes:
        weight: of the layer, in its shape.
        shape: of the factor beside it.
        vectors: gamma, beta, mean less the bias of the layer, variance: (C,) each.
        names: of those four.
        epsilon: of the BatchNormalization, (1,).
        momentum: of the BatchNormalization.
    """

    weight: np.ndarray
    shape: tuple[int, ...]
    vectors: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    epsilon: np.ndarray
    momentum: float


def note(scope: walk.Scope, node: ir.Node) -> str | None:
    """Note the parts of the BatchNormalization `node` and its layer at the layer; else the reason why not.

    A MatMul of two matrices becomes a Gemm, which has a bias.
    """
    layer = batchnorm.layer(node)
    if layer is None:
        return "no layer with weights is in front of it"
    function, weight = affine(node), query.constant_tensor(layer.inputs[1])
    if isinstance(function, str):
        return function
    if weight is None or weight.dtype != ir.DataType.FLOAT:
        return "the weight is computed or not float32"
    if layer.op_type == "MatMul" and (len(weight.shape) != 2 or query.rank(layer.inputs[0]) != 2):
        return "its channels are not the columns of a matrix, or ranks are unknown"
    if layer.op_type == "Gemm" and query.attribute(layer, "alpha", 1.0) != 1.0:
        return "Gemm has alpha"
    shape = _beside(layer, tuple(weight.shape.numpy()))
    if shape is None:
        return "each group of a ConvTranspose has several inputs, which share channels of its weight"
    if function.factor.size != math.prod(shape):
        return "it has another number of channels than the layer"
    bias = layer_bias(layer, function.factor.size)
    if bias is None:
        return "the bias of the layer is computed or no row"
    gamma, beta, mean, variance = (np.asarray(query.constant_array(v)) for v in node.inputs[1:5])
    if any(array.dtype != np.float32 for array in (gamma, beta, mean, variance)):
        return "its parameters are not float32"
    if layer.op_type == "MatMul":
        layer = as_gemm(scope, layer, {build.CREATED_BY: "compute-batchnorm"})
    layer.meta[NOTE] = Parts(
        np.array(weight.numpy()),
        shape,
        (gamma, beta, (mean.astype(np.float64) - bias).astype(np.float32), variance),
        tuple(str(value.name) for value in node.inputs[1:5] if value is not None),
        np.asarray([query.attribute(node, "epsilon", 1e-5)], np.float32),
        float(query.attribute(node, "momentum", folded_batchnorm.DEFAULT_MOMENTUM)),
    )
    return None


def follow(layer: ir.Node, weight: np.ndarray, added: np.ndarray) -> None:
    """Change the parts noted at `layer` so that they fold to other values; do nothing without a note.

    Where the factor is too small to divide by, the unfolded weight stays.

    Args:
        layer: with the folded weight.
        weight: the new folded weight, float32 in its shape.
        added: to the folded bias, (C,).
    """
    parts = layer.meta.get(NOTE)
    if not isinstance(parts, Parts):
        return
    gamma, beta, mean, variance = parts.vectors
    factor = (gamma / np.sqrt(variance + parts.epsilon)).reshape(parts.shape)
    live = np.abs(factor) > folded_batchnorm.SMALLEST_FACTOR
    unfolded = np.where(live, weight / np.where(live, factor, np.float32(1)), parts.weight).astype(np.float32)
    vectors = (gamma, (beta + added).astype(np.float32), mean, variance)
    layer.meta[NOTE] = dataclasses.replace(parts, weight=unfolded, vectors=vectors)


def behind(layer: ir.Node, factor: Array | float, offset: Array | float) -> None:
    """Change the parts noted at `layer` so that its output is ``y * factor + offset``; do nothing without a note.

    Args:
        layer: its folded weight and bias are scaled and moved by the caller.
        factor: of the output channels, (C,) or one for all.
        offset: likewise.
    """
    parts = layer.meta.get(NOTE)
    if not isinstance(parts, Parts):
        return
    gamma, beta, mean, variance = parts.vectors
    scaled = (gamma * factor).astype(np.float32), (beta * factor + offset).astype(np.float32)
    layer.meta[NOTE] = dataclasses.replace(parts, vectors=(*scaled, mean, variance))


def in_front(layer: ir.Node, change: Callable[[Array], Array]) -> None:
    """Apply to the weight noted at `layer` the `change` that its folded weight gets; do nothing without a note.

    Args:
        layer: its input channels change.
        change: from a weight in the layer's shape to another, linear and the same for all output channels.
    """
    parts = layer.meta.get(NOTE)
    if isinstance(parts, Parts):
        layer.meta[NOTE] = dataclasses.replace(parts, weight=change(parts.weight).astype(np.float32))


def are_noted(model: ir.Model) -> bool:
    """Check whether any layer has a note."""
    return any(NOTE in node.meta for node in walk.nodes(model))


def carry(source: ir.Model, target: ir.Model) -> None:
    """Let the layers of `target`, of which `source` is a changed copy with the same nodes, have the notes of `source`."""
    for copied, node in zip(walk.nodes(source), walk.nodes(target), strict=True):
        if NOTE in copied.meta:
            node.meta[NOTE] = copied.meta[NOTE]


def _beside(layer: ir.Node, weight: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape that broadcasts one factor per output channel over the weight; None if there is none."""
    shape = [1] * len(weight)
    groups = int(query.attribute(layer, "group", 1)) if layer.op_type == "ConvTranspose" else 1
    if groups == 1:
        axis = output_axis(layer) % len(weight)
        shape[axis] = weight[axis]
    elif groups == weight[0]:
        shape[:2] = weight[:2]
    else:
        return None
    return tuple(shape)
