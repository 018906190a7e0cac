"""Expected time of a run of a network, from the values that calibration counted.

It bounds trials. A clock would bound them better, but then the same input would not give the same file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.graph import query, walk

NODE, VALUE, PRODUCT = 5e-6, 3e-9, 5e-11
"""Seconds for each node, each value of an observed tensor and each multiplication, on one core of common servers."""

LAYERS = {"Conv": 1, "ConvTranspose": 0, "Gemm": 0, "MatMul": -2}
"""Operators that multiply by a constant, and the axis of it along which the channels of their input lie; a MatMul's is the
last but one, and a Gemm's the last where it is transposed."""


def of_sample(model: ir.Model, observers: Mapping[str, BaseObserver], samples: int) -> float:
    """Expected seconds of one run of one sample.

    Args:
        model: the network.
        observers: of its tensors by name, as after calibration.
        samples: number of samples that they saw; 0: not known, and only nodes count.
    """
    counted = observers.items() if samples else ()
    values = {name: observer.count * max(observer.low.size, 1) for name, observer in counted}
    nodes = list(walk.nodes(model))
    products = sum(_products(node, values) for node in nodes)
    return NODE * len(nodes) + (VALUE * sum(values.values()) + PRODUCT * products) / max(samples, 1)


def _products(node: ir.Node, values: Mapping[str, int]) -> float:
    """Multiplications of a layer: each value of its input meets all weights of its channel, every stride."""
    if node.op_type not in LAYERS or len(node.inputs) < 2 or node.inputs[0] is None:
        return 0
    weight = query.constant_tensor(node.inputs[1])
    shape = () if weight is None else weight.shape.numpy()
    if len(shape) < 2:
        return 0
    axis = -1 if query.attribute(node, "transB", 0) else LAYERS[node.op_type]
    groups = query.attribute(node, "group", 1) if node.op_type == "Conv" else 1
    strides = query.attribute(node, "strides", [1]) if node.op_type == "Conv" else [1]
    channels = max(shape[axis] * groups, 1)
    return values.get(str(node.inputs[0].name), 0) * math.prod(shape) / channels / math.prod(strides)
