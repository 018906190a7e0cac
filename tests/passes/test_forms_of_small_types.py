"""Both forms of weights in float8 and in blocks of int4, and stripping them."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.passes.train_form import TrainForm
from tests.passes.checks import ort_run

SHAPES = {"w": (6, 20), "v": (20, 4)}


def float_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2,20] x) => (float[2,4] y) {'
        " t = Gemm<transB = 1>(x, w) r = Relu(t) u = MatMul(r, k) y = MatMul(u, v) }"
    )
    values = {name: rng.standard_normal(shape) for name, shape in (*SHAPES.items(), ("k", (6, 20)))}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(v.astype(np.float32), name) for name, v in values.items()
    )
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    ("backend", "dtype"), [("tensorrt-fp8", onnx.TensorProto.FLOAT8E4M3FN), ("tensorrt-int4", onnx.TensorProto.INT4)]
)
def test_there_and_back(backend: str, dtype: int) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((2, 20)).astype(np.float32)}
    train = insert_qdq(float_model(), backend, data=x).model
    deploy = DeployForm().run(train).model
    onnx.checker.check_model(deploy, full_check=True)
    stored = {t.name: t.data_type for t in deploy.graph.initializer}
    assert {stored[f"{name}_quantized"] for name in (*SHAPES, "k")} == {dtype}
    assert not set(SHAPES) & set(stored)
    expected = ort_run(train, x)
    for other in (deploy, TrainForm().run(deploy).model):
        for name, value in ort_run(other, x).items():
            np.testing.assert_array_equal(value, expected[name])
    again = DeployForm().run(TrainForm().run(deploy).model).model
    codes = [{t.name: t.raw_data for t in m.graph.initializer if t.data_type == dtype} for m in (deploy, again)]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("backend", ["tensorrt-fp8", "tensorrt-int4"])
def test_stripped(backend: str) -> None:
    model = float_model()
    x = {"x": np.random.default_rng(1).standard_normal((2, 20)).astype(np.float32)}
    stripped = StripQdq().run(insert_qdq(model, backend, data=x).model).model
    assert not qdq.is_quantized(io.load(stripped))
    np.testing.assert_allclose(ort_run(stripped, x)["y"], ort_run(model, x)["y"], rtol=1e-5, atol=1e-6)
