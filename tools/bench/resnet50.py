"""ResNet-50 as an ONNX file with random weights: BatchNormalization behind each convolution, dynamic batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width of the 3x3 convolutions, blocks, stride of the first."""


class _Writer:
    """Adds layers; each method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def constant(self, values: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def convolution(self, x: str, inner: int, outer: int, kernel: int, stride: int) -> str:
        """Convolution and BatchNormalization."""
        deviation = (2.0 / (outer * kernel * kernel)) ** 0.5
        weight = self.constant(self.random.standard_normal((outer, inner, kernel, kernel)) * deviation)
        pads = [kernel // 2] * 4
        y = self.add("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
        statistics = [np.ones(outer), np.zeros(outer), np.zeros(outer), np.ones(outer)]
        return self.add("BatchNormalization", y, *(self.constant(v) for v in statistics), epsilon=1e-5, momentum=0.9)

    def block(self, x: str, inner: int, width: int, stride: int) -> str:
        """Bottleneck of 1x1, 3x3 and 1x1."""
        y = self.add("Relu", self.convolution(x, inner, width, 1, 1))
        y = self.add("Relu", self.convolution(y, width, width, 3, stride))
        y = self.convolution(y, width, 4 * width, 1, 1)
        shortcut = x if inner == 4 * width and stride == 1 else self.convolution(x, inner, 4 * width, 1, stride)
        return self.add("Relu", self.add("Add", y, shortcut))


def write(path: Path, *, size: int = 224, classes: int = 1000, blocks: int | None = None) -> Path:
    """Write the network.

    Args:
        path: file to write.
        size: height and width of the input.
        classes: width of the output.
        blocks: blocks of each stage; None: those of ResNet-50.
    """
    writer = _Writer()
    x = writer.add("Relu", writer.convolution("input", 3, 64, 7, 2))
    x = writer.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inner = 64
    for width, count, stride in STAGES:
        for index in range(blocks or count):
            x = writer.block(x, inner, width, stride if index == 0 else 1)
            inner = 4 * width
    x = writer.add("Flatten", writer.add("GlobalAveragePool", x))
    head = writer.constant(writer.random.standard_normal((classes, inner)) * 0.01)
    writer.nodes.append(helper.make_node("Gemm", [x, head, writer.constant(np.zeros(classes))], ["logits"], transB=1))
    graph = helper.make_graph(
        writer.nodes,
        "resnet50",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        writer.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path
