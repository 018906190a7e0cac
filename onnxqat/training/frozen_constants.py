"""Constants of the file that are settings of an operator and no weights: they do not train."""

from __future__ import annotations

from torch import nn

from onnxqat.bridge.state import quantizers
from onnxqat.graph import io, walk

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


def freeze_constants(module: nn.Module, model: io.ModelSource) -> list[str]:
    """Take the gradient from constants that are settings and no weights; returns their ONNX names.

    1. Constants of one element, such as an epsilon, an exponent or a factor.
    2. What an operator reads as a setting: see ``SETTINGS`` (statistics, bounds, divisors, fill values).

    Args:
        module: what :func:`onnxqat.to_torch` made.
        model: path or model that it was made from.
    """
    settings = {
        str(node.inputs[index].name)  # type: ignore[union-attr]
        for node in walk.nodes(io.load(model))
        for index in range(len(node.inputs))
        if (node.op_type, index) in SETTINGS and node.inputs[index] is not None
    }
    inside = {id(p) for _, q in quantizers(module) for p in q.parameters()}
    names: dict[str, str] = getattr(module, "parameter_names", {})
    frozen = []
    for key, parameter in module.named_parameters():
        if id(parameter) not in inside and (parameter.numel() <= 1 or names.get(key) in settings):
            parameter.requires_grad_(False)
            frozen.append(names.get(key, key))
    return frozen
