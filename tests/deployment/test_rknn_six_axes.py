"""Sums and products of six axes work on fewer, with the same codes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.workarounds.rknn_six_axes import RknnSixAxes
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes._base import run_passes
from tests.backends.planning import weight
from tests.passes.checks import in_function, in_if, run_checked

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
MODEL = "g (float[1,5,4,2,3,2] x) => (float[1,5,4,2,3,2] y) <C c = W> { BODY }"
CASES = {
    "one value": ("float", (), "y = Mul(x, c)", [240]),
    "last axis": ("float[2]", (2,), "y = Add(x, c)", [120, 2]),
    "in the middle": ("float[2,3,1]", (2, 3, 1), "y = Sub(c, x)", [20, 6, 2]),
    "first of two": ("float[5,1,1,1,1]", (5,), "y = Div(c, x)", [5, 48]),
    "every value": ("float[1,5,4,2,3,2]", (5, 4, 2, 3, 2), "y = Mul(x, c)", [240]),
}


def model(name: str) -> onnx.ModelProto:
    kind, shape, body, _ = CASES[name]
    values = weight(*shape) if shape else "{0.5}"
    return onnx.parser.parse_model(HEADER + MODEL.replace("C c = W", f"{kind} c = {values}").replace("BODY", body))


def ranks(found: onnx.ModelProto) -> list[list[int]]:
    """Shapes that Reshapes make."""
    held = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in found.graph.initializer}
    return [held[node.input[1]] for node in found.graph.node if node.op_type == "Reshape"]


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str) -> None:
    result = run_checked(RknnSixAxes(), model(name), atol=0)
    assert ranks(result.model) == [CASES[name][3], [1, 5, 4, 2, 3, 2]]
    assert run_checked(RknnSixAxes(), in_if(model(name)), atol=0).changed
    run_checked(RknnSixAxes(), in_function(model(name)), atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[5,4,2,3,2] x) => (float[5,4,2,3,2] y) <float c = {2}> { y = Mul(x, c) }",  # five axes
        "g (float[1,5,4,2,3,2] x) => (float[1,5,4,2,3,2] y) <float c = {2}> { y = Pow(x, c) }",
        "g (float[1,5,4,2,3,2] x, float[N] c) => (float[1,5,4,2,3,2] y) { y = Mul(x, c) }",
        "g (float[1,N,4,2,3,2] x) => (float[1,N,4,2,3,2] y) <float c = {2}> { y = Mul(x, c) }",
        f"g (float[2,2,2,2,2,2] x) => (float[2,2,2,2,2,2] y) <float[2,1,2,1,2,1] c = {weight(8)}> {{ y = Mul(x, c) }}",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert not run_passes(onnx.parser.parse_model(HEADER + text), [RknnSixAxes()]).changed


def test_two_computed_operands() -> None:
    """Reference points and offsets of deformable attention."""
    text = "g (float[1,5,1,1,1,2] p, float[1,5,4,2,3,2] o) => (float[1,5,4,2,3,2] y) { y = Add(p, o) }"
    result = run_checked(RknnSixAxes(), onnx.parser.parse_model(HEADER + text), atol=0)
    assert ranks(result.model) == [[5, 1, 2], [5, 24, 2], [1, 5, 4, 2, 3, 2]]


def test_an_operand_that_is_repeated_along_the_last_axis() -> None:
    text = f"g (float[1,5,4,2,3,1] x) => (float[1,5,4,2,3,2] y) <float[2] c = {weight(2)}> {{ y = Mul(x, c) }}"
    result = run_checked(RknnSixAxes(), onnx.parser.parse_model(HEADER + text), atol=0)
    assert ranks(result.model) == [[120, 1], [1, 5, 4, 2, 3, 2]]


def test_a_constant_with_scales_along_an_axis() -> None:
    text = """g (float[1,5,4,2,3,2] x) => (float[1,5,4,2,3,2] y) <int8[2] q = {3, 4}, float[2] s = {0.5, 0.25}, int8[2] z = {0, 0}>
        { c = DequantizeLinear <axis = 0> (q, s, z) y = Mul(x, c) }"""
    assert not run_checked(RknnSixAxes(), onnx.parser.parse_model(HEADER + text), atol=0).changed


@pytest.mark.parametrize("name", ["one value", "last axis"])
def test_no_code_changes(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 4, 2, 3, 2)).astype(np.float32)
    made = insert_qdq(model(name), "rknn", data={"x": x}, fast=True).model
    deployed = ir.to_proto(deploy_form(io.load(made), schema.load("rknn"), []))
    result = run_checked(RknnSixAxes(), onnx.shape_inference.infer_shapes(deployed), atol=0)
    assert ranks(result.model)[0] == CASES[name][3]
    makers = {output: node.op_type for node in result.model.graph.node for output in node.output}
    (operation,) = (node for node in result.model.graph.node if node.op_type in ("Mul", "Add"))
    assert {makers[name] for name in operation.input} == {"DequantizeLinear"}
