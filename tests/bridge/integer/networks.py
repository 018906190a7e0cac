"""Quantized networks for the tests of integer units, with free scales, and their default session."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import numpy_helper

import onnxqat

Array = npt.NDArray[np.float32]

KINDS = """
<ir_version: 8, opset_import: ["" : 17]>
kinds (float[N, 3, 12, 12] x) => (float[N, 10] logits, float[N, 8, 3, 3] shares)
<float[8, 3, 3, 3] w1, float[8] b1, float[8, 1, 3, 3] w2, float[8] b2, float[8, 8, 1, 1] w3, float[10, 16] w4, float[10] b4, float low = {-1.5}, float high = {1.5},
 int64[2] flat = {0, -1}, int64[8] pads = {0, 0, 1, 0, 0, 0, 0, 1}>
{
    stem = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    first = Relu (stem)
    padded = Pad (first, pads)
    deep = Conv <group = 8, strides = [2, 2], pads = [0, 1, 1, 1]> (padded, w2, b2)
    second = Clip (deep, low, high)
    third = Conv (second, w3)
    gate = Sigmoid (third)
    silu = Mul (third, gate)
    sum = Add (silu, second)
    windows = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (sum)
    shares = Sigmoid (windows)
    mean = GlobalAveragePool (sum)
    peak = GlobalMaxPool (silu)
    joined = Concat <axis = 1> (mean, peak)
    rows = Reshape (joined, flat)
    logits = Gemm <transB = 1> (rows, w4, b4)
}"""


def with_weights(text: str) -> onnx.ModelProto:
    """The model that `text` describes; what it declares without a value gets random ones."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for declared in list(model.graph.value_info):
        shape = [d.dim_value for d in declared.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32) / 2
        model.graph.initializer.append(numpy_helper.from_array(values, declared.name))
    del model.graph.value_info[:]
    return model


def kinds() -> onnx.ModelProto:
    """A float model with every operator that has a unit, and with data movement between them."""
    return with_weights(KINDS)


def images(count: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 12, 12)).astype(np.float32)


def quantized(model: onnx.ModelProto, data: Array, backend: str = "onnxruntime-cpu") -> onnx.ModelProto:
    """`model` as the table has it: on x86, free scales and weights whose products saturate on no processor."""
    made = onnxqat.insert_qdq(model, backend, data=[{model.graph.input[0].name: data}]).model
    assert isinstance(made, onnx.ModelProto)
    return made


def session(model: onnx.ModelProto, x: Array) -> list[Array]:
    """Outputs of onnxruntime's default session, with kernels that do not saturate on any processor."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = 1
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in made.run(None, {model.graph.input[0].name: x})]
