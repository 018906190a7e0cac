"""Small models with one quantizer that ruins the output, and data for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Made = tuple[onnx.ModelProto, dict[str, Array]]


class Writer:
    """Collects nodes and constants; each node has the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def layers(self, x: str, channels: int = 8, count: int = 2) -> str:
        """Convolutions with ReLUs, of normal activations and weights."""
        for i in range(count):
            fan = 3 if i == 0 else channels
            weight = self.random.standard_normal((channels, fan, 3, 3)) * 1.4 / np.sqrt(9 * fan)
            inputs = [
                x,
                self.constant(f"w{i}", weight),
                self.constant(f"b{i}", self.random.standard_normal(channels) / 9),
            ]
            x = self.node("Relu", [self.node("Conv", inputs, f"conv{i}", pads=[1, 1, 1, 1])], f"relu{i}")
        return x

    def model(self, shape: list[int], outputs: dict[str, list[int]]) -> onnx.ModelProto:
        """A model of one input ``x``; every shape has a batch axis in front."""
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", 1, ["B", *shape])],
            [helper.make_tensor_value_info(name, 1, ["B", *sizes]) for name, sizes in outputs.items()],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def images(count: int = 16) -> Array:
    """Float32 images (count, 3, 8, 8)."""
    return np.random.default_rng(1).standard_normal((count, 3, 8, 8)).astype(np.float32)


def outlier_channel() -> Made:
    """``scaled`` has a channel that is 4000 times as large as the others, and of which ``y`` reads next to nothing."""
    w = Writer()
    x = w.layers("x")
    scale = np.ones((8, 1, 1, 1))
    scale[-1] = 4000
    scaled = w.node("Conv", [x, w.constant("scale", scale)], "scaled", group=8)
    weight = w.random.standard_normal((8, 8, 1, 1)) / 3
    weight[:, -1] *= 1e-4
    w.node("Conv", [scaled, w.constant("last", weight)], "y")
    return w.model([3, 8, 8], {"y": [8, 8, 8]}), {"x": images()}


def rare_values() -> Made:
    """Two values of 49,152 are 2000, in a channel of which ``y`` reads next to nothing: no range need cover them."""
    w = Writer()
    weight = w.random.standard_normal((8, 3, 3, 3)) / 3
    weight[:, 2] *= 1e-5
    w.node("Conv", ["x", w.constant("first", weight)], "y")
    data = images(256)
    data[:, 2] = 0
    data[[3, 90], 2, 4, 4] = 2000
    return w.model([3, 8, 8], {"y": [8, 6, 6]}), {"x": data}


def boxes() -> Made:
    """Box centres of up to 1024 in ``box``, of which ``offset`` takes the grid off again; ``score`` is another output."""
    w = Writer()
    x = w.layers("x")
    delta = w.node("Conv", [x, w.constant("of_boxes", w.random.standard_normal((2, 8, 1, 1)) / 3)], "delta")
    grid = w.constant("grid", np.stack(np.meshgrid(*2 * [np.arange(8) * 128]))[None])
    box = w.node("Add", [delta, grid], "box")
    w.node("Sub", [box, grid], "offset")
    w.node("Conv", [x, w.constant("of_scores", w.random.standard_normal((5, 8, 1, 1)) / 3)], "score")
    return w.model([3, 8, 8], {"offset": [2, 8, 8], "score": [5, 8, 8]}), {"x": images()}


def depthwise() -> Made:
    """The weight of the depthwise ``deep`` has channels of very different size, which ``y`` makes up for."""
    w = Writer()
    x = w.layers("x", channels=16)
    size = np.geomspace(1, 1e-3, 16).reshape(-1, 1, 1, 1)
    weight = w.random.standard_normal((16, 1, 3, 3)) / 3
    deep = w.node("Conv", [x, w.constant("unlike", weight * size)], "deep", group=16, pads=[1, 1, 1, 1])
    factor = w.constant("factor", 1 / size.reshape(1, -1, 1, 1))
    w.node("Mul", [deep, factor], "y")
    return w.model([3, 8, 8], {"y": [16, 8, 8]}), {"x": images()}


def division() -> Made:
    """``size`` comes down to 0.01, which is the code of 0 when quantized, and ``quotient`` divides by it."""
    w = Writer()
    random = w.random.standard_normal
    size = w.node("Abs", [w.node("MatMul", ["x", w.constant("v", random((16, 6)) * 2)], "of_size")], "magnitude")
    size = w.node("Add", [size, w.constant("little", 0.01)], "size")
    part = w.node("MatMul", ["x", w.constant("u", random((16, 6)) / 4)], "part")
    quotient = w.node("Tanh", [w.node("Div", [part, size], "quotient")], "bounded")
    w.node("MatMul", [quotient, w.constant("last", random((6, 8)))], "y")
    data = np.random.default_rng(1).standard_normal((32, 6, 16)).astype(np.float32)
    return w.model([6, 16], {"y": [6, 8]}), {"x": data}


def in_branch() -> Made:
    """:func:`boxes` in a branch of an If that is always taken."""
    model, data = boxes()
    made = {n.name: n for n in model.graph.node}
    inside = [made.pop(name) for name in ("box", "offset")]
    value = helper.make_tensor_value_info("offset", 1, ["B", 2, 8, 8])
    other = helper.make_tensor_value_info("none", 1, ["B", 2, 8, 8])
    taken = helper.make_graph(inside, "taken", [], [value])
    plain = helper.make_graph([helper.make_node("Identity", ["delta"], ["none"], name="none")], "plain", [], [other])
    choice = helper.make_node("If", ["always"], ["chosen"], name="chosen", then_branch=taken, else_branch=plain)
    compare = [
        helper.make_node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "low"], ["always"], name="always"),
    ]
    low = numpy_helper.from_array(np.float32(-9), "low")
    graph = helper.make_graph(
        [*made.values(), *compare, choice],
        "g",
        list(model.graph.input),
        [helper.make_tensor_value_info("chosen", 1, ["B", 2, 8, 8]), model.graph.output[1]],
        [*model.graph.initializer, low],
    )
    whole = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=8)
    onnx.checker.check_model(whole, full_check=True)
    return whole, data
