"""Layers on rows become convolutions, with the same codes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.workarounds.rknn_four_axes import RknnFourAxes
from onnxqat.deployment.workarounds.rknn_linear_layers import RknnLinearLayers
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from tests.backends.planning import proto, weight
from tests.passes.checks import in_function, in_if, run_checked

WEIGHTS = f"float[4,6] w = {weight(4, 6)}, float[6,3] v = {weight(6, 3)}, float[6] b = {{1, 2, 3, -1, -2, -3}}"
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
FLOATS = {
    "MatMul of three axes": ("x (float[2,5,4] x) => (float[2,5,6] y)", "y = MatMul(x, w)", ["Conv"]),
    "two layers": (
        "x (float[1,5,4] x) => (float[1,5,3] y)",
        "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)",
        ["Conv", "Conv"],
    ),
    "Gemm": ("x (float[5,4] x) => (float[5,6] y)", "y = Gemm(x, w, b)", ["Conv"]),
    "read twice": ("x (float[5,4] x) => (float[5,6] y, float[5,6] h)", "h = Gemm(x, w, b) y = Neg(h)", ["Conv"]),
    "one row": ("x (float[1,4] x) => (float[1,6] y)", "y = Gemm(x, w, b)", ["Gemm"]),
    "alpha": ("x (float[5,4] x) => (float[5,6] y)", "y = Gemm <alpha = 0.5> (x, w, b)", ["Gemm"]),
}


def model(name: str) -> onnx.ModelProto:
    head, body, _ = FLOATS[name]
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(f"{HEADER} {head} <{WEIGHTS}> {{ {body} }}"))


def layers(found: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in found.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]


@pytest.mark.parametrize("name", FLOATS)
def test_the_same_numbers(name: str) -> None:
    result = run_checked(RknnLinearLayers(), model(name), atol=2e-6)
    assert layers(result.model) == FLOATS[name][2]
    for wrap in (in_if, in_function):
        run_checked(RknnLinearLayers(), wrap(model(name)), atol=2e-6)


@pytest.mark.parametrize("name", ["MatMul of three axes", "two layers"])
def test_no_code_changes(name: str) -> None:
    shape = tuple(d.dim_value for d in model(name).graph.input[0].type.tensor_type.shape.dim)
    x = np.random.default_rng(0).standard_normal((4 * shape[0], *shape[1:])).astype(np.float32)
    made = insert_qdq(model(name), "rknn", data={"x": x}, batch_size=shape[0], fast=True).model
    deployed = deploy_form(io.load(made), schema.load("rknn"), [])
    inferred = onnx.shape_inference.infer_shapes(ir.to_proto(deployed))
    result = run_checked(RknnLinearLayers(), inferred, atol=1e-6)  # a step is 10,000 times as much
    assert set(layers(result.model)) == {"Conv"}
    makers = {output: node.op_type for node in result.model.graph.node for output in node.output}
    moves = [n for n in result.model.graph.node if n.op_type in ("Reshape", "Transpose", "Conv")]
    assert {makers.get(n.input[0], "DequantizeLinear") for n in moves} <= {"DequantizeLinear"}


@pytest.mark.parametrize(
    ("head", "body", "changed"),
    [
        ("g (float[2,5,4] x) => (float[2,4,5] y)", "y = Transpose <perm = [0,2,1]> (x)", True),
        ("g (float[2,5,4] x) => (float[4,5,2] y)", "y = Transpose(x)", True),
        ("g (float[2,5,4] x, float[2,4,3] z) => (float[2,5,3] y)", "y = MatMul(x, z)", True),
        ("g (float[2,5,4,3] x) => (float[2,4,5,3] y)", "y = Transpose <perm = [0,2,1,3]> (x)", False),
        ("g (float[N,5,4] x) => (float[N,4,5] y)", "y = Transpose <perm = [0,2,1]> (x)", False),
    ],
)
def test_three_axes_become_four(head: str, body: str, changed: bool) -> None:
    given = proto(f'<ir_version: 8, opset_import: ["" : 17]> {head} {{ {body} }}')
    result = run_checked(RknnFourAxes(), given, atol=0)
    assert result.changed == changed
    assert [n.op_type for n in result.model.graph.node].count("Reshape") >= 2 * changed
