"""A large pool reads only what its windows reach; the numbers stay."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from onnxqat.deployment.workarounds.rknn_average_pools import RknnAveragePools
from tests.passes.checks import check_pass, in_function, in_if, run_checked


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
    made = run_checked(RknnAveragePools(), model, atol=0).model
    assert [n.op_type for n in made.graph.node][2:] == ["Slice", "QuantizeLinear", "DequantizeLinear", "AveragePool"]
    for wrap in (in_if, in_function):
        assert run_checked(RknnAveragePools(), wrap(model), atol=0).changed == (wrap is in_if), (
            "a function has no shapes"
        )


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
    check_pass(RknnAveragePools(), model, None)
