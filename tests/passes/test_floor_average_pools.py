"""floor-average-pools: windows over the end of an AveragePool's input become padding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.floor_average_pools import FloorAveragePools
from onnxqat.runtime.session import Session
from tests.passes.checks import check_pass, ort_run, parse, run_checked

NEWER = '<ir_version: 9, opset_import: ["" : 19]>\n'  # the first with dilations
POOL = "g (float[1,2,10,8] x) => (float[1,2,A,B] y) { y = AveragePool<kernel_shape=[3,3], ATTRIBUTES>(x) }"
INSIDE = """g (float[1,2,10,8] x) => (float[1,2,A,B] y) <float[2,2,1,1] w = {0.5, -1, 0.25, 1}> {
    t = Conv(x, w) r = Relu(t) p = AveragePool<kernel_shape=[3,3], ATTRIBUTES>(r) y = Conv(p, w) }"""


def test_the_last_windows_read_padding() -> None:
    before = POOL.replace("ATTRIBUTES", "strides=[2,2], ceil_mode=1")
    after = POOL.replace("ATTRIBUTES", "strides=[2,2], pads=[0,0,1,1]")
    check_pass(FloorAveragePools(), before, after, atol=1e-6, inside_if="skip", inside_function="skip")


@pytest.mark.parametrize("strides", ["1,1", "2,3", "3,2", "4,4"])
@pytest.mark.parametrize("pads", ["0,0,0,0", "1,1,1,1", "0,2,1,0", "2,0,2,2"])
def test_any_padding(strides: str, pads: str) -> None:
    source = NEWER + POOL.replace("ATTRIBUTES", f"strides=[{strides}], pads=[{pads}], ceil_mode=1")
    found = run_checked(FloorAveragePools(), parse(source), atol=1e-6)
    assert found.changed


@pytest.mark.parametrize(
    "attributes",
    [
        "strides=[2,2]",
        "strides=[2,2], ceil_mode=1, pads=[1,1,1,1], count_include_pad=1",
        "strides=[2,2], ceil_mode=1, dilations=[2,2]",
        'strides=[2,2], ceil_mode=1, auto_pad="SAME_UPPER"',
    ],
)
def test_left_alone(attributes: str) -> None:
    check_pass(FloorAveragePools(), NEWER + POOL.replace("ATTRIBUTES", attributes), None)


def test_sizes_that_are_not_known() -> None:
    source = POOL.replace("10,8", "H,W").replace("ATTRIBUTES", "strides=[2,2], ceil_mode=1")
    check_pass(FloorAveragePools(), source, None)


@pytest.mark.parametrize("pads", ["0,0,0,0", "1,1,1,1"])
@pytest.mark.parametrize("backend", ["qnn-htp", "rknn", "tidl"])
def test_integers_count_as_the_file_says(backend: str, pads: str) -> None:
    """With both attributes the default session of onnxruntime was at 16 dB from the file as written."""
    source = INSIDE.replace("ATTRIBUTES", f"strides=[2,2], pads=[{pads}], ceil_mode=1, count_include_pad=1")
    x = {"x": np.random.default_rng(0).normal(size=(1, 2, 10, 8)).astype(np.float32)}
    model = insert_qdq(parse(NEWER + source), backend, data=x).model
    assert isinstance(model, onnx.ModelProto)
    written = ort_run(model, x)["y"]
    default = Session(io.load(model), optimize=True, precise=True).run(x)["y"]  # these chips add products at 32 bits
    step = next(float(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer if t.name == "y_scale")
    assert np.abs(written - default).max() <= 1.001 * step  # a tie of one of the kernels
