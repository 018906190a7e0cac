"""A small network that a method is tried on: two layers, grids of 4 and 8 bits, both forms of a file."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.graph import io
from onnxqat.passes import _base
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.types import FloatArray

INPUT = "x"
SHAPE = (16, 2, 6, 6)

_TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 2, 6, 6] x) => (float[N, 3] y)
    <float x_scale = {0.1}, uint8 x_zero = {120}, float h_scale = {0.05}, uint8 h_zero = {0},
     int8 low = {-8}, int8 high = {7}, int8[4] w_zero = {0, 0, 0, 0}, float[4] b = {0.1, 0.2, -0.3, 0.0},
     int8 v_zero = {0}, float[3] c = {0.1, -0.1, 0.0}>
    {
        xq = QuantizeLinear (x, x_scale, x_zero)
        xd = DequantizeLinear (xq, x_scale, x_zero)
        wq = QuantizeLinear <axis = 0> (w, w_scale, w_zero)
        wc = Clip (wq, low, high)
        wd = DequantizeLinear <axis = 0> (wc, w_scale, w_zero)
        conv = Conv (xd, wd, b)
        relu = Relu (conv)
        hq = QuantizeLinear (relu, h_scale, h_zero)
        hd = DequantizeLinear (hq, h_scale, h_zero)
        pooled = GlobalAveragePool (hd)
        flat = Flatten (pooled)
        vq = QuantizeLinear (v, v_scale, v_zero)
        vd = DequantizeLinear (vq, v_scale, v_zero)
        y = Gemm <transB = 1> (flat, vd, c)
    }"""


def model(*, stored: bool) -> onnx.ModelProto:
    """The network with float weights behind their quantizers, or with stored codes."""
    random = np.random.default_rng(0)
    w = (random.standard_normal((4, 2, 3, 3)) / 4).astype(np.float32)
    v = (random.standard_normal((3, 4)) / 2).astype(np.float32)
    found = onnx.parser.parse_model(_TEXT)
    scales = {"w_scale": np.abs(w).reshape(4, -1).max(1) / 7, "v_scale": np.abs(v).max() / 127}
    for name, values in {"w": w, "v": v, **scales}.items():
        found.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, np.float32), name))
    if not stored:
        return found
    loaded: ir.Model = io.load(found)
    _base.rewrite(loaded, [DeployForm()])
    return io.to_proto(loaded)


def data(batches: int) -> list[FloatArray]:
    """Inputs, each a batch; some values are clipped."""
    random = np.random.default_rng(1)
    return [(random.standard_normal(SHAPE) * 6).astype(np.float32) for _ in range(batches)]
