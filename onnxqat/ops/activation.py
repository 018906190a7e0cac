"""Activation functions."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Relu", 6, 14),
    OpDef("Clip", 6, 13, ("data", "parameter", "parameter")),
    OpDef("LeakyRelu", 6, 16),
    OpDef("PRelu", 1, 16, ("data", "weight")),
    OpDef("Elu", 6, 22),
    OpDef("Selu", 6, 22),
    OpDef("Celu", 12, 28),
    OpDef("ThresholdedRelu", 10, 22),
    OpDef("Shrink", 9, 9),
    OpDef("Sigmoid", 6, 13, output_range=(0.0, 1.0)),
    OpDef("HardSigmoid", 6, 22, output_range=(0.0, 1.0)),
    OpDef("Tanh", 6, 13, output_range=(-1.0, 1.0)),
    OpDef("HardSwish", 14, 22),
    OpDef("Swish", 24, 24),
    OpDef("SwiGLU", 28, 28),
    OpDef("Mish", 18, 22),
    OpDef("Softplus", 1, 22),
    OpDef("Softsign", 1, 22, output_range=(-1.0, 1.0)),
    OpDef("Softmax", 1, 13, output_range=(0.0, 1.0)),
    OpDef("Hardmax", 1, 13, output_range=(0.0, 1.0)),
    OpDef("LogSoftmax", 1, 13),
    OpDef("Gelu", 20, 20),
    OpDef("Gelu", 1, 1, domain="com.microsoft"),
)
