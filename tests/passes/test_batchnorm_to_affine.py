"""batchnorm-to-affine: what no layer took becomes Mul and Add."""

import pytest

from onnxqat.graph import io
from onnxqat.passes._base import run_passes
from onnxqat.passes.batchnorm_to_affine import BatchnormToAffine
from onnxqat.passes.close_initializers import CloseInitializers
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.passes.lift_constants import LiftConstants
from tests.passes.checks import check_pass, compare_outputs, parse

BN = "<float[2] g = {2, -1}, float[2] b = {1, 2}, float[2] m = {0.5, 0}, float[2] v = {3.99999, 0.99999}>"


def test_batchnorm_becomes_mul_and_add() -> None:
    check_pass(
        BatchnormToAffine(),
        f"g (float[N,2,3] x) => (float[N,2,3] y) {BN} {{ t = Relu(x) y = BatchNormalization(t, g, b, m, v) }}",
        """g (float[N,2,3] x) => (float[N,2,3] y) <float[1,2,1] y_factor = {1, -1}, float[1,2,1] y_offset = {0.5, 2}> {
        t = Relu(x) y_scaled = Mul(t, y_factor) y = Add(y_scaled, y_offset) }""",
        atol=1e-6,
        inside_function="left",
    )


def test_old_statistics_outputs_are_dropped() -> None:
    text = f"""<ir_version: 4, opset_import: ["" : 9]>
        g (float[N,2,3] x) => (float[N,2,3] y) {BN} {{ y, a, c, d, e = BatchNormalization(x, g, b, m, v) }}"""
    result = BatchnormToAffine().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Mul", "Add"]


@pytest.mark.parametrize(
    "text",
    [
        f"g (float[N,2,3] x) => (float[N,2,3] y) {BN} {{ y, r, s = BatchNormalization <training_mode = 1> (x, g, b, m, v) }}",
        f"g (float[N,2,3] x, float[2] z) => (float[N,2,3] y) {BN} {{ y = BatchNormalization(x, z, b, m, v) }}",
    ],
    ids=["training", "computed"],
)
def test_left_alone(text: str) -> None:
    check_pass(BatchnormToAffine(), text, None, inside_function="skip", inside_if="skip")


def test_real_model(shared) -> None:
    model = run_passes(
        shared / "data" / "models" / "light_densenet121.onnx", [CloseInitializers(), LiftConstants(), FoldBatchnorm()]
    ).model
    result = BatchnormToAffine().run(model)
    assert not any(n.op_type == "BatchNormalization" for n in result.model.graph)
    compare_outputs(io.to_proto(model), io.to_proto(result.model), 1e-5, size=1)
