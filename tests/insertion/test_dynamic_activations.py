"""--activations dynamic: scales of activations follow from each tensor when the model runs."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import onnxqat
from onnxqat.errors import UsageError
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto

ROWS = np.random.default_rng(0).standard_normal((2, 16, 32)).astype(np.float32)
DYNAMIC = Overrides(activations="dynamic")


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,T,16] x) => (float[N,T,8] y) {
        h = MatMul(x, w) s = Add(h, b) r = Relu(s) q = MatMul(x, v) m = Mul(r, q) y = MatMul(m, u) }"""
    made = onnx.parser.parse_model(text)
    shapes = {"w": (16, 32), "b": (32,), "v": (16, 32), "u": (32, 8)}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(2).standard_normal((4, 5, 16)).astype(np.float32)}


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnxqat.insert_qdq(model, "onnxruntime-cpu", overrides=DYNAMIC).model
    assert isinstance(made, onnx.ModelProto)
    return made


def test_no_data_is_needed_and_one_pair_serves_all_products_of_a_tensor(model: onnx.ModelProto) -> None:
    kinds = [node.op_type for node in quantized(model).graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 2  # of x and m
    assert kinds.count("QuantizeLinear") == 3  # of the weights


def test_onnxruntime_computes_the_products_on_codes(model: onnx.ModelProto, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    result = onnxqat.handoff(quantized(model), "onnxruntime-dynamic", tmp_path / "bundle", data=[feeds()])
    assert result.passed
    session = onnxruntime.InferenceSession(
        str(tmp_path / "bundle" / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    kinds = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    assert kinds.count("DynamicQuantizeMatMul") + kinds.count("MatMulIntegerToFloat") == 3
    (found,) = session.run(None, feeds())
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds())
    assert 10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()) > 25


def test_gradients_pass_through_the_dynamic_quantizer(model: onnx.ModelProto) -> None:
    module = onnxqat.to_torch(quantized(model))
    x = torch.from_numpy(feeds()["x"]).requires_grad_()
    module(x).square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad != 0).any())
    assert all(bool((p.grad != 0).any()) for name, p in module.named_parameters() if name in ("w", "b", "v", "u"))


def test_torch_computes_what_onnxruntime_does(model: onnx.ModelProto) -> None:
    made = quantized(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, feeds())
    found = onnxqat.to_torch(made).eval()(torch.from_numpy(feeds()["x"])).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_trained_weights_are_written_back(model: onnx.ModelProto) -> None:
    made = quantized(model)
    module = onnxqat.to_torch(made).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    module(torch.from_numpy(feeds()["x"])).square().mean().backward()
    optimizer.step()
    tuned = onnxqat.write_back(module, made)
    assert isinstance(tuned, onnx.ModelProto)
    pairs = zip(made.graph.initializer, tuned.graph.initializer, strict=True)
    assert {"w", "v", "u", "b"} <= {a.name for a, b in pairs if a.SerializeToString() != b.SerializeToString()}
    assert [n.op_type for n in tuned.graph.node] == [n.op_type for n in made.graph.node]


@pytest.mark.parametrize("backend", ["openvino-cpu", "tensorrt", "qnn-htp"])
def test_other_targets_have_none(model: onnx.ModelProto, backend: str) -> None:
    with pytest.raises(UsageError, match="has no table"):
        onnxqat.insert_qdq(model, backend, overrides=DYNAMIC)


def test_files_of_onnxruntimes_dynamic_quantizer_are_refused_still() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (int32[2,2] y) <int8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        q, s, z = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, z) }"""
    with pytest.raises(onnxqat.errors.ModelError, match="dynamically"):
        onnxqat.finetune(proto(text), [{"x": np.zeros((2, 4), np.float32)}])


def test_what_only_moves_values_is_not_left_in_float() -> None:
    model = proto(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4,4] x) => (float[N,4,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
        ["turn"] t = Transpose<perm = [0,2,1]>(x) p = MatMul(t, w) ["back"] y = Transpose<perm = [0,2,1]>(p) }"""
    )
    assert onnxqat.insert_qdq(model, "onnxruntime-cpu", overrides=DYNAMIC).plan.float_nodes == ()
