"""Proofs about widths: what the file holds, what data add, and the hashes of both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.calibration import accumulators
from onnxqat.cli import main
from onnxqat.graph import io, notes
from onnxqat.placement.table_overrides import Overrides
from onnxqat.report import build_proof, terminal
from onnxqat.validation import layer_proofs
from tests.bridge.integer import networks

ATTENTION = """
<ir_version: 8, opset_import: ["" : 17]>
attention (float[N, T, 8] q, float[N, 8, T] k) => (float[N, T, T] y) { y = MatMul (q, k) }"""
OPEN = """
<ir_version: 8, opset_import: ["" : 17]>
rows (float[N, 4, T] a, float[N, T, 4] b) => (float[N, 4, 4] y) { y = MatMul (a, b) }"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prove")
    onnx.save(networks.kinds(), folder / "float.onnx")
    onnx.save(networks.quantized(networks.kinds(), networks.images()), folder / "model.qdq.onnx")
    np.savez(folder / "data.npz", x=networks.images(16, 2))
    return folder


def test_bounds_hold_and_data_tighten(files: Path) -> None:
    proof = onnxqat.prove(files / "model.qdq.onnx", files / "data.npz", float_model=files / "float.onnx")
    assert [layer.proof.operator for layer in proof.layers] == ["Conv", "Conv", "Conv", "Gemm"]
    for layer in proof.layers:
        found, seen = layer.proof, layer.measured
        assert seen is not None
        assert found.bits is not None
        assert seen.bits_in_range is not None
        assert seen.bits <= seen.bits_in_range <= found.bits
        assert -(2 ** (found.bits - 1)) <= found.low <= -seen.largest or found.high >= seen.largest  # type: ignore[operator]
        assert found.shifts is not None or found.operator == "Gemm"
    assert proof.bits == max(layer.proof.bits or 0 for layer in proof.layers)
    assert {s.tensor for s in proof.saturation} >= {"first", "second"}
    assert next(s.at_ends for s in proof.saturation if s.tensor == "first") > 0
    assert [(p.operator, p.products) for p in proof.pools] == [("AveragePool", 4), ("GlobalAveragePool", 42)]
    text = terminal.to_text(build_proof.from_proof(proof))
    assert "Widths of sums" in text


def test_sums_beyond_a_width_are_counted(files: Path) -> None:
    proof = onnxqat.prove(files / "model.qdq.onnx", files / "data.npz")
    seen = {layer.proof.node: layer.measured for layer in proof.layers}
    for layer in proof.layers:
        held = seen[layer.proof.node]
        assert held is not None
        assert (held.beyond[16] > 0) == (held.bits > 16)
        assert held.beyond[32] == 0
        assert held.sums > held.beyond[16]
    assert any(held is not None and held.beyond[16] for held in seen.values())


def test_the_command_writes_hashes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("float.onnx", "model.qdq.onnx", "--data", "data.npz", "--prove", "proof.json")
    arguments = [name if name.startswith("--") else str(files / name) for name in names]
    assert main.run(["validate", *arguments]) == 0
    text = capsys.readouterr().out
    assert "Widths of sums" in text
    assert "proof.json" in text
    written = json.loads((files / "proof.json").read_text(encoding="utf-8"))
    for key, name in (("float_model", "float.onnx"), ("file", "model.qdq.onnx")):
        assert written[key] == {"name": name, "sha256": hashlib.sha256((files / name).read_bytes()).hexdigest()}
    assert written["data"]["sha256"]
    assert written["versions"]["onnx"] == onnx.__version__
    assert len(written["layers"]) == 4


def test_a_width_that_the_file_states_is_held_against_it(files: Path) -> None:
    model = onnx.load(files / "model.qdq.onnx")
    bits = onnxqat.prove(model, random_data=True).bits
    assert bits is not None
    onnx.helper.set_model_props(model, {notes.ACCUMULATOR_BITS: str(bits)})
    assert onnxqat.prove(model).failures == ()
    onnx.helper.set_model_props(model, {notes.ACCUMULATOR_BITS: str(bits - 1)})
    narrow = onnxqat.prove(model)
    assert narrow.samples == 0
    assert any(f"takes {bits} bits of {bits - 1}" in failure for failure in narrow.failures)
    assert build_proof.from_proof(narrow).passed is False


def test_products_of_two_inputs() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 8, 8)).astype(np.float32) for _ in range(2)]
    known = onnxqat.insert_qdq(onnx.parser.parse_model(ATTENTION), data=[dict(zip("qk", arrays, strict=True))])
    (layer,) = onnxqat.prove(known.model).layers
    assert layer.proof.products == 8
    grids = [
        accumulators.steps_of(q)
        for layer, _ in layer_proofs.layers(io.load(known.model))
        for q in (layer.input, layer.weight)
    ]
    corners = [8 * int(a) * int(b) for a in grids[0] for b in grids[1]]
    assert (layer.proof.low, layer.proof.high) == (min(corners), max(corners))
    feeds = {"a": arrays[0][:, :4], "b": arrays[1][:, :, :4]}
    opened = onnxqat.insert_qdq(onnx.parser.parse_model(OPEN), data=[feeds])
    proof = onnxqat.prove(opened.model)
    assert proof.layers[0].proof.bits is None
    longest = proof.layers[0].proof.longest
    assert longest is not None
    assert longest * 255 * 255 >= 2**31 - 1 - 255 * 255
    assert proof.bits is None
    assert "a length is open" in str(proof)


def test_stages_of_integer_functions() -> None:
    text = """
<ir_version: 8, opset_import: ["" : 18]>
rows (float[N, 16] x) => (float[N, 16] y) { y = Softmax <axis = -1> (x) }"""
    x = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32) * 3
    made = onnxqat.insert_qdq(
        onnx.parser.parse_model(text),
        data=[{"x": x}],
        overrides=Overrides(integer="softmax"),
    )
    (call,) = onnxqat.prove(made.model, {"x": x}).functions
    assert call.function == "Softmax_uint8_uint8"
    assert call.bits == max(stage.bits for stage in call.stages) <= 32
    assert "exp_shift" in call.shifts
