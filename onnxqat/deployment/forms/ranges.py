"""The ranges in words of no vendor: for tools whose own file is not public, or that read none."""

from __future__ import annotations

import json
from typing import Any

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges, QuantizedLayer
from onnxqat.deployment.ranges import TensorRange


class Form(_base.BaseForm):
    """Every tensor with its grid and both ends of it, and every layer with the tensors that it reads and makes.

    A script that writes a vendor's file needs nothing else: names are those of ``float.onnx``, and numbers are float32.
    """

    file = "ranges.json"

    def text(self, ranges: ModelRanges) -> str:
        """Tensors by name, layers in graph order; see the class."""
        content = {
            "version": 1,
            "tensors": {r.name: _tensor(r) for r in ranges.tensors},
            "layers": [_layer(layer) for layer in ranges.layers],
        }
        return json.dumps(content, indent=1) + "\n"


def _tensor(tensor: TensorRange) -> dict[str, Any]:
    low, high = tensor.ends
    qtype = tensor.qparams.qtype
    return {
        "role": tensor.role,
        "type": qtype.storage,
        "codes": [qtype.quant_min, qtype.quant_max],
        "axis": tensor.qparams.axis,
        "scale": tensor.scales.astype(float).tolist(),
        "zero_point": tensor.zero_points.tolist(),
        "min": low.astype(float).tolist(),
        "max": high.astype(float).tolist(),
    }


def _layer(layer: QuantizedLayer) -> dict[str, Any]:
    return {
        "node": layer.name,
        "op_type": layer.op_type,
        "input": None if layer.data is None else layer.data.name,
        "weight": layer.weight.name,
        "output": None if layer.made is None else layer.made.name,
    }
