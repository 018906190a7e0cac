"""A small convolutional classifier and its QDQ form, written node by node, with ranges measured in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CLASSES = 7


def images(samples: int = 24, seed: int = 5) -> np.ndarray:
    """Float32 images of shape (samples, 3, 12, 12)."""
    return np.random.default_rng(seed).normal(size=(samples, 3, 12, 12)).astype(np.float32)


class Writer:
    """Collects nodes and initializers; quantizes what goes through :meth:`act` where `ranges` are given."""

    def __init__(self, ranges: dict[str, tuple[float, float]] | None, symmetric: bool) -> None:
        self.ranges, self.symmetric = ranges, symmetric
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.scales: dict[str, np.ndarray] = {}

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes))
        return output

    def _pair(self, name: str, scale: np.ndarray, zero: np.ndarray, output: str, **axis: int) -> str:
        self.scales[output] = scale
        extra = [self.constant(f"{name}_scale", scale), self.constant(f"{name}_zero_point", zero)]
        self.node("QuantizeLinear", [name, *extra], f"{name}_quantized", **axis)
        return self.node("DequantizeLinear", [f"{name}_quantized", *extra], output, **axis)

    def act(self, name: str, output: str | None = None) -> str:
        """`name` through a quantizer; `output` names the result where it is the graph output."""
        if self.ranges is None:
            return name
        low, high = min(self.ranges[name][0], 0.0), max(self.ranges[name][1], 0.0)
        if self.symmetric:
            scale, zero = np.float32(max(-low, high) / 127), np.array(0, np.int8)
        else:
            scale = np.float32((high - low) / 255)
            zero = np.array(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
        return self._pair(name, np.asarray(scale, np.float32), zero, output or f"{name}_dequantized")

    def weight(self, name: str, array: np.ndarray) -> str:
        self.constant(name, array)
        if self.ranges is None:
            return name
        scale = (np.abs(array).reshape(len(array), -1).max(axis=1) / 127).astype(np.float32)
        return self._pair(name, scale, np.zeros(scale.shape, np.int8), f"{name}_dequantized", axis=0)

    def bias(self, name: str, array: np.ndarray, activation: str, weight: str) -> str:
        if self.ranges is None:
            return self.constant(name, array)
        scale = self.scales[activation] * self.scales[weight]
        codes = np.rint(array / scale).astype(np.int32)
        inputs = [self.constant(f"{name}_quantized", codes), self.constant(f"{name}_scale", scale)]
        inputs.append(self.constant(f"{name}_zero_point", np.zeros(scale.shape, np.int32)))
        return self.node("DequantizeLinear", inputs, name, axis=0)


def write(
    ranges: dict[str, tuple[float, float]] | None, symmetric: bool = False, classes: int = CLASSES
) -> onnx.ModelProto:
    """Conv-Relu, Conv, residual Add-Relu, GlobalAveragePool, Flatten, Gemm; quantized where `ranges` are given."""
    rng, w = np.random.default_rng(3), Writer(ranges, symmetric)

    def values(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(x: str, out: str, cin: int) -> str:
        weight = w.weight(f"{out}_w", values(8, cin, 3, 3))
        bias = w.bias(f"{out}_b", values(8) * np.float32(0.2), x, weight)
        return w.node("Conv", [x, weight, bias], out, pads=[1, 1, 1, 1], kernel_shape=[3, 3])

    x = w.act("image")
    one = w.act(w.node("Relu", [conv(x, "conv1", 3)], "relu1"))
    two = w.act(conv(one, "conv2", 8))
    joined = w.act(w.node("Relu", [w.node("Add", [one, two], "added")], "relu2"))
    pooled = w.act(w.node("GlobalAveragePool", [joined], "pooled"))
    flat = w.act(w.node("Flatten", [pooled], "flat"))
    weight = w.weight("fc_w", values(classes, 8) * np.float32(3))
    bias = w.bias("fc_b", values(classes), flat, weight)
    last = "logits" if ranges is None else "logits_float"
    w.node("Gemm", [flat, weight, bias], last, transB=1)
    if ranges is not None:
        ranges["logits_float"] = ranges["logits"]
        w.act("logits_float", "logits")
    graph = helper.make_graph(
        w.nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 12, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])],
        w.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def measured(model: onnx.ModelProto, x: np.ndarray) -> dict[str, tuple[float, float]]:
    """Range of the input and of each tensor that a node makes."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    names = [n.output[0] for n in model.graph.node]
    del wide.graph.output[:]
    wide.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    session = onnxruntime.InferenceSession(wide.SerializeToString(), providers=["CPUExecutionProvider"])
    found = dict(zip(names, session.run(names, {"image": x}), strict=True)) | {"image": x}
    return {name: (float(v.min()), float(v.max())) for name, v in found.items()}


def pair(symmetric: bool = False) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The float model and its QDQ form, u8 asymmetric activations by default."""
    original = write(None)
    return original, write(measured(original, images(64, seed=1)), symmetric)


def save_pair(folder: object, symmetric: bool = False) -> tuple[str, str]:
    """Both as files in `folder`."""
    paths = (f"{folder}/float.onnx", f"{folder}/model.qdq.onnx")
    for model, path in zip(pair(symmetric), paths, strict=True):
        onnx.save(model, path)
    return paths
