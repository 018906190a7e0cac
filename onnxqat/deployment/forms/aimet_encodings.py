"""Encodings as AIMET exports them and Qualcomm's converters take them with ``--quantization_overrides``."""

from __future__ import annotations

import json
from typing import Any

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges
from onnxqat.deployment.ranges import TensorRange


class Form(_base.BaseForm):
    """Version 1.0.0 of the format, as aimet-onnx 2.42 writes it; the common language, so that every bundle has it.

    Offsets are those of unsigned codes, and ``is_sym`` says that the type is signed.
    """

    file = "encodings.json"

    def text(self, ranges: ModelRanges) -> str:
        """Activations and parameters; see the class."""
        content = {
            "version": "1.0.0",
            "activation_encodings": [_encoding(r) for r in ranges.activations],
            "param_encodings": [_encoding(r) for r in ranges.weights],
        }
        return json.dumps(content, indent=1) + "\n"


def _encoding(tensor: TensorRange) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": "INT",
        "bw": tensor.bits,
        "is_sym": tensor.signed,
        "scale": tensor.scales.astype(float).tolist(),
        "offset": tensor.unsigned_offsets.tolist(),
        "enc_type": "PER_TENSOR" if tensor.qparams.axis is None else "PER_CHANNEL",
    }
