"""A loop over module.parameters() trains weights, not epsilons, masks and tables."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing.importer import to_torch

TABLE = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
MASK = np.where(np.tri(4, 6, dtype=bool), 0.0, -1e4).astype(np.float32)


def trains(operator: str, constant: Any, *, first: bool = False, raw: bool = False) -> bool:
    """Whether `constant` trains where `operator` reads it beside an activation, or beside the graph input with `raw`."""
    value = np.asarray(constant, np.float32)
    source = "x" if raw else "h"
    inputs = ["c", source] if first else [source, "c"]
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node(operator, inputs, ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, "c")],
    )
    module = to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    return next(iter(module.parameters())).requires_grad


@pytest.mark.parametrize(
    ("operator", "constant"),
    [
        ("Add", 1e-5),
        ("Pow", [2.0]),
        ("Div", np.ones(6)),
        ("Add", MASK),
        ("Add", np.where(np.arange(6) < 3, 0.0, -np.inf)),
        ("Sub", MASK),
        ("Mul", TABLE),
    ],
)
def test_settings_do_not_train(operator: str, constant: Any) -> None:
    assert not trains(operator, constant)
    assert operator == "Pow" or not trains(operator, constant, first=operator != "Div")


@pytest.mark.parametrize(
    ("operator", "constant"),
    [("Add", np.ones(6)), ("Add", 500 * np.ones(6)), ("Add", TABLE), ("Mul", np.ones(6)), ("Mul", np.ones((4, 1)))],
)
def test_weights_train(operator: str, constant: Any) -> None:
    """Biases, learned position embeddings, factors per channel."""
    assert trains(operator, constant)


def test_a_mean_that_is_subtracted_from_the_input_does_not_train() -> None:
    assert not trains("Sub", np.ones(6), raw=True)
    assert trains("Sub", np.ones(6))
    assert trains("Add", np.ones(6), raw=True)


def test_a_weight_that_two_constants_make_trains() -> None:
    nodes = [helper.make_node("Mul", ["v", "g"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    held = {"v": TABLE, "g": np.ones((4, 6), np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert all(p.requires_grad for p in to_torch(model).parameters())
