"""ncnn's calibration table, as ``ncnn2table`` writes it and ``ncnn2int8`` reads it."""

from __future__ import annotations

import numpy as np

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges, QuantizedLayer
from onnxqat.types import FloatArray


class Form(_base.BaseForm):
    """``ncnn2int8 float.param float.bin int8.param int8.bin ncnn.table``.

    A line is a layer's name and factors, 1 / scale: first ``NAME_param_0`` with one for each output channel of the
    weight, behind all of these ``NAME`` with that of the layer's input. Layers are named as ``onnx2ncnn`` names them,
    for the node. ncnn quantizes Convolution, ConvolutionDepthWise and InnerProduct; the others get no line, and one
    without lines stays in float.

    Source: Tencent/ncnn, tools/quantize/ncnn2table.cpp, ncnn2int8.cpp, and tools/onnx/onnx2ncnn.cpp.
    """

    file = "ncnn.table"
    compilers = frozenset({"ncnn"})

    def accepts(self, ranges: ModelRanges) -> str:
        """Only symmetric int8; see the class."""
        for layer in _layers(ranges):
            for tensor in filter(None, (layer.data, layer.weight)):
                if tensor.bits != 8 or not tensor.signed or tensor.zero_points.any():
                    return f"ncnn computes with symmetric int8, and {tensor.name!r} is quantized otherwise"
        return ""

    def text(self, ranges: ModelRanges) -> str:
        """Weights of all layers, then their inputs; see the class."""
        layers = _layers(ranges)
        lines = [_line(f"{layer.name}_param_0", _weight_scales(layer)) for layer in layers]
        lines += [_line(layer.name, layer.data.scales[:1]) for layer in layers if layer.data is not None]
        return "".join(f"{line}\n" for line in lines)


def _layers(ranges: ModelRanges) -> list[QuantizedLayer]:
    return [layer for layer in ranges.layers if layer.data is not None and _has_kernel(layer)]


def _has_kernel(layer: QuantizedLayer) -> bool:
    if layer.op_type == "Conv":  # one axis is Convolution1D; a group of several channels has one scale for all of them
        one_scale = layer.group in (1, layer.channels) or layer.weight.qparams.axis is None
        return len(layer.weight_shape) == 4 and one_scale
    matrix = len(layer.weight_shape) == 2
    return matrix and (layer.op_type == "MatMul" or (layer.op_type == "Gemm" and layer.plain and layer.transposed))


def _weight_scales(layer: QuantizedLayer) -> FloatArray:
    count = layer.group if layer.group > 1 else layer.channels
    return np.broadcast_to(layer.weight.scales, (count,))


def _line(name: str, scales: FloatArray) -> str:
    # Nine digits are the float32 number; ncnn2table's six behind the point would round a factor to another grid.
    return " ".join([name, *(f"{factor:.9g}" for factor in 1.0 / scales.astype(np.float64))])
