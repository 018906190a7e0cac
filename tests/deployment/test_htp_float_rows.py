"""Float linear layers on rows are a MatMul and an Add of all axes in what QNN reads, with the same numbers."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

from onnxqat.deployment.compilers.onnxruntime_qnn import Compiler
from onnxqat.deployment.workarounds.htp_float_rows import HtpFloatRows
from tests.backends.planning import proto, weight
from tests.passes.checks import check_pass, in_function, in_if, run_checked

HEAD = f"""g (float[1,5,4] x) => (float[5,1,6] y) <float[4,6] w = {weight(4, 6)}, float[6] b = {weight(6)},
    float s = {{0.05}}, uint8 z = {{128}}, int64[2] rows = {{-1, 4}}, int64[2] columns = {{4, -1}},
    float[1,6] k = {weight(1, 6)}, float[4,4] m = {weight(4, 4)}, float[4] n = {weight(4)}, int64[3] all = {{-1, 1, 6}}> {{ BODY
    q = QuantizeLinear(t, s, z) y = DequantizeLinear(q, s, z) }}"""
BODIES = {
    "Gemm between Reshapes": "r = Reshape(x, rows) h = Gemm(r, w, b) t = Reshape(h, all)",
    "Gemm without a bias": "r = Reshape(x, rows) h = Gemm(r, w) t = Reshape(h, all)",
    "MatMul and Add": "p = MatMul(x, w) h = Add(p, b) t = Reshape(h, all)",
    "Add with the bias in front": "p = MatMul(x, w) h = Add(b, p) t = Reshape(h, all)",
}
FLOAT = 1e-6
"""Sums of four products in another order."""


def model(body: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(proto(HEAD.replace("BODY", body)))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_bias_has_all_axes(body: str) -> None:
    made = run_checked(HtpFloatRows(), model(body), atol=FLOAT).model
    for wrap in (in_if, in_function):
        run_checked(HtpFloatRows(), wrap(model(body)), atol=FLOAT)
    kinds = [node.op_type for node in made.graph.node]
    assert "Gemm" not in kinds
    held = {t.name: tuple(t.dims) for t in made.graph.initializer}
    (product,) = (n for n in made.graph.node if n.op_type == "MatMul")
    assert product.input[0] == "x"
    for node in made.graph.node:
        if node.op_type == "Add":
            assert held[next(name for name in node.input if name in held)] == (1, 1, 6)
    assert kinds.count("Add") == (body != BODIES["Gemm without a bias"])


ALONE = {
    "reads a pair": "c = QuantizeLinear(x, s, z) d = DequantizeLinear(c, s, z) r = Reshape(d, rows) h = Gemm(r, w, b)",
    "product of a pair": "c = QuantizeLinear(x, s, z) d = DequantizeLinear(c, s, z) p = MatMul(d, w) h = Add(p, b)",
    "alpha": "r = Reshape(x, rows) h = Gemm <alpha = 2.0> (r, w, b)",
    "beta": "r = Reshape(x, rows) h = Gemm <beta = 2.0> (r, w, b)",
    "transB": "r = Reshape(x, rows) g = Gemm <transB = 1> (r, m, n) h = MatMul(g, w)",
    "transA": "r = Reshape(x, columns) h = Gemm <transA = 1> (r, w, b)",
    "computed bias": "r = Reshape(x, rows) c = Abs(k) h = Gemm(r, w, c)",
    "bias of two axes": "r = Reshape(x, rows) h = Gemm(r, w, k)",
    "sum with two axes": "p = MatMul(x, w) h = Add(p, k)",
    "sum with a computed bias": "p = MatMul(x, w) c = Abs(b) h = Add(p, c)",
    "other axes": "v = Transpose <perm = [0, 2, 1]> (x) r = Reshape(v, rows) h = Gemm(r, w, b)",
    "rows already": "v = Reshape(x, rows) r = Reshape(v, rows) h = Gemm(r, w, b)",
    "double": "v = Cast <to = 11> (x) u = Cast <to = 11> (w) r = Reshape(v, rows) g = Gemm(r, u) h = Cast <to = 1> (g)",
}


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_others_are_left_alone(body: str) -> None:
    check_pass(HtpFloatRows(), model(f"{body} t = Reshape(h, all)"), None)


def test_unknown_sizes_are_left_alone() -> None:
    given = model(BODIES["Gemm between Reshapes"])
    for value, axis in ((given.graph.input[0], 1), (given.graph.output[0], 0)):
        value.type.tensor_type.shape.dim[axis].dim_param = "N"
    del given.graph.value_info[:]
    check_pass(HtpFloatRows(), onnx.shape_inference.infer_shapes(given), None)


@pytest.mark.skipif(Compiler().version() is None, reason="needs the environment of onnxruntime-qnn")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_qnn_takes_it(body: str, tmp_path: os.PathLike[str]) -> None:
    from pathlib import Path

    from onnxqat.deployment.run.process import compile_in_process

    path = Path(tmp_path) / "m.onnx"
    onnx.save(model(body), path)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 5, 4)).astype(np.float32)}
    (found,) = compile_in_process(Compiler(), path, [feeds], timeout=300).outputs
    assert found["y"].shape == (5, 1, 6)
