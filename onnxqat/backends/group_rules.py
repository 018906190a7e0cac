"""Rules of a table for each kind of group (:mod:`onnxqat.analysis.groups`): its key ``groups``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from onnxqat.analysis.groups.kinds import KINDS

GroupRule = Literal["parts", "fused", "float"]
"""``parts``: its nodes are quantized as the table's rows say. ``fused``: it becomes one operator of ONNX, which the
table's row is for; where it cannot, it stays float. ``float``: it stays float as a whole."""

OPERATORS: dict[str, tuple[str, int]] = {
    "Gelu": ("Gelu", 20),
    "Silu": ("Swish", 24),
    "HardSwish": ("HardSwish", 14),
    "Mish": ("Mish", 18),
    "LayerNormalization": ("LayerNormalization", 17),
    "RMSNormalization": ("RMSNormalization", 23),
    "GroupNormalization": ("GroupNormalization", 21),
    "Attention": ("Attention", 23),
}
"""Operator that a group of each kind becomes, and the first opset that has it. RotaryEmbedding of ONNX reads its tables
in another form than exporters write them in."""


def check(groups: Mapping[str, str]) -> None:
    """Refuse a kind that there is not, and one to be fused that ONNX has no operator for.

    Raises:
        ValueError: with what is wrong.
    """
    for kind, rule in groups.items():
        if kind not in KINDS:
            raise ValueError(f"groups has {kind!r}, which is none of {', '.join(KINDS)}")
        if rule == "fused" and kind not in OPERATORS:
            raise ValueError(f"groups.{kind} is fused, but exporters do not write it in the form of ONNX's operator")
