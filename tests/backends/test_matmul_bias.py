"""A product with a constant matrix and the bias that is added to it are one layer."""

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.insertion.insert import insert_qdq
from onnxqat.types import Derived
from tests.backends.planning import edges, plan, proto, reasons, weight
from tests.passes.checks import ort_run

BODY = "h = MatMul(x, w) s = Add(h, b) r = Relu(s) g = MatMul(r, v) y = Add(c, g)"
LAYERS = f"""g (float[N,T,4] x) => (float[N,T,4] y) <float[4,4] w = {weight(4, 4)}, float[4] b = {{1, 2, 3, 4}},
    float[4,4] v = {weight(4, 4)}, float[4] c = {{4, 3, 2, 1}}> {{ BODY }}"""
BOTH = [name for name in schema.names() if schema.load(name).placement == "both" and "MatMul" in schema.load(name).ops]


@pytest.mark.parametrize("backend", BOTH)
def test_no_pair_between_product_and_bias(backend: str) -> None:
    found = edges(plan(LAYERS.replace("BODY", BODY), backend))
    assert not {"h", "g"} & set(found)
    assert {"w", "v"} <= set(found)
    assert {"x", "x_rows"} & set(found)
    derives = schema.load(backend).types["bias"].derive is not None
    if schema.load(backend).matmul_bias == "gemm" and derives:
        assert isinstance(found["b"][0].decision, Derived)


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu"])
def test_a_sum_that_is_left_out_is_no_part_of_the_layer(backend: str) -> None:
    found = plan(LAYERS.replace("BODY", "h = MatMul(x, w) y = Add(h, b)"), backend, exclude=("y",))
    assert "excluded" in next(why for node, why in reasons(found).items() if "Add" in node)
    # OpenVINO adds in float in the kernel of the product: a pair between the two would only cost.
    assert {"x", "w", *(["h"] if backend == "onnxruntime-cpu" else [])} == set(edges(found)) - {"b"}


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu"])
def test_a_layer_that_is_left_out_is_left_out_as_a_whole(backend: str) -> None:
    found = plan(LAYERS.replace("BODY", "h = MatMul(x, w) y = Add(h, b)"), backend, exclude=("h",))
    assert set(edges(found)) == set()


def test_openvino_computes_the_layers_in_int8() -> None:
    openvino = pytest.importorskip("openvino")
    model = proto('<ir_version: 8, opset_import: ["" : 17]> ' + LAYERS.replace("BODY", BODY).replace("N,T", "3,5"))
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    quantized = insert_qdq(model, "openvino-cpu", data=[{"x": x}]).model
    assert isinstance(quantized, onnx.ModelProto)
    core = openvino.Core()
    made = core.compile_model(
        core.read_model(quantized.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    kinds = [node.get_rt_info() for node in made.get_runtime_model().get_ops()]
    layers = [kind for kind in kinds if str(kind["layerType"].astype(str)) == "FullyConnected"]
    assert [str(kind["runtimePrecision"].astype(str)) for kind in layers] == ["u8", "u8"]
    step = 0.02  # a code of the last activations that falls the other way moves a result by less
    np.testing.assert_allclose(made(x)[0], ort_run(quantized, {"x": x})["y"], atol=step)
