"""Weights alone, in blocks: placed without data, rounded with some, trained, validated and handed off."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

import onnxqat
from onnxqat.errors import UsageError
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 96] x) => (float[N, 10] y) {
        a = Gemm <transB = 1> (x, w1, b1)
        r = Relu (a)
        m = MatMul (r, w2)
        y = Add (m, b2)
    }"""
SHAPES = {"w1": (48, 96), "b1": (48,), "w2": (48, 10), "b2": (10,)}


def network() -> onnx.ModelProto:
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        model.graph.initializer.append(
            numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
        )
    return model


def samples(count: int, seed: int) -> dict[str, np.ndarray]:
    """Inputs of eight factors, so that the error of one weight can be made up for by others."""
    mixing = np.random.default_rng(9).standard_normal((8, 96))
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((count, 8)) @ mixing + 0.3 * rng.standard_normal((count, 96))
    return {"x": mixed.astype(np.float32)}


def made(**options: Any) -> onnx.ModelProto:
    choices = {name: options.pop(name) for name in ("weight_only", "block_size") if name in options}
    backend = options.pop("backend", "onnxruntime-cpu")
    result: onnx.ModelProto = onnxqat.insert_qdq(
        network(), backend, overrides=Overrides(**choices), guard=False, **options
    ).model
    return result


def error(model: onnx.ModelProto, seed: int = 5) -> float:
    feeds = samples(64, seed)
    wanted = ort_run(network(), feeds)["y"]
    return float(np.square(ort_run(model, feeds)["y"] - wanted).mean() / np.square(wanted).mean())


def test_a_block_that_is_not_full_stays_float_where_the_compiler_refuses_it() -> None:
    names = {b: {t.name for t in made(backend=b).graph.initializer} for b in ("onnxruntime-int4", "openvino-int4")}
    assert {"w1_scale", "w2_scale"} <= names["onnxruntime-int4"], "48 rows are a block and a half"
    assert "w1_scale" in names["openvino-int4"]
    assert "w2_scale" not in names["openvino-int4"]


@pytest.mark.parametrize(("kind", "block"), [("int4", 32), ("uint4", 16), ("int8", 128), ("uint8", 0), ("int4", 0)])
def test_types_and_blocks(kind: str, block: int) -> None:
    model = made(weight_only=kind, block_size=block)
    onnx.checker.check_model(model, full_check=True)
    found = qdq.quantizers(io.load(model), every=True)
    assert [q.tensor for q in found] == ["w1", "w2"]
    for q, summed in zip(found, (1, 0), strict=True):
        assert q.qparams.qtype.storage == kind
        assert (q.qparams.axis, q.qparams.block_size) == ((summed, block) if block else (1 - summed, None))
        assert bool(q.qparams.zero_point.any()) == kind.startswith("u")
    assert error(model) < (0.03 if kind.endswith("4") else 1e-4)


def test_smaller_blocks_and_rounding_on_data_have_less_error() -> None:
    data = samples(128, 1)
    errors = {
        (block, name): error(made(weight_only="int4", block_size=block, rounding=name, data=data))
        for block in (96, 16)
        for name in ("nearest", "gptq")
    }
    assert errors[16, "nearest"] < errors[96, "nearest"]
    for block in (16, 96):
        assert errors[block, "gptq"] < 0.5 * errors[block, "nearest"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "tidl", "weight_only": "int4"}, "no table of weights alone"),
        ({"backend": "tensorrt", "weight_only": "int8"}, "does not compile weights of type int8"),
        ({"weight_only": "int3"}, "no weight type 'int3'"),
        ({"weight_only": "int4", "block_size": 1}, "a block of 1"),
    ],
)
def test_what_a_runtime_has_not_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        made(**options)
    assert caught.value.code == "option-invalid"
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["int4", "uint8"])
def test_the_bundle_has_packed_weights_and_the_numbers_of_the_file(kind: str, tmp_path: Path) -> None:
    data, model = samples(16, 1), made(weight_only=kind)
    report = onnxqat.handoff(model, "onnxruntime-int4", tmp_path / "bundle", data=data, float_model=network())
    assert not report.failures
    packed = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert [n.op_type for n in packed.graph.node] == ["MatMulNBits", "Relu", "MatMulNBits", "Add"]
    weights = [i for i in packed.graph.initializer if i.data_type == TensorProto.UINT8 and len(i.dims) == 3]
    bits = int(kind[-1])
    assert sum(len(w.raw_data) for w in weights) == (48 * 96 + 10 * 64) * bits // 8  # 48 inputs fill two blocks of 32
    wide = ort_run(model, data)["y"]
    # float32 sums in another order
    np.testing.assert_allclose(ort_run(packed, data)["y"], wide, rtol=0, atol=1e-5 * np.abs(wide).max())


def test_training_and_validating_such_a_file(tmp_path: Path) -> None:
    import torch

    data = samples(128, 1)
    model = made(weight_only="int4")
    module = onnxqat.to_torch(model).train()
    feeds, wanted = torch.from_numpy(data["x"]), torch.from_numpy(ort_run(network(), data)["y"])
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-4)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(feeds), wanted).backward()
        optimizer.step()
    tuned = onnxqat.write_back(module, model)
    assert error(tuned) < 0.7 * error(model)
    assert [q.qparams.block_size for q in qdq.quantizers(io.load(tuned), every=True)] == [32, 32]
    with torch.no_grad():
        np.testing.assert_allclose(module.eval()(feeds).numpy(), ort_run(tuned, data)["y"], rtol=0, atol=1e-4)
    report = onnxqat.validate(network(), tuned, data=data)
    assert {verdict.name: verdict.status for verdict in report.verdicts}["parity"] == "green"
