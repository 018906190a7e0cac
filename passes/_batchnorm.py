"""BatchNormalization in inference as one multiplication and one addition a channel."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """``y = x * factor + offset`` along the channel axis, in float64.

    Attributes:
        factor: (C,).
        offset: (C,).
        axis: channel axis of the tensor: 1, or -1 for the last one.
    """

    factor: np.ndarray
    offset: np.ndarray
    axis: Literal[1, -1] = 1


def affine(node: ir.Node) -> Affine | str:
    """Return factor and offset of a BatchNormalization, or the reason why it is not a constant affine function."""
    if query.takes_arguments(node):
        return "attributes of BatchNormalization are arguments of a function"
    if query.attribute(node, "training_mode", 0):
        return "BatchNormalization in training mode computes its statistics from the batch"
    if not query.attribute(node, "spatial", 1):
        return "BatchNormalization with spatial=0 normalizes each element on its own"
    if any(map(query.is_used, node.outputs[1:])):
        return "the statistics that BatchNormalization returns are read"
    parameters = [query.constant_array(value) for value in node.inputs[1:5]]
    if len(parameters) < 4 or any(p is None for p in parameters):
        return "parameters of BatchNormalization are not constant"
    gamma, beta, mean, variance = (np.asarray(p).astype(np.float64) for p in parameters)
    if len({p.shape for p in (gamma, beta, mean, variance)}) > 1:
        return "parameters of BatchNormalization have different lengths"
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + float(query.attribute(node, "epsilon", 1e-5)))
        offset = beta - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        return "parameters of BatchNormalization give values that are not finite"
    return Affine(factor, offset)


def layer_bias(layer: ir.Node, channels: int) -> np.ndarray | None:
    """Bias of a layer, float64 (channels,), zeros without one; None if it is not a constant of that size."""
    value = query.input_at(layer, 2)
    if value is None:
        return np.zeros(channels)
    found = query.constant_array(value)
    if found is None or found.size not in (1, channels) or found.size != (found.shape or (1,))[-1]:
        return None
    beta = float(query.attribute(layer, "beta", 1.0)) if layer.op_type == "Gemm" else 1.0
    return np.asarray(np.broadcast_to(found.astype(np.float64).reshape(-1) * beta, (channels,)))
