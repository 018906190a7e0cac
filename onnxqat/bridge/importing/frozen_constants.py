"""Constants of the file that are settings of an operator and no weights: they do not train."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from torch import nn

from onnxqat.analysis import masks
from onnxqat.bridge.quantizers.state import parameter_ids
from onnxqat.graph import io, query, walk

SETTINGS = frozenset(
    {
        ("BatchNormalization", 3),
        ("BatchNormalization", 4),
        ("Clip", 1),
        ("Clip", 2),
        ("Div", 1),
        ("Pad", 2),
        ("Pow", 1),
        ("Range", 0),
        ("Range", 1),
        ("Range", 2),
        ("Resize", 1),
        ("Resize", 2),
        ("Where", 1),
        ("Where", 2),
    }
)
"""(operator, input index) of what an operator reads as a setting."""

ELEMENTWISE = frozenset({"Add", "Div", "Mul", "Sub"})

MASKED = 1e3
"""Smallest size of a mask's fill that is added in front of a Softmax: exporters write -1e3 to -inf, and no logit that
is learned comes near it."""


def freeze_constants(module: nn.Module, model: io.ModelSource) -> list[str]:
    """Take the gradient from constants that are settings and no weights; returns their ONNX names.

    :func:`onnxqat.to_torch` does so by itself; a constant that shall train all the same gets ``requires_grad_(True)``.

    1. Constants of one element, such as an epsilon, an exponent or a factor.
    2. Constants that an operator reads as a setting: see ``SETTINGS`` (statistics, bounds, divisors, fill values).
    3. Masks: constants that are added, wide ones with a value of :data:`MASKED` or more, others with one that is not
       finite or that no data have (:func:`onnxqat.analysis.masks.is_mask`).
    4. Tables that an activation is multiplied with element by element, of two dimensions or more beside those of size
       1, such as the sines and cosines of a rotary position embedding. A factor per channel is a weight.
    5. Means that are subtracted from a graph input, as preprocessing inside of the graph does.

    Args:
        module: what :func:`onnxqat.to_torch` made.
        model: path or model that it was made from.
    """
    settings = set(_settings(model if isinstance(model, ir.Model) else io.load(model)))
    inside = parameter_ids(module)
    names: dict[str, str] = getattr(module, "parameter_names", {})
    frozen = []
    for key, parameter in module.named_parameters():
        if id(parameter) not in inside and (parameter.numel() <= 1 or names.get(key) in settings):
            parameter.requires_grad_(False)
            frozen.append(names.get(key, key))
    return frozen


def _settings(model: ir.Model) -> Iterator[str]:
    """Names of the constants that rules 2 to 5 of :func:`freeze_constants` name, and that nothing reads as a weight."""
    inputs = {id(v) for v in model.graph.inputs if v.name not in model.graph.initializers}
    data = _values_of_data(model)

    def is_setting(node: ir.Node, index: int) -> bool:
        if node.domain not in ("", "ai.onnx"):
            return False
        if (node.op_type, index) in SETTINGS:
            return True
        return node.op_type in ELEMENTWISE and _is_elementwise_setting(node, index, inputs, data)

    read = dict.fromkeys(value for node in walk.nodes(model) for value in node.inputs if value is not None)
    for value in read:
        if all(is_setting(node, index) for node, index in value.uses()):
            yield str(value.name)


def _values_of_data(model: ir.Model) -> set[int]:
    """Ids of the values that depend on what the model is given, not on constants alone."""
    found = {id(v) for scope in walk.scopes(model) for v in scope.inputs}
    for node in walk.nodes(model):  # scopes come from outer to inner, nodes in the order in which they run
        drawn = not node.inputs and node.op_type != "Constant"
        if drawn or any(True for _ in walk.subgraphs(node)) or any(id(v) in found for v in node.inputs):
            found.update(map(id, node.outputs))
    return found


def _is_elementwise_setting(node: ir.Node, index: int, inputs: set[int], data: set[int]) -> bool:
    """Check whether input `index` of an elementwise `node` is a constant that masks, tabulates or preprocesses data."""
    other = node.inputs[1 - index]
    constant = query.constant_tensor(node.inputs[index])
    if constant is None or constant.dtype is None or not constant.dtype.is_floating_point() or other is None:
        return False
    if id(other) not in data:
        return False  # a weight that constants make, as weight normalization does
    if node.op_type == "Sub" and id(other) in inputs:
        return True
    wide = sum(size != 1 for size in constant.shape.numpy()) > 1
    if node.op_type == "Mul":
        return wide
    values = constant.numpy()
    # Masks are as wide as a matrix of scores; a vector may be a bias of any size that data have.
    large = wide and float(np.abs(values.astype(np.float64)).max(initial=0.0)) >= MASKED
    return node.op_type in ("Add", "Sub") and (large or masks.is_mask(values))
