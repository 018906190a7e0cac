"""Convolutions with long strides work on blocks, with the same codes."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.deployment import base_compiler
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.deployment.workarounds.rknn_long_strides import RknnLongStrides
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes._base import run_passes
from tests.backends.planning import weight
from tests.passes.checks import in_function, in_if, ort_run, run_checked

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
FORMS = {
    "patches": ((3, 32, 24), (5, 3, 8, 8), "strides = [8, 8]", []),
    "remainder": ((3, 37, 30), (5, 3, 8, 8), "strides = [8, 8]", ["Slice"]),
    "longer kernel": ((2, 40, 40), (4, 2, 11, 11), "strides = [8, 8]", []),
    "longer kernel, remainder": ((2, 44, 44), (4, 2, 11, 11), "strides = [8, 8]", ["Pad"]),
    "pads": ((2, 35, 40), (4, 2, 11, 9), "strides = [8, 9], pads = [3, 4, 2, 5]", ["Pad"]),
    "pads in front": ((2, 43, 47), (4, 2, 8, 8), "strides = [8, 8], pads = [4, 0, 0, 0]", ["Pad", "Slice"]),
    "shorter kernel": ((2, 33, 33), (4, 2, 3, 3), "strides = [10, 8]", ["Pad", "Slice"]),
    "one short stride": ((2, 12, 33), (4, 2, 5, 16), "strides = [1, 16]", ["Slice"]),
    "dilations": ((2, 40, 40), (4, 2, 3, 3), "strides = [8, 8], dilations = [4, 5]", []),
    "SAME_UPPER": ((2, 35, 43), (4, 2, 9, 11), 'strides = [8, 8], auto_pad = "SAME_UPPER"', ["Pad"]),
    "SAME_LOWER": ((2, 35, 43), (4, 2, 9, 11), 'strides = [8, 8], auto_pad = "SAME_LOWER"', ["Pad"]),
    "groups": ((4, 32, 32), (6, 2, 8, 8), "strides = [8, 8], group = 2", []),
    "depthwise": ((4, 32, 32), (4, 1, 8, 8), "strides = [8, 8], group = 4", []),
    "one axis": ((4, 164), (6, 4, 12), "strides = [10]", ["Pad"]),
}
"""Sizes of the map, of the kernel, attributes, and what stands in front of the blocks."""
ROUNDING = 2e-5
"""Of sums of up to 250 products, each of 1 to 2, in another order."""
ONE_AXIS = ["Reshape", "Transpose", "Reshape"]
TWO_AXES = ["Reshape", "Transpose", *ONE_AXIS]
LEFT = {
    "stride of 7": "g (float[1,3,32,24] x) => (float[1,5,A,B] y) <float[5,3,8,8] w = W> { y = Conv <strides = [7, 7]> (x, w) }",
    "three axes": "g (float[1,2,8,8,16] x) => (float[1,5,A,B,C] y) <float[5,2,1,1,8] w = W> { y = Conv <strides = [1, 1, 8]> (x, w) }",
    "unknown sizes": "g (float[1,3,H,24] x) => (float[1,5,A,B] y) <float[5,3,8,8] w = W> { y = Conv <strides = [8, 8]> (x, w) }",
    "computed weight": "g (float[1,3,16,16] x, float[5,3,8,8] v) => (float[1,5,A,B] y) { w = Neg(v) y = Conv <strides = [8, 8]> (x, w) }",
    "another operator": "g (float[1,5,4,4] x) => (float[1,3,A,B] y) <float[5,3,8,8] w = W> { y = ConvTranspose <strides = [8, 8]> (x, w) }",
}


def model(name: str) -> onnx.ModelProto:
    sizes, shape, attributes, _ = FORMS[name]
    dims, kernel, unknown = (",".join(map(str, d)) for d in (sizes, shape, "ABC"[: len(sizes) - 1]))
    held = f"float[{kernel}] w = {weight(*shape)}, float[{shape[0]}] b = {weight(shape[0])}"
    head = f"g (float[1,{dims}] x) => (float[1,{shape[0]},{unknown}] y)"
    return sized(f"{head} <{held}> {{ y = Conv <{attributes}> (x, w, b) }}")


def sized(text: str) -> onnx.ModelProto:
    """The model of `text`, the sizes of its output inferred."""
    parsed = onnx.parser.parse_model(HEADER + text)
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(parsed)


def operators(found: onnx.ModelProto, *, besides: tuple[str, ...] = ("Conv",)) -> list[str]:
    return [node.op_type for node in found.graph.node if node.op_type not in besides]


def blocks(name: str) -> list[str]:
    """Operators in front of the convolution."""
    return [*FORMS[name][3], *(ONE_AXIS if name == "one axis" else TWO_AXES)]


def strides(found: onnx.ModelProto) -> list[int]:
    return [s for node in found.graph.node for a in node.attribute if a.name == "strides" for s in a.ints]


@pytest.mark.parametrize("name", FORMS)
def test_the_same_numbers(name: str) -> None:
    result = run_checked(RknnLongStrides(), model(name), atol=ROUNDING)
    assert operators(result.model) == blocks(name)
    assert strides(result.model) == []
    assert run_checked(RknnLongStrides(), in_if(model(name)), atol=ROUNDING).changed
    run_checked(RknnLongStrides(), in_function(model(name)), atol=ROUNDING)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_alone(name: str) -> None:
    shape = (5, 2, 1, 1, 8) if name == "three axes" else (5, 3, 8, 8)
    given = sized(LEFT[name].replace("W>", f"{weight(*shape)}>"))
    assert not run_passes(given, [RknnLongStrides()]).changed


def quantized(given: onnx.ModelProto) -> onnx.ModelProto:
    """The deploy form of `given` for RKNN, calibrated on random data."""
    shape = tuple(d.dim_value for d in given.graph.input[0].type.tensor_type.shape.dim)
    x = np.random.default_rng(0).standard_normal((4, *shape[1:])).astype(np.float32)
    made = insert_qdq(given, "rknn", data={"x": x}, fast=True).model
    deployed = deploy_form(io.load(made), schema.load("rknn"), [])
    return onnx.shape_inference.infer_shapes(ir.to_proto(deployed))


@pytest.mark.parametrize("name", ["patches", "pads", "groups", "one axis"])
def test_no_code_changes(name: str) -> None:
    result = run_checked(RknnLongStrides(), quantized(model(name)), atol=1e-6)  # a step is 10,000 times as much
    assert operators(result.model, besides=("Conv", "QuantizeLinear", "DequantizeLinear")) == blocks(name)
    makers = {output: node.op_type for node in result.model.graph.node for output in node.output}
    moves = [n for n in result.model.graph.node if n.op_type in ("Reshape", "Transpose", "Pad", "Slice", "Conv")]
    assert {makers[n.input[0]] for n in moves} == {"DequantizeLinear"}


def test_a_weight_with_zero_points() -> None:
    text = f"""g (float[1,2,40,40] x) => (float[1,3,A,B] y)
        <uint8[3,2,11,11] q = {{{",".join(str(i % 251) for i in range(726))}}}, float[3] s = {{0.5, 0.25, 1}}, uint8[3] z = {{7, 128, 250}}>
        {{ w = DequantizeLinear <axis = 0> (q, s, z) y = Conv <strides = [8, 8]> (x, w) }}"""
    assert run_checked(RknnLongStrides(), sized(text), atol=0.05).changed


def test_a_scale_for_each_input_channel() -> None:
    text = f"""g (float[1,2,16,16] x) => (float[1,3,A,B] y)
        <int8[3,2,8,8] q = {{{",".join(str(i % 100) for i in range(384))}}}, float[2] s = {{0.5, 0.25}}, int8[2] z = {{0, 0}}>
        {{ w = DequantizeLinear <axis = 1> (q, s, z) y = Conv <strides = [8, 8]> (x, w) }}"""
    assert not run_checked(RknnLongStrides(), sized(text), atol=0).changed


@pytest.mark.parametrize("name", ["patches", "pads", "groups"])
def test_the_toolkit_runs_them_on_integers(name: str, tmp_path: Path) -> None:
    compiler = base_compiler.load("rknn-toolkit2")
    if compiler.version() is None:
        pytest.skip("not installed: onnxqat handoff --install rknn-toolkit2")
    path, given = tmp_path / "model.onnx", quantized(model(name))
    (convolution,) = (node for node in given.graph.node if node.op_type == "Conv")
    convolution.name = "patches"
    onnx.save(given, path)
    shape = tuple(d.dim_value for d in given.graph.input[0].type.tensor_type.shape.dim)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    result = compile_in_process(compiler, path, [{"x": x}])
    assert {node.kind for node in result.nodes if node.name == "patches"} == {"integer"}
    assert np.array_equal(result.outputs[0]["y"], ort_run(given, {"x": x})["y"])
