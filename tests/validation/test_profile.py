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
from onnxqat.placement.table_overrides import Overrides
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
    source, options = folder / "model.onnx", {"overrides": overrides(weight_bits=4), "rounding": "nearest"}
    onnxqat.insert_qdq(source, "tensorrt", data={"x": data()}, **options)
    return folder


def overrides(**options: object) -> Overrides:
    return Overrides(**options)


@pytest.fixture(scope="module")
def report(files) -> ProfileReport:
    return onnxqat.profile(files / "model.onnx", files / "model.qdq.onnx", {"x": data()}, batch_size=5)


def decibel(value: np.ndarray, reference: np.ndarray) -> float:
    value, reference = value.astype(np.float64), reference.astype(np.float64)
    return 10 * math.log10(np.square(reference).sum() / np.square(value - reference).sum())


def test_the_costliest_comes_first(report: ProfileReport) -> None:
    assert [layer.alone_db for layer in report.tensors] == sorted(layer.alone_db for layer in report.tensors)
    assert report.tensors[0].role == "weight"  # 4 bits against 8
    assert report.samples == 12
    assert {(layer.tensor, layer.node) for layer in report.tensors} == {
        ("x", "first"),
        ("w", "first"),
        ("a", "second"),
        ("v", "second"),
    }


def test_alone_is_the_file_with_one_pair(report: ProfileReport, files) -> None:
    """A second way to the same number: a file in which only that tensor has a pair, in onnxruntime."""
    quantized = onnx.load(files / "model.qdq.onnx")
    floating = StripQdq().run(quantized).model
    layer = next(layer for layer in report.tensors if layer.tensor == "v")
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
    layer = next(layer for layer in report.tensors if layer.tensor == "a")
    assert layer.reference == "float model"
    assert layer.all_db == pytest.approx(decibel(value, reference), abs=1e-3)
    assert layer.all_steps == pytest.approx(np.abs(value - reference).max() / scale, rel=1e-4)
    flat = value.ravel().astype(np.float64), reference.ravel().astype(np.float64)
    assert layer.all_cosine == pytest.approx(flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1]))


def test_weights_are_measured_in_their_own_steps(report: ProfileReport) -> None:
    for layer in report.tensors:
        if layer.role == "weight":
            assert layer.reference == "quantizers off"
            assert 0.0 < layer.all_steps <= 0.5 + 1e-4


ENDS = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[1,N,3] y) <float[4,5] w = {weight(4, 5)}, float[5,3] v = {weight(5, 3)}, int64[1] at = {{0}}> {{
    ["first"] p = MatMul(x, w) ["act"] a = Relu(p) ["second"] s = MatMul(a, v) ["move"] m = Unsqueeze(s, at)
    ["last"] y = Softmax(m) }}"""


def test_scores_in_front_of_a_last_softmax_belong_to_the_layer_that_makes_them() -> None:
    """The Softmax is in float already: to leave it out takes no pair away, and to leave out the layer does."""
    made = onnxqat.insert_qdq(proto(ENDS), "onnxruntime-cpu", data={"x": data()}, overrides=overrides()).model
    layers = {row.node: row.tensors for row in onnxqat.profile(proto(ENDS), made, {"x": data()}, by="layer").layers}
    assert "s" in layers["second"]
    assert "last" not in layers
    left = overrides(exclude=("second",))
    without = onnxqat.insert_qdq(proto(ENDS), "onnxruntime-cpu", data={"x": data()}, overrides=left).model
    assert not {"s", "m"} & {pair.tensor for pair in onnxqat.explain(without).pairs}


def test_views(report: ProfileReport) -> None:
    shown = build_profile.from_profile(report)
    assert as_json.to_dict(shown)["tables"]["tensors"][0]["tensor"] == report.tensors[0].tensor
    assert "--bits 4,8 --exclude" in shown.next_command  # made again without its widths, it would have 8
    told = dataclasses.replace(report, backend="tensorrt", source="my data/", preprocess="scale=1/255")
    following = build_profile.from_profile(told).next_command
    assert "--backend tensorrt --calibration 'my data/' --preprocess scale=1/255" in following
    lines = list(csv.DictReader(streams.StringIO(build_profile.to_csv(report))))
    assert [float(line["alone_db"]) for line in lines] == [layer.alone_db for layer in report.tensors]


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
        layer.alone_score or 0.0 for layer in found.tensors if layer.role != "bias"
    )
    heading, *rows = csv.reader(streams.StringIO(build_profile.to_csv(found)))
    assert "alone_score" in heading
    assert all(math.isfinite(float(row[heading.index("alone_score")])) for row in rows if row[1] == "activation")
    assert onnxqat.profile(original, quantized, {"image": images}).tensors[0].alone_score is None


@pytest.fixture(scope="module")
def by_layer(files) -> ProfileReport:
    return onnxqat.profile(files / "model.onnx", files / "model.qdq.onnx", {"x": data()}, by="layer", score="cosine")


def test_a_layer_is_all_that_its_node_reads(by_layer: ProfileReport, files) -> None:
    """Alone and all others on, against the file with the pairs of the other layer, or of this one, cut off."""
    assert {(layer.node, layer.tensors) for layer in by_layer.layers} == {("first", ("x", "w")), ("second", ("a", "v"))}
    reference = parity.session(onnx.load(files / "model.onnx")).run(None, {"x": data()})[0]
    for layer in by_layer.layers:
        for other, found in (("second", layer.alone_db), ("first", layer.off_db)):
            cut = other if layer.node == "first" else {"first": "second", "second": "first"}[other]
            value = parity.session(without(onnx.load(files / "model.qdq.onnx"), cut)).run(None, {"x": data()})[0]
            assert found == pytest.approx(decibel(value, reference), abs=1e-3)


def without(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """`model`, in which the node of this name reads what is in front of its pairs."""
    makers = {n.output[0]: n for n in model.graph.node}
    node = next(n for n in model.graph.node if n.name == name)
    for index, value in enumerate(node.input):
        while value in makers and makers[value].op_type in ("DequantizeLinear", "Clip", "QuantizeLinear"):
            value = makers[value].input[0]
        node.input[index] = value
    return model


def test_the_curve_goes_from_all_on_to_none(by_layer: ProfileReport) -> None:
    points = by_layer.curve
    assert [(p.count, p.name) for p in points] == [(0, ""), (1, by_layer.layers[0].node), (2, by_layer.layers[1].node)]
    assert points[0].output_db == pytest.approx(by_layer.output_db)
    # One layer in float is that layer left out of all others.
    assert points[1].output_db == pytest.approx(by_layer.layers[0].off_db)
    assert points[2].output_db == math.inf
    assert [p.score for p in points] == sorted(p.score for p in points)


def test_the_list_goes_as_far_as_the_level_asks(files, by_layer: ProfileReport) -> None:
    first, second = by_layer.layers[0].node, by_layer.layers[1].node
    for level, expected in ((0.0, ()), (by_layer.curve[1].output_db, (first,)), (90.0, (first, second))):
        found = onnxqat.profile(
            files / "model.onnx", files / "model.qdq.onnx", {"x": data()}, by="layer", min_sqnr=level, limit=12
        )
        assert found.exclude == expected
    assert by_layer.bits_of == ()  # tensorrt has no activations of 16 bits


def test_tensors_of_the_list_are_named_by_their_readers(files) -> None:
    arguments = (files / "model.onnx", files / "model.qdq.onnx", {"x": data()})
    first = onnxqat.profile(*arguments).curve[1]
    found = onnxqat.profile(*arguments, min_sqnr=first.output_db)
    assert found.exclude == (next(row.node for row in found.tensors if row.tensor == first.name),)


def test_sixteen_bits_where_the_table_has_them(tmp_path: Path) -> None:
    original, quantized = tiny.save_pair(tmp_path)
    marked = onnx.load(quantized)
    marked.metadata_props.add(key="onnxqat.backend", value="qnn-htp")
    found = onnxqat.profile(original, marked, {"image": tiny.images(4)}, by="layer", ways=("alone",))
    assert found.exclude == tuple(layer.node for layer in found.layers[:3])
    assert found.bits_of == tuple(f"{node}=8,16" for node in found.exclude)
    assert "--bits-of" in str(build_profile.from_profile(found).figures[-1].value)


@pytest.mark.parametrize("sort", ["sqnr", "cosine", "mse", "lsb", "score"])
def test_order(files, sort: str) -> None:
    found = onnxqat.profile(
        files / "model.onnx", files / "model.qdq.onnx", {"x": data()}, sort=sort, score="sqnr", ways=("alone",)
    )
    key = {"sqnr": "alone_db", "lsb": "all_steps"}.get(sort, f"alone_{sort}")
    values = [getattr(row, key) for row in found.tensors]
    assert values == sorted(values, reverse=sort in ("mse", "lsb"))


def test_ways_that_are_not_cheap_wait_to_be_asked_for(files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxqat.validation.profile.CHEAP", 4 * 12 - 1)
    arguments = (files / "model.onnx", files / "model.qdq.onnx", {"x": data()})
    found = onnxqat.profile(*arguments, batch_size=12)
    assert found.ways == ("alone",)
    assert any("4 tensors times 12 samples are more than 47" in remark.message for remark in found.remarks)
    assert onnxqat.profile(*arguments, limit=11).ways == ("alone", "off", "cumulative")
    assert onnxqat.profile(*arguments, ways=("cumulative",)).ways == ("alone", "cumulative")
    once = ({"x": data()} for _ in range(1))
    assert onnxqat.profile(*arguments[:2], once, limit=11).ways == ("alone", "off")
    for options, code in (
        ({"ways": ("cumulative",)}, "data-format"),
        ({"ways": ("apart",)}, "option-invalid"),
        ({"sort": "score"}, "option-invalid"),
    ):
        with pytest.raises(QatError) as failed:
            onnxqat.profile(*arguments[:2], ({"x": data()} for _ in range(1)), **options)
        assert failed.value.code == code


def test_json_has_what_a_drawing_needs(by_layer: ProfileReport) -> None:
    found = as_json.to_dict(build_profile.from_profile(by_layer))
    assert list(found["tables"]) == ["layers", "tensors", "curve"]
    assert found["details"]["exclude"] == list(by_layer.exclude)
    statistics = {row["tensor"]: row for row in found["details"]["statistics"]}
    assert len(statistics["x"]["histogram"]) == 128
    assert sum(statistics["x"]["histogram"]) == statistics["x"]["values"] == data().size
    assert statistics["x"]["low"] == pytest.approx(float(data().min()))
    assert csv.DictReader(streams.StringIO(build_profile.to_csv(by_layer))).fieldnames[0] == "node"
