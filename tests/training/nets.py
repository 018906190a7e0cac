"""Small QDQ networks and data for tests of the training loop."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
CLASSES = 3


def convolutional(layers: int = 2) -> onnx.ModelProto:
    """`layers` convolutions with Relu and a classifier for images (N, 2, 6, 6); weights int4, activations uint4."""
    random = np.random.default_rng(0)
    values: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []

    def quantized(name: str, scale: Array, zero: Array, low: int, high: int) -> str:
        axis = {"axis": 0} if scale.ndim else {}
        values[f"{name}_scale"], values[f"{name}_zero"] = scale.astype(np.float32), zero
        values[f"{name}_low"], values[f"{name}_high"] = np.asarray(low, zero.dtype), np.asarray(high, zero.dtype)
        ends = [f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_q"], **axis))  # type: ignore[arg-type]
        nodes.append(helper.make_node("Clip", [f"{name}_q", f"{name}_low", f"{name}_high"], [f"{name}_c"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_c", *ends], [f"{name}_dq"], **axis))  # type: ignore[arg-type]
        return f"{name}_dq"

    def weight(name: str, *shape: int) -> str:
        values[name] = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        scale = np.abs(values[name].reshape(shape[0], -1)).max(1) / 7
        return quantized(name, scale, np.zeros(shape[0], np.int8), -7, 7)

    def activation(name: str, scale: float) -> str:
        return quantized(name, np.asarray(scale), np.asarray(0, np.uint8), 0, 15)

    name, channels = "image", 2
    for layer in range(layers):
        inputs = [activation(name, 0.1), weight(f"w{layer}", 4, channels, 3, 3)]
        nodes.append(helper.make_node("Conv", inputs, [f"c{layer}"], pads=[1, 1, 1, 1], strides=[1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        name, channels = f"r{layer}", 4
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
    values["bias"] = np.zeros(CLASSES, np.float32)
    nodes.append(
        helper.make_node(
            "Gemm", [activation("features", 0.05), weight("head", CLASSES, 4), "bias"], ["logits"], transB=1
        )
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ("N", 2, 6, 6))],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("N", CLASSES))],
        [numpy_helper.from_array(v, k) for k, v in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def images(samples: int = 48) -> tuple[Array, Array]:
    """Images, float32 (N, 2, 6, 6) in 0 to 1, and labels, int64 (N,)."""
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, samples)
    bright = np.zeros((samples, 2, 6, 6))
    for index, label in enumerate(labels):
        bright[index, label % 2, 2 * label : 2 * label + 2] = 0.6
    return np.clip(bright + random.random((samples, 2, 6, 6)) * 0.4, 0, 1).astype(np.float32), labels


def later_is_better() -> Callable[[Any], float]:
    """A score by which the last weights are the best, for tests of what training does to them; nothing is held out."""
    count = itertools.count()
    return lambda module: float(next(count))
