"""resize-all-axes: Resize gets scales or sizes for every axis."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.resize_all_axes import ResizeAllAxes
from tests.passes.checks import check_pass, ort_run

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '


def test_constant_scales() -> None:
    check_pass(
        ResizeAllAxes(),
        f"{HEAD} g (float[1,2,3,4] x) => (float[1,2,H,W] y) <float[2] s = {{3, 2}}> {{ y = Resize<axes = [3, 2]>(x, , s) }}",
        f"{HEAD} g (float[1,2,3,4] x) => (float[1,2,H,W] y) <float[4] s_all_axes = {{1, 1, 2, 3}}> "
        "{ y = Resize(x, , s_all_axes) }",
        inside_function="left",  # ranks are not known there
    )


def test_constant_sizes_of_an_image_whose_other_axes_are_known() -> None:
    """Compilers want them as constants."""
    check_pass(
        ResizeAllAxes(),
        f"{HEAD} g (float[1,2,H,W] x) => (float[1,2,6,5] y) <int64[2] s = {{5, 6}}> {{ y = Resize<axes = [3, 2]>(x, , , s) }}",
        f"{HEAD} g (float[1,2,H,W] x) => (float[1,2,6,5] y) <int64[4] s_all_axes = {{1, 2, 6, 5}}> "
        "{ y = Resize(x, , , s_all_axes) }",
        inside_function="left",
    )


@pytest.mark.parametrize("resize", ["axes = [2, 3]> (r, , , size)", "axes = [2, 3]> (r, , scale)"])
def test_the_default_session_takes_it_between_integer_convolutions(resize: str) -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[N,8,6,6] x) => (float[N,8,H,W] y) <int64[2] size = {{9, 12}}, "
        f'float[2] scale = {{1.5, 2}}> {{ r = Conv(x, w) u = Resize<mode = "linear", {resize} y = Conv(u, w) }}'
    )
    weight = np.random.default_rng(0).standard_normal((8, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    data = {"x": np.random.default_rng(1).standard_normal((4, 8, 6, 6)).astype(np.float32)}
    quantized = insert_qdq(model, "onnxruntime-cpu", data=data).model
    session = onnxruntime.InferenceSession(quantized.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,), wanted = session.run(None, data), ort_run(model, data)["y"]
    assert np.abs(np.asarray(found) - wanted).max() < 0.1 * np.abs(wanted).max()
