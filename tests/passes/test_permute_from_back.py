"""permute-from-back: a permutation of channels names its axis from the back, which OpenVINO computes right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.permute_from_back import PermuteFromBack
from onnxqat.runtime.session import Session
from tests.backends.planning import proto, weight
from tests.passes.checks import check_pass

GATHER = "g (float[1,3,4,4] x) => (float[1,C,4,4] y) <int64[%d] i = {%s}> { y = Gather<axis = %d>(x, i) }"


@pytest.mark.parametrize("order", ["2, 0, 1", "-1, 0, 1"])
def test_a_permutation_is_counted_from_the_back(order: str) -> None:
    check_pass(PermuteFromBack(), GATHER % (3, order, 1), GATHER % (3, order, -3), inside_function="skip")


@pytest.mark.parametrize(
    ("order", "axis"),
    [("2, 1, 0", 1), ("0, 1, 2", 1), ("2, 0", 1), ("0, 0, 1", 1), ("0, 1, 2, 0", 1), ("2, 0, 1, 3", 2)],
    ids=["its own inverse", "identity", "some channels", "one twice", "one more", "another axis"],
)
def test_others_are_left_alone(order: str, axis: int) -> None:
    check_pass(PermuteFromBack(), GATHER % (len(order.split(",")), order, axis), None)


def test_openvino_computes_the_file(tmp_path: Path) -> None:
    """Fails without the pass: OpenVINO 2026.4 reorders the weight by the inverse of what the file says."""
    openvino = pytest.importorskip("openvino")
    model = proto(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,6,6] x) => (float[1,2,4,4] y)
        <int64[4] i = {{3, 1, 0, 2}}, float[2,4,3,3] w = {weight(2, 4, 3, 3)}> {{
        b = Gather<axis = 1>(x, i) y = Conv(b, w) }}"""
    )
    x = np.random.default_rng(0).normal(size=(4, 4, 6, 6)).astype(np.float32)
    quantized = insert_qdq(model, backend="openvino-cpu", data={"x": x}).model
    path = tmp_path / "model.onnx"
    onnx.save(quantized, path)
    expected = Session(ir.from_proto(quantized), optimize=False).run({"x": x[:1]})["y"]
    found = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x[:1])[0]
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
