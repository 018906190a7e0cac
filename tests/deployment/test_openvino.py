"""OpenVINO's CPU plugin: shapes, threads, the kernel of a node, and its errors in words about the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.deployment import base_compiler, openvino_refusals
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import CheckError
from onnxqat.runtime.session import Session
from tests.backends.planning import proto, weight

LAYER = f"""g (float[N,8,4] x) => (float[N,8,4] y) <float[4,4] w = {weight(4, 4)}, float[4] b = {{1, 2, 3, 4}}, float s = {{0.02}},
    uint8 z = {{120}}, float[4] t = {{0.01, 0.02, 0.01, 0.02}}, int8[4] o = {{0, 0, 0, 0}}> {{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    v = QuantizeLinear<axis = 1>(w, t, o) u = DequantizeLinear<axis = 1>(v, t, o) h = MatMul(d, u) y = Add(h, b) }}"""
PLACES = f"""g (float[1,8,4] x) => (float[1,8,4] y) <float[8,4] places = {weight(8, 4)}, float s = {{0.02}}, uint8 z = {{120}}> {{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    p = QuantizeLinear(places, s, z) e = DequantizeLinear(p, s, z) y = Add(d, e) }}"""
HEADER = '<ir_version: 8, opset_import: ["" : 17]> '


def saved(text: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    model = proto(HEADER + text)
    for node in model.graph.node:
        node.name = f"the_{node.output[0]}"
    onnx.save(model, path)
    return path


def sample(size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(size).normal(size=(size, 8, 4)).astype(np.float32)}


def test_shapes_and_threads_are_reported(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    path = saved(LAYER, tmp_path)
    compiler = base_compiler.load("openvino-cpu")
    compiler.threads = 1
    artefacts = tmp_path / "artefacts"
    artefacts.mkdir()
    found = compile_in_process(compiler, path, [sample(1), sample(1)], artefacts=artefacts)
    assert found.settings == {"shapes": "static", "threads": "1"}
    assert openvino.Core().read_model(str(artefacts / found.files[0])).is_dynamic()  # the IR has the file's shapes
    mixed = compiler.compile_and_run(path, [sample(1), sample(2)])
    assert mixed.settings["shapes"] == "dynamic"
    assert [run["y"].shape[0] for run in mixed.outputs] == [1, 2]


def test_node_is_named_by_the_kernel_that_computes(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    result = base_compiler.load("openvino-cpu").compile_and_run(saved(LAYER, tmp_path), [sample(1)])
    nodes = {node.name: node for node in result.nodes}
    assert nodes["the_h"].detail.startswith("FullyConnected")
    assert "Transpose" not in nodes["the_h"].detail
    assert nodes["the_h"].kind == nodes["the_y"].kind == "integer"
    assert nodes["the_h"].detail.endswith("to f32")


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_an_extreme_is_taken_of_codes(op: str, tmp_path: Path) -> None:
    """In float, with the quantization behind it in one kernel, OpenVINO 2026.4 is a third of the range off."""
    text = f"g (float[1,8,4] x) => (float[1,8,5] y) <float[1,5] w = {weight(1, 5)}> {{ s = Sigmoid(x) m = {op}<axes = [2]>(s) y = MatMul(m, w) }}"
    model = onnxqat.insert_qdq(proto(HEADER + text), "openvino-cpu", data=sample(16)).model
    (pair,) = (n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] != "w")
    assert pair.input[0] == "s"
    pytest.importorskip("openvino")
    onnx.save(model, tmp_path / "model.onnx")
    found = base_compiler.load("openvino-cpu").compile_and_run(tmp_path / "model.onnx", [sample(1)])
    wanted = Session(ir.from_proto(model), optimize=False).run(sample(1))["y"]
    np.testing.assert_allclose(found.outputs[0]["y"], wanted, atol=1e-4 * np.abs(wanted).max())


def test_a_pair_on_an_added_constant_is_named(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(CheckError) as refused:
        compile_in_process(base_compiler.load("openvino-cpu"), saved(PLACES, tmp_path), [sample(1)])
    assert "node 'the_y' (Add)" in refused.value.message
    assert "'places'" in refused.value.message
    assert "insert-qdq --replace" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "graph_rewrite.cpp:298: [MatMulTransformation] END: node: opset1::MatMul y/WithoutBiases (a[0]:f32[1]) -> (f32[1])"
            " CALLBACK HAS THROWN: Check 'x' failed",
            ("node 'the_y' (Add): OpenVINO's MatMulTransformation threw", "--exclude 'the_y'"),
        ),
        (
            "OpenVINO does not support the following ONNX operations: com.acme.Add\n",
            ("OpenVINO has no Add: node 'the_y'", "onnxqat cut"),
        ),
        ("anything  else", ("anything else", "")),
    ],
)
def test_errors_are_translated(text: str, parts: tuple[str, str], tmp_path: Path) -> None:
    model = onnx.load(saved(LAYER, tmp_path))
    error = openvino_refusals.translated(text, model)
    assert error.code == "handoff-failed"
    assert parts[0] in error.message
    assert parts[1] in error.hint


@pytest.mark.parametrize("operands", ["h, d", "d, h"])
def test_a_generated_sum_is_float_whichever_operand_is_codes(operands: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    rows = LAYER.replace("float[N,8,4]", "float[1,8,4]")
    text = rows.replace(
        "y = Add(h, b) }",
        f"k = Softmax(h) m = Add({operands.replace('h', 'k')}) e = QuantizeLinear(m, s, z)"
        " y = DequantizeLinear(e, s, z) }",
    )
    result = base_compiler.load("openvino-cpu").compile_and_run(saved(text, tmp_path), [sample(1)])
    (found,) = (node for node in result.nodes if node.name == "the_m")
    assert found.detail.startswith(("Subgraph", "Eltwise"))
    assert found.kind == "float"
