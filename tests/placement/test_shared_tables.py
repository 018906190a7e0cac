"""Tied embeddings: one table, quantized once, trained once, shipped once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxqat
from tests.backends.planning import edges, plan, proto, weight

TIED = f"""g (int64[N,T] ids) => (float[N,T,7] y) <float[7,4] e = {weight(7, 4)}, float[4,4] w = {weight(4, 4)}> {{
    x = Gather(e, ids) h = MatMul(x, w) r = Relu(h) t = Transpose <perm = [1, 0]> (e) y = MatMul(r, t) }}"""
HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
DATA = [{"ids": np.random.default_rng(0).integers(0, 7, (4, 5))}]


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "tensorrt", "tidl"])
def test_the_gather_reads_the_grid_of_the_layer(backend: str) -> None:
    found = edges(plan(TIED, backend))["e"]
    assert len(found) == 1
    assert {node for node, _ in found[0].consumers} == {"x_Gather", "y_MatMul"} or found[0].consumers is None


def test_an_excluded_gather_reads_float() -> None:
    (edge,) = edges(plan(TIED, "onnxruntime-cpu", exclude=("x",)))["e"]
    assert len(edge.consumers or ()) == 1


def test_one_constant_in_every_form(tmp_path: Path) -> None:
    model = proto(HEADER + TIED)
    quantized = onnxqat.insert_qdq(model, "onnxruntime-cpu", data=DATA, fast=True).model
    assert _matrices(quantized) == {"e": TensorProto.FLOAT, "w": TensorProto.FLOAT}
    module = onnxqat.to_torch(quantized)
    assert sum(tuple(p.shape) == (7, 4) for p in module.parameters()) == 1
    tuned = onnxqat.finetune(quantized, DATA, teacher=model, max_steps=2).model
    assert _matrices(tuned).keys() == {"e", "w"}
    onnxqat.handoff(tuned, "onnxruntime-cpu", tmp_path / "bundle", data=DATA)
    shipped = _matrices(onnx.load(tmp_path / "bundle" / "model.onnx"))
    assert {name: kind for name, kind in shipped.items() if "scale" not in name} == {
        "e_quantized": TensorProto.INT8,
        "w_quantized": TensorProto.INT8,
    }


def _matrices(model: onnx.ModelProto) -> dict[str, int]:
    return {i.name: i.data_type for i in model.graph.initializer if len(i.dims) == 2}
