"""Parameters that MNN's converter quantizes a float model with: its message ``Pipeline`` in JSON."""

from __future__ import annotations

import json
from typing import Any

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges, QuantizedLayer
from onnxqat.deployment.ranges import TensorRange


class Form(_base.BaseForm):
    """``mnnconvert -f ONNX --modelFile float.onnx --MNNModel int8.mnn --compressionParamsFile mnn_compression.json``.

    The converter finds a layer by the name of what it makes, behind a Relu or Clip that it fuses, and computes a
    convolution in int8 where input and output are quantized. Linear layers, of which it makes convolutions, get no entry:
    behind a Flatten MNN 3.6 computed them more than 100 LSB off.

    Source: alibaba/MNN, tools/converter/source/compression/MNN_compression.proto,
    tools/converter/source/common/FullQuantAndCoding.cpp and tools/converter/user_provide_quant_params.json.
    """

    file = "mnn_compression.json"
    compilers = frozenset({"mnn"})

    def accepts(self, ranges: ModelRanges) -> str:
        """Only symmetric int8, one scale an activation; see the class."""
        for layer in _layers(ranges):
            for tensor in filter(None, (layer.data, layer.weight, layer.made)):
                # its zero points are not carried through other operators: MaxPool left 8 dB of 38
                if tensor.bits != 8 or not tensor.signed or tensor.zero_points.any():
                    return f"MNN computes right with symmetric int8, and {tensor.name!r} is quantized otherwise"
        return ""

    def text(self, ranges: ModelRanges) -> str:
        """One entry a layer; see the class."""
        algorithm = {"type": "QUANTIZE", "quant_params": {"layer": [_layer(layer) for layer in _layers(ranges)]}}
        return json.dumps({"version": "0.0.0", "algo": [algorithm]}, indent=1) + "\n"


def _layers(ranges: ModelRanges) -> list[QuantizedLayer]:
    return [layer for layer in ranges.layers if layer.op_type == "Conv" and layer.data and layer.made]


def _layer(layer: QuantizedLayer) -> dict[str, Any]:
    assert layer.data is not None
    assert layer.made is not None
    low, high = layer.weight.qparams.qtype.quant_min, layer.weight.qparams.qtype.quant_max
    scales = layer.weight.scales.astype(float).tolist()
    weight = {
        "name": layer.weight.name,
        "bits": 8,
        # the converter takes as many scales as there are output channels
        "scales": scales * layer.channels if len(scales) == 1 else scales,
        "clamp_min": low,
        "clamp_max": high,
    }
    return {"weight": [weight], "input": [_activation(layer.data)], "output": [_activation(layer.made)]}


def _activation(tensor: TensorRange) -> dict[str, Any]:
    qtype = tensor.qparams.qtype
    return {
        "name": tensor.name,
        "bits": 8,
        "scales": tensor.scales.astype(float).tolist(),
        "zero_point": 0,
        "clamp_min": qtype.quant_min,
        "clamp_max": qtype.quant_max,
    }
