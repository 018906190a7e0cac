"""The lowest opset of a model: newer versions of an operator that its nodes do not use do not count."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import io
from onnxqat.passes import _opset
from tests.passes.checks import ort_run

X = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}


def model(body: str, opset: int) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1,2,4,4] x) => (float[N,C,H,W] y) {{ {body} }}'
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


PADS = "p = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> ()"
SCALES = "s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
SAME = {
    "ReduceMax": ("a = Constant <value_ints = [1]> () y = ReduceMax (x, a)", 18),
    "Reshape": ("s = Constant <value_ints = [1, 2, 4, 4]> () y = Reshape (x, s)", 14),
    "Cast": ("i = Cast <to = 6> (x) y = Cast <to = 1> (i)", 13),
    "AveragePool": ("y = AveragePool <kernel_shape = [2, 2]> (x)", 11),
    "Pad": (f"{PADS} y = Pad <mode = 'reflect'> (x, p)", 18),
    "Resize": (f"{SCALES} y = Resize <mode = 'linear'> (x, , s)", 18),
}
NEW = {
    "AveragePool": ("y = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", 19),
    "Pad": (f"{PADS} y = Pad <mode = 'wrap'> (x, p)", 19),
    "Resize": (
        f"{SCALES} y = Resize <mode = 'linear', coordinate_transformation_mode = 'half_pixel_symmetric'> (x, , s)",
        19,
    ),
    "Gelu": ("y = Gelu (x)", 20),
}


@pytest.mark.parametrize("op", SAME)
def test_a_newer_version_that_means_the_same(op: str) -> None:
    body, lowest = SAME[op]
    body = body.replace("'", '"')
    newer = model(body, 22)
    found = _opset.lowest_opset(io.load(newer))
    assert found == max(lowest, 13 if "Constant" in body else 0)
    older = ort_run(model(body, found), X)["y"]
    np.testing.assert_allclose(older, ort_run(newer, X)["y"], atol=1e-6)  # kernels of a mean add in another order


@pytest.mark.parametrize("op", NEW)
def test_what_only_the_newer_version_has(op: str) -> None:
    body, lowest = NEW[op]
    assert _opset.lowest_opset(io.load(model(body.replace("'", '"'), 22))) == lowest
