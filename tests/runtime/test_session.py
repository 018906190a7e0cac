"""A session changes nothing of the model that it is given, whatever it has to change for onnxruntime."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.runtime.session import Session

SHARED = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float[1,2] y)
<int8[2,2] w = {1, -2, 3, 4}, float s = {0.5}, int8 z = {0}, uint8 u = {0}> {
    q = QuantizeLinear(x, s, u) d = DequantizeLinear(q, s, u) v = DequantizeLinear(w, s, z)
    a = MatMul(d, v) b = MatMul(d, v) y = Add(a, b) }"""
REPEATED = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float[1,2] y) {
    [same] a = Neg(x) [same] b = Clip(a, , ) y = Abs(b) }"""


@pytest.mark.parametrize("text", [SHARED, REPEATED])
@pytest.mark.parametrize("options", [{}, {"precise": True}, {"tensors": ["a"]}], ids=str)
def test_the_model_stays_as_it_is(text: str, options: dict[str, object]) -> None:
    model = ir.from_proto(onnx.parser.parse_model(text))
    before = ir.to_proto(model).SerializeToString()
    session = Session(model, optimize=True, **options)  # type: ignore[arg-type]
    assert session.run({"x": np.array([[1, -2]], np.float32)})["y"].shape == (1, 2)
    assert ir.to_proto(model).SerializeToString() == before


def test_names_and_inputs_that_onnxruntime_misreads_are_mended() -> None:
    """It refuses the repeated name, with outputs of its own and without."""
    found = Session(ir.from_proto(onnx.parser.parse_model(REPEATED)), optimize=False)
    assert found.run({"x": np.array([[1, -2]], np.float32)})["y"].tolist() == [[1, 2]]
