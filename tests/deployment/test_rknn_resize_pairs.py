"""A Resize reads a pair of its own; the numbers stay, and RKNN-Toolkit2 takes a pyramid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.deployment.choice import compiler_of
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.workarounds.rknn_resize_pairs import RknnResizePairs
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto
from tests.passes.checks import check_pass, in_function, in_if, run_checked

RESIZE = 'Resize<mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">'
PYRAMID = f"""<ir_version: 8, opset_import: ["" : 13]>
    g (float[1,8,8,8] a, float[1,8,16,16] b, float[1,8,32,32] c) => (float[1,8,8,8] y) <
    float[4] up = {{1, 1, 2, 2}}, float[4] down = {{1, 1, 0.5, 0.5}}> {{
    d = {RESIZE}(a, , up) e = Add(b, d) f = {RESIZE}(e, , up) g = Add(c, f)
    h = {RESIZE}(g, , down) i = Add(e, h) j = {RESIZE}(i, , down) y = Add(a, j) }}"""


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {n: random.standard_normal((1, 8, s, s)).astype(np.float32) for n, s in (("a", 8), ("b", 16), ("c", 32))}


def quantized() -> onnx.ModelProto:
    made: onnx.ModelProto = onnxqat.insert_qdq(
        proto(PYRAMID), "rknn", data=feeds(), overrides=Overrides(exact=True)
    ).model
    return made


def test_a_resize_beside_another_reader_gets_a_pair() -> None:
    model = quantized()
    made = run_checked(RknnResizePairs(), model, atol=0).model
    read = {n.input[0] for n in made.graph.node if n.op_type == "Resize"}
    assert all(sum(name in n.input for n in made.graph.node) == 1 for name in read)
    assert len(made.graph.node) == len(model.graph.node) + 2 * 2  # those of a and e; g and i have one reader
    for wrap in (in_if, in_function):
        assert run_checked(RknnResizePairs(), wrap(model), atol=0).changed


def test_others_are_left_alone() -> None:
    for body in (
        f"r = {RESIZE}(d, , up) y = Relu(r)",
        f"e = Relu(d) r = {RESIZE}(e, , up) s = Relu(e) y = Concat<axis = 1>(r, r)",
    ):
        check_pass(
            RknnResizePairs(),
            f"""<ir_version: 8, opset_import: ["" : 13]>
            g (float[1,2,2,2] x) => (float[1,N,4,4] y) <float[4] up = {{1, 1, 2, 2}}, float k = {{0.5}}, uint8 z = {{128}}> {{
            q = QuantizeLinear(x, k, z) d = DequantizeLinear(q, k, z) {body} }}""",
            None,
        )


def test_the_toolkit_takes_a_pyramid(tmp_path: Path) -> None:
    compiler = compiler_of(schema.load("rknn"), [])
    if compiler is None or compiler.version() is None:
        pytest.skip("the compiler of rknn is not installed")
    report = handoff(quantized(), "rknn", tmp_path / "bundle", data=feeds(), limit=1, trace=False)
    assert report.passed  # halving by interpolation may be a step off, which adds up to two
