"""close-initializers: constants are no graph inputs."""

from onnxqat.passes.close_initializers import CloseInitializers
from tests.passes.checks import check_pass

OPEN = """<ir_version: 3, opset_import: ["" : 9]>
g (float[N,2] x, float[2] w, float[N,2] z) => (float[N,2] y) <float[2] w = {1, 2}> { t = Mul(x, w) y = Add(t, z) }"""
CLOSED = """<ir_version: 4, opset_import: ["" : 9]>
g (float[N,2] x, float[N,2] z) => (float[N,2] y) <float[2] w = {1, 2}> { t = Mul(x, w) y = Add(t, z) }"""


def test_initializers_are_closed_and_inputs_keep_their_order() -> None:
    result = check_pass(CloseInitializers(), OPEN, CLOSED, inside_if="skip", inside_function="skip")
    assert result.model.ir_version == 4
    assert any("w" in r.nodes for r in result.remarks)


def test_closed_model_is_left_alone() -> None:
    check_pass(CloseInitializers(), CLOSED, None)


def test_real_model(shared) -> None:
    result = CloseInitializers().run(shared / "data" / "models" / "light_squeezenet.onnx")
    assert [v.name for v in result.model.graph.inputs] == ["data_0"]
    assert len(result.model.graph.initializers) == 52
