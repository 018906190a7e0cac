"""pad-counted-pools: padding that an AveragePool counts becomes a Pad."""

import numpy as np
import onnx
import pytest

from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from onnxqat.passes.pad_counted_pools import PadCountedPools
from tests.passes.checks import check_pass, parse, run_checked

NEWER = '<ir_version: 9, opset_import: ["" : 19]>\n'  # the first with dilations
POOL = "g (float[1,2,5,5] x) => (float[1,2,A,B] y) { y = AveragePool<kernel_shape=[3,3], ATTRIBUTES>(x) }"
PADDED = """g (float[1,2,5,5] x) => (float[1,2,A,B] y) <int64[8] y_pads = {0, 0, 1, 0, 0, 0, 2, 1}> {
    y_padded = Pad(x, y_pads) y = AveragePool<kernel_shape=[3,3], strides=[2,1], count_include_pad=0>(y_padded) }"""
INSIDE = """g (float[1,2,6,6] x) => (float[1,2,A,B] y) <float[2,2,1,1] w = {0.5, -1, 0.25, 1}> {
    t = Conv(x, w) p = AveragePool<kernel_shape=[3,3], ATTRIBUTES, count_include_pad=1>(t) y = Conv(p, w) }"""
PADDINGS = ["pads=[1,1,1,1]", "pads=[1,1,1,1], strides=[2,2], ceil_mode=1", 'auto_pad="SAME_LOWER", strides=[2,2]']


def test_counted_padding() -> None:
    attributes = "strides=[2,1], pads=[1,0,2,1], count_include_pad=1"
    check_pass(PadCountedPools(), POOL.replace("ATTRIBUTES", attributes), PADDED, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [
        "pads=[1,1,1,1], ceil_mode=1, strides=[2,2]",
        "pads=[1,1,1,1], ceil_mode=1, strides=[3,2]",
        "pads=[0,1,2,2], ceil_mode=1, strides=[2,3]",
        "pads=[2,2,2,2], ceil_mode=1, strides=[2,2], dilations=[2,1]",
        'auto_pad="SAME_UPPER", strides=[2,1]',
        'auto_pad="SAME_LOWER", strides=[2,3]',
        'auto_pad="SAME_LOWER", ceil_mode=1, strides=[2,2]',
    ],
)
def test_padding_from_other_attributes(attributes: str) -> None:
    source = NEWER + POOL.replace("ATTRIBUTES", f"{attributes}, count_include_pad=1")
    found = run_checked(PadCountedPools(), parse(source), atol=1e-6).model
    assert isinstance(found, onnx.ModelProto)
    assert [n.op_type for n in found.graph.node] == ["Pad", "AveragePool"]


def test_without_padding_only_the_attribute_changes() -> None:
    source = POOL.replace("ATTRIBUTES", "ceil_mode=1, strides=[2,2], count_include_pad=%d")
    check_pass(PadCountedPools(), source % 1, source % 0, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [
        "pads=[1,1,1,1], count_include_pad=0",
        "pads=[1,1,1,1]",
        "pads=[0,0,0,0], count_include_pad=1",
        'auto_pad="VALID", count_include_pad=1',
    ],
)
def test_left_alone(attributes: str) -> None:
    check_pass(PadCountedPools(), POOL.replace("ATTRIBUTES", attributes), None)


@pytest.mark.parametrize("attributes", ['auto_pad="SAME_UPPER"', "pads=[2,2,2,2], ceil_mode=1"])
def test_sizes_that_are_not_known(attributes: str) -> None:
    attributes = f"{attributes}, strides=[2,2], count_include_pad=1"
    check_pass(PadCountedPools(), POOL.replace("5,5", "H,W").replace("ATTRIBUTES", attributes), None)


def made(backend: str, padding: str = PADDINGS[0]) -> onnx.ModelProto:
    data = {"x": np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype(np.float32)}
    result = insert_qdq(parse(INSIDE.replace("ATTRIBUTES", padding)), backend, data=data).model
    assert isinstance(result, onnx.ModelProto)
    return result


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_target_that_cannot_count_padding_gets_a_pad(padding: str) -> None:
    found = made("openvino-cpu", padding)
    assert "Pad" in [n.op_type for n in found.graph.node]
    assert [f for f in lint(found, "openvino-cpu").findings if f.severity != "note"] == []


def test_other_targets_keep_the_pool() -> None:
    assert "Pad" not in [n.op_type for n in made("onnxruntime-cpu").graph.node]


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_compiler_gives_the_reference(padding: str) -> None:
    openvino = pytest.importorskip("openvino")
    import onnxruntime as ort

    model = made("openvino-cpu", padding)
    content = model.SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.random.default_rng(1).normal(size=(1, 2, 6, 6)).astype(np.float32)
    expected = ort.InferenceSession(content, options).run(None, {"x": x})[0]
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    step = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "y_scale")
    assert np.abs(compiled({"x": x})[0] - expected).max() <= 2.001 * float(step)
