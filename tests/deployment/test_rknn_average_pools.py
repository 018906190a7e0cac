"""A large pool reads only what its windows reach; the numbers stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxqat.deployment.workarounds.rknn_average_pools import with_cut_pools
from onnxqat.graph import io
from onnxqat.runtime.session import Session


def pool(shape: tuple[int, ...], quantized: bool = True, **attributes: object) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    pair = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    ]
    source = "d" if quantized else "r"
    nodes = pair if quantized else [helper.make_node("Relu", ["x"], ["r"])]
    nodes.append(helper.make_node("AveragePool", [source], ["y"], name="pool", **attributes))  # type: ignore[arg-type]
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.02]),
        helper.make_tensor("z", TensorProto.UINT8, [], [128]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


KERNEL = {"kernel_shape": [24, 5], "strides": [24, 5]}


def test_what_the_windows_do_not_reach_is_cut() -> None:
    model = pool((1, 4, 25, 5), **KERNEL)
    before = model.SerializeToString()
    made = with_cut_pools(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(made, full_check=True)
    assert [n.op_type for n in made.graph.node][2:] == ["Slice", "QuantizeLinear", "DequantizeLinear", "AveragePool"]
    feeds = {"x": np.random.default_rng(2).normal(size=(1, 4, 25, 5)).astype(np.float32)}
    one, two = (Session(io.load(m), optimize=False).run(feeds)["y"] for m in (model, made))
    assert np.array_equal(one, two)
    assert with_cut_pools(made).SerializeToString() == made.SerializeToString()


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((1, 4, 24, 5), {}),  # all of it is reached
        ((1, 4, 25, 5), {"quantized": False}),
        ((1, 4, 25, 5), {"ceil_mode": 1}),
        ((1, 4, 25, 5), {"pads": [0, 1, 0, 1]}),
        ((1, 4, 5, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
)
def test_others_are_left_alone(shape: tuple[int, ...], changes: dict[str, object]) -> None:
    model = pool(shape, **(KERNEL | changes))  # type: ignore[arg-type]
    assert with_cut_pools(model).SerializeToString() == model.SerializeToString()
