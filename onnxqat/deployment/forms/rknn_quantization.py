"""RKNN-Toolkit2's quantization parameters, in the words of the ``.quantization.cfg`` of its hybrid quantization."""

from __future__ import annotations

from typing import Any

import yaml

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges
from onnxqat.deployment.ranges import TensorRange


class Form(_base.BaseForm):
    """Takes the place of parameters in the file that ``hybrid_quantization_step1`` of `float.onnx` writes.

    Activations lie in int8 there: codes of uint8 are moved by 128.
    """

    file = "rknn.quantization.cfg"
    compilers = frozenset({"rknn", "rknn-toolkit2"})

    def accepts(self, ranges: ModelRanges) -> str:
        """Only 8 bits, one scale an activation; see the class."""
        wrong = [r.name for r in ranges.activations if (r.bits != 8 or len(r.scales) > 1)]
        return f"it has 8-bit activations with one scale only, and {wrong[0]!r} is none" if wrong else ""

    def text(self, ranges: ModelRanges) -> str:
        """``quantize_parameters`` by tensor; see the class."""
        content = {
            "custom_quantize_layers": {},
            "quantize_parameters": {r.name: _parameters(r) for r in ranges.activations},
        }
        return yaml.safe_dump(content, sort_keys=False, default_flow_style=False)


def _parameters(tensor: TensorRange) -> dict[str, Any]:
    low, high = tensor.ends
    codes = tensor.zero_points - (0 if tensor.signed else 128)
    return {
        "qtype": "asym",
        "qmethod": "layer",
        "dtype": "int8",
        "min": low.astype(float).tolist(),
        "max": high.astype(float).tolist(),
        "scale": tensor.scales.astype(float).tolist(),
        "zero_point": codes.tolist(),
        "ori_min": low.astype(float).tolist(),
        "ori_max": high.astype(float).tolist(),
    }
