"""Each quantizer alone and all together, against sums written out in numpy."""

import csv
import dataclasses
import io as streams
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.cli import main
from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.metrics._closeness import Closeness
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.report import build_profile
from onnxqat.report import json as as_json
from onnxqat.validation.profile import ProfileReport
from tests.backends.planning import proto, weight
from tests.bridge import parity
from tests.validation import tiny

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,3] y) <float[4,5] w = {weight(4, 5)}, float[5,3] v = {weight(5, 3)}> {{
    ["first"] p = MatMul(x, w) ["act"] a = Relu(p) ["second"] y = MatMul(a, v) }}"""


def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    onnx.save(proto(TEXT), folder / "model.onnx")
    np.savez(folder / "data.npz", x=data())
    onnxqat.insert_qdq(
        folder / "model.onnx", "tensorrt", calibration={"x": data()}, overrides=onnxqat_overrides(weight_bits=4)
    )
    return folder


def onnxqat_overrides(**options):
    from onnxqat.placement.table_overrides import Overrides

    return Overrides(**options)


@pytest.fixture(scope="module")
def report(files) -> ProfileReport:
    return onnxqat.profile(files / "model.onnx", files / "model.qdq.onnx", {"x": data()}, batch_size=5)


def decibel(value: np.ndarray, reference: np.ndarray) -> float:
    value, reference = value.astype(np.float64), reference.astype(np.float64)
    return 10 * math.log10(np.square(reference).sum() / np.square(value - reference).sum())


def test_the_costliest_comes_first(report: ProfileReport) -> None:
    assert [layer.alone_db for layer in report.layers] == sorted(layer.alone_db for layer in report.layers)
    assert report.layers[0].role == "weight"  # 4 bits against 8
    assert report.samples == 12
    assert {(layer.tensor, layer.node) for layer in report.layers} == {
        ("x", "first"),
        ("w", "first"),
        ("a", "second"),
        ("v", "second"),
    }


def test_alone_is_the_file_with_one_pair(report: ProfileReport, files) -> None:
    """A second way to the same number: a file in which only that tensor has a pair, in onnxruntime."""
    quantized = onnx.load(files / "model.qdq.onnx")
    floating = StripQdq().run(quantized).model
    layer = next(layer for layer in report.layers if layer.tensor == "v")
    pair = [n for n in quantized.graph.node if n.output[0].startswith("v_")]
    constants = {name for n in pair for name in n.input} - {"v"}
    floating.graph.initializer.extend(t for t in quantized.graph.initializer if t.name in constants)
    nodes = [*pair, *floating.graph.node]
    second = next(n for n in nodes if n.name == "second")
    second.input[1] = next(n.output[0] for n in pair if n.op_type == "DequantizeLinear")
    del floating.graph.node[:]
    floating.graph.node.extend(nodes)
    with_pair = parity.session(floating).run(None, {"x": data()})[0]
    without = parity.session(onnx.load(files / "model.onnx")).run(None, {"x": data()})[0]
    assert layer.alone_db == pytest.approx(decibel(with_pair, without), abs=1e-3)
    assert layer.alone_mse == pytest.approx(np.square(with_pair.astype(np.float64) - without).mean(), rel=1e-4)


def test_all_on_is_the_quantized_tensor_against_the_float_model(report: ProfileReport, files) -> None:
    quantized, original = onnx.load(files / "model.qdq.onnx"), onnx.load(files / "model.onnx")
    target = next(
        n.output[0] for n in quantized.graph.node if n.name == "a_DequantizeLinear" or "a_quantized" in n.input
    )
    for model, name in ((quantized, target), (original, "a")):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    value = parity.session(quantized).run([target], {"x": data()})[0]
    reference = parity.session(original).run(["a"], {"x": data()})[0]
    scale = next(onnx.numpy_helper.to_array(t) for t in quantized.graph.initializer if t.name == "a_scale")
    layer = next(layer for layer in report.layers if layer.tensor == "a")
    assert layer.reference == "float model"
    assert layer.all_db == pytest.approx(decibel(value, reference), abs=1e-3)
    assert layer.all_steps == pytest.approx(np.abs(value - reference).max() / scale, rel=1e-4)
    flat = value.ravel().astype(np.float64), reference.ravel().astype(np.float64)
    assert layer.all_cosine == pytest.approx(flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1]))


def test_weights_are_measured_in_their_own_steps(report: ProfileReport) -> None:
    for layer in report.layers:
        if layer.role == "weight":
            assert layer.reference == "quantizers off"
            assert 0.0 < layer.all_steps <= 0.5 + 1e-4


def test_views(report: ProfileReport) -> None:
    shown = build_profile.from_profile(report)
    assert as_json.to_dict(shown)["tables"]["layers"][0]["tensor"] == report.layers[0].tensor
    assert "--exclude" in shown.next_command
    told = dataclasses.replace(report, backend="tensorrt", source="my data/", preprocess="scale=1/255")
    following = build_profile.from_profile(told).next_command
    assert "--backend tensorrt --calibration 'my data/' --preprocess scale=1/255" in following
    lines = list(csv.DictReader(streams.StringIO(build_profile.to_csv(report))))
    assert [float(line["alone_db"]) for line in lines] == [layer.alone_db for layer in report.layers]


def test_the_command(files, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = [str(files / "model.onnx"), str(files / "model.qdq.onnx")]
    options = ["--data", str(files / "data.npz"), "--csv", "layers.csv", "--html", "page.html"]
    assert main.run(["profile", *models, *options]) == 0
    assert (tmp_path / "layers.csv").read_text().startswith("tensor,role,")
    assert "<table" in (tmp_path / "page.html").read_text()
    assert "layers.csv" in capsys.readouterr().out


def test_refusals(files) -> None:
    for arguments, code in (
        ((files / "model.onnx", files / "model.onnx"), "model-not-quantized"),
        ((files / "model.onnx", files / "model.qdq.onnx"), "data-missing"),
    ):
        with pytest.raises(QatError) as failed:
            onnxqat.profile(*arguments)
        assert failed.value.code == code


def test_models_are_not_changed(files) -> None:
    quantized = io.load(files / "model.qdq.onnx")
    before = io.to_proto(quantized).SerializeToString(deterministic=True)
    onnxqat.profile(files / "model.onnx", quantized, {"x": data()}, limit=3)
    assert io.to_proto(quantized).SerializeToString(deterministic=True) == before


def test_closeness() -> None:
    found = Closeness(np.array([0.5, 2.0]))
    found.update(np.array([[1.0, 2.0], [3.0, np.nan]]), np.array([[1.0, 4.0], [2.0, 1.0]]))
    assert (found.steps, found.mse, found.non_finite) == (2.0, pytest.approx(5 / 4), 1)
    assert found.cosine == pytest.approx((1 + 8 + 6) / math.sqrt(14 * 21))
    zeros = Closeness()
    zeros.update(np.zeros(2), np.zeros(2))
    assert (zeros.cosine, zeros.steps, zeros.sqnr_db) == (1.0, None, math.inf)
    assert math.isnan(Closeness().cosine)


def test_a_score_of_each_quantizer_alone(tmp_path: Path) -> None:
    original, quantized = tiny.save_pair(tmp_path)
    images = tiny.images(6)
    found = onnxqat.profile(original, quantized, {"image": images}, score="sqnr")
    assert found.score is not None
    assert found.score.values["float"] == math.inf
    assert found.score.values["quantized"] < min(
        layer.alone_score or 0.0 for layer in found.layers if layer.role != "bias"
    )
    heading, *rows = csv.reader(streams.StringIO(build_profile.to_csv(found)))
    assert "alone_score" in heading
    assert all(math.isfinite(float(row[heading.index("alone_score")])) for row in rows if row[1] == "activation")
    assert onnxqat.profile(original, quantized, {"image": images}).layers[0].alone_score is None
