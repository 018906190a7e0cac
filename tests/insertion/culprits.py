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


def cancelled() -> Made:
    """All of ``wide`` lies near 800, which ``y`` takes off again by differences; ``score`` is another output."""
    w = Writer()
    x = w.layers("x")
    inputs = [x, w.constant("to_wide", w.random.standard_normal((8, 8, 1, 1)) / 3), w.constant("far", np.full(8, 800))]
    wide = w.node("Conv", inputs, "wide")
    weight = w.random.standard_normal((2, 4, 1, 1, 1)) * np.array([1, -1]).reshape(1, 1, 2, 1, 1)
    w.node("Conv", [wide, w.constant("differences", weight.reshape(2, 8, 1, 1))], "y")
    w.node("Conv", [x, w.constant("of_scores", w.random.standard_normal((5, 8, 1, 1)) / 3)], "score")
    return w.model([3, 8, 8], {"y": [2, 8, 8], "score": [5, 8, 8]}), {"x": images()}


def depthwise() -> Made:
    """The weight of the depthwise ``deep`` has channels of very different size, which ``y`` makes up for."""
    w = Writer()
    x = w.layers("x", channels=16)
    size = np.geomspace(1, 1e-3, 16).reshape(-1, 1, 1, 1)
    weight = w.random.standard_normal((16, 1, 3, 3)) / 3
    deep = w.node("Conv", [x, w.constant("unlike", weight * size)], "deep", group=16, pads=[1, 1, 1, 1])
    # one factor a place, which no layer takes in
    factor = w.constant("factor", np.broadcast_to(1 / size.reshape(1, -1, 1, 1), (1, 16, 8, 8)))
    w.node("Mul", [deep, factor], "y")
    return w.model([3, 8, 8], {"y": [16, 8, 8]}), {"x": images()}


def angles() -> Made:
    """``cosine`` ends at 1, and a little above when quantized, where ``angle`` is not a number."""
    w = Writer()
    half = np.vstack([np.eye(4) / 2, np.zeros((4, 4))])
    cosine = w.node("MatMul", ["x", w.constant("half", half)], "cosine")
    angle = w.node("Acos", [cosine], "angle")
    w.node("MatMul", [angle, w.constant("last", w.random.standard_normal((4, 6)))], "y")
    random = np.random.default_rng(1)
    # On the grid of x, 2 is 101.01 steps, a little less when rounded. On that of the cosine, -0.502 is 85.2 steps below
    # 0, which becomes 85, so that the largest code is 1.0013.
    data = np.concatenate([random.uniform(-1, 1.9, (32, 3, 4)), random.uniform(-2, 2, (32, 3, 4))], axis=-1)
    data[0, 0] = [2, -1.004, 0.5, 0.5, 2.5245, -2.5245, 0, 0]
    return w.model([3, 8], {"y": [3, 6]}), {"x": data.astype(np.float32)}


def in_branch() -> Made:
    """:func:`cancelled` in a branch of an If that is always taken."""
    model, data = cancelled()
    made = {n.name: n for n in model.graph.node}
    inside = [made.pop(name) for name in ("wide", "y")]
    value = helper.make_tensor_value_info("y", 1, ["B", 2, 8, 8])
    other = helper.make_tensor_value_info("none", 1, ["B", 2, 8, 8])
    taken = helper.make_graph(inside, "taken", [], [value])
    slices = [
        numpy_helper.from_array(np.array([n], np.int64), name) for n, name in ((0, "zero"), (2, "two"), (1, "one"))
    ]
    cut = helper.make_node("Slice", ["relu1", "zero", "two", "one"], ["none"], name="none")
    plain = helper.make_graph([cut], "plain", [], [other])
    choice = helper.make_node("If", ["always"], ["chosen"], name="chosen", then_branch=taken, else_branch=plain)
    compare = [
        helper.make_node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "low"], ["always"], name="always"),
    ]
    graph = helper.make_graph(
        [*made.values(), *compare, choice],
        "g",
        list(model.graph.input),
        [helper.make_tensor_value_info("chosen", 1, ["B", 2, 8, 8]), model.graph.output[1]],
        [*model.graph.initializer, numpy_helper.from_array(np.float32(-9), "low"), *slices],
    )
    whole = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=8)
    onnx.checker.check_model(whole, full_check=True)
    return whole, data


def offset() -> Made:
    """``level`` is rounded finely against its size, and ``differences`` tell of nothing but what is lost thereby.

    Sixteen quantizers with noise of their own, which does no harm, stand in front of it.
    """
    w = Writer()
    x = w.layers("x", count=8)
    little = w.node("Mul", [x, w.constant("small", 0.02)], "little")
    level = w.node("Add", [little, w.constant("far", np.full((8, 1, 1), 5.0))], "level")
    kernel = np.zeros((8, 1, 1, 2))
    kernel[..., 0], kernel[..., 1] = 1, -1
    differences = w.node("Conv", [level, w.constant("kernel", kernel)], "differences", group=8)
    w.node("Conv", [differences, w.constant("last", w.random.standard_normal((8, 8, 1, 1)) / 3)], "y")
    return w.model([3, 8, 8], {"y": [8, 8, 7]}), {"x": images()}


def flipped() -> Made:
    """``y`` is a number from a table, by an index that rounding flips, beside a little of what gradients reach."""
    w = Writer()
    x = w.layers("x")
    near = 1 + w.random.standard_normal((8, 8, 1, 1)) / 1000
    index = w.node("ArgMax", [w.node("Conv", [x, w.constant("near", near)], "scores")], "index", axis=1, keepdims=1)
    picked = w.node("Gather", [w.constant("table", 10 * w.random.standard_normal(8)), index], "picked")
    w.node("Add", [picked, w.node("Mul", [x, w.constant("little", 0.01)], "small")], "y")
    return w.model([3, 8, 8], {"y": [8, 8, 8]}), {"x": images()}
