"""Overrides for Qualcomm's SNPE converters: version 0.6.1 of the encodings, which older releases read."""

from __future__ import annotations

import json
from typing import Any

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges
from onnxqat.deployment.ranges import TensorRange


class Form(_base.BaseForm):
    """``snpe-onnx-to-dlc --input_network float.onnx --quantization_overrides snpe_overrides.json``."""

    file = "snpe_overrides.json"
    compilers = frozenset({"snpe", "qnn-htp", "onnxruntime-qnn"})

    def text(self, ranges: ModelRanges) -> str:
        """Return the JSON text: one list per tensor, with one entry per channel; see the class."""
        content = {
            "version": "0.6.1",
            "activation_encodings": {r.name: _entries(r) for r in ranges.activations},
            "param_encodings": {r.name: _entries(r) for r in ranges.weights},
        }
        return json.dumps(content, indent=1) + "\n"


def _entries(tensor: TensorRange) -> list[dict[str, Any]]:
    low, high = tensor.ends
    rows = zip(low.tolist(), high.tolist(), tensor.scales.tolist(), tensor.unsigned_offsets.tolist(), strict=True)
    return [
        {
            "bitwidth": tensor.bits,
            "dtype": "int",
            "is_symmetric": str(tensor.signed),
            "min": smallest,
            "max": largest,
            "scale": scale,
            "offset": offset,
        }
        for smallest, largest, scale, offset in rows
    ]
