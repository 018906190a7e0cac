"""Both models, every run: what agrees passes, and what is wrong is caught and named."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxqat.deployment.handoff import handoff
from onnxqat.errors import DataError, ModelError
from onnxqat.graph import io, qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.insertion.insert import insert_qdq
from onnxqat.metrics import Predictor
from onnxqat.numerics import fake_quantize
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
from onnxqat.types import QType
from onnxqat.validation import machine, parity, torch_run, verdicts
from onnxqat.validation.profile import profile
from onnxqat.validation.result import DEFAULT, FLOAT, PLAIN, TORCH
from onnxqat.validation.result import broken as not_finite
from onnxqat.validation.validate import validate
from tests import hanging
from tests.validation import tiny

Pair = tuple[onnx.ModelProto, onnx.ModelProto]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny.pair()


def saturating(backend: str) -> Pair:
    """``y = x W`` where two neighbouring products of 8-bit codes need more than 16 bits; and the table it was made with."""
    weight = np.full((64, 4), 1.27, np.float32)
    header = '<ir_version: 8, opset_import: ["" : 18]> g (float[n, 64] x) => (float[n, 4] y)'
    quantized = """
    <float s = {0.01}, uint8 z = {0}, int8 wz = {0}, float ys = {1.0}> {
        xq = QuantizeLinear (x, s, z)
        xd = DequantizeLinear (xq, s, z)
        wq = QuantizeLinear (w, s, wz)
        wd = DequantizeLinear (wq, s, wz)
        yf = MatMul (xd, wd)
        yq = QuantizeLinear (yf, ys, z)
        y = DequantizeLinear (yq, ys, z)
    }"""
    bodies = " { y = MatMul (x, w) }", quantized
    pair = onnx.parser.parse_model(header + bodies[0]), onnx.parser.parse_model(header + bodies[1])
    for model in pair:
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    helper.set_model_props(pair[1], {"onnxqat.backend": backend})
    return pair


def altered(model: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    """A copy whose initializer `name` is multiplied."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensor = next(t for t in copy.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), name))
    return copy


def test_agreement_passes_with_every_figure(pair: Pair) -> None:
    calls: list[tuple[int, int | None]] = []
    report = validate(*pair, {"image": tiny.images(70)}, progress=lambda done, of: calls.append((done, of)))
    assert report.passed
    assert report.failures == ()
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert report.samples == report.tensor_samples == 70
    assert {a.run for a in report.accuracies} == {FLOAT, PLAIN, DEFAULT, TORCH}
    assert all(a.against == "top-1 of the float model" for a in report.accuracies)
    assert next(a for a in report.accuracies if a.run == FLOAT).top1 == 1.0
    assert [q.tensor for q in report.quantizers] == [
        "image", "relu1", "conv2", "relu2", "pooled", "flat", "logits_float",
    ]  # fmt: skip
    assert all(q.reference == "torch" and q.differing_given_input == 0 for q in report.quantizers)
    assert all(q.unexplained == 0 and (q.largest_in_network or 0) <= 1 for q in report.quantizers)
    assert {t.tensor for t in report.tensors} == {"relu1", "conv2", "relu2", "pooled", "flat", "logits"}
    assert all(t.sqnr_db > 30 for t in report.tensors)
    assert report.float_nodes == ()
    json.dumps(report.to_dict(), allow_nan=False)


def test_figures_do_not_depend_on_the_batch_size(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = validate(*pair, {"image": tiny.images(40)}, batch_size=40, use_torch=False)
    monkeypatch.setattr("onnxqat.validation.validate.PIECE_BYTES", 3 * 100_000)  # a few samples a piece
    cut = validate(*pair, {"image": tiny.images(40)}, batch_size=16, use_torch=False)
    assert cut.tensor_samples == 40
    for one, two in zip(whole.quantizers, cut.quantizers, strict=True):
        assert one.elements == two.elements
        assert one.noise_db == pytest.approx(two.noise_db, abs=0.05)
    limited = validate(*pair, {"image": tiny.images(40)}, batch_size=16, tensor_samples=5, use_torch=False)
    assert limited.samples == 40
    assert 5 <= limited.tensor_samples <= 16


def test_a_whole_batch_runs_without_the_inner_tensors(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime holds all that a session may return to the end of a run: that takes pieces of a batch alone."""
    monkeypatch.setattr("onnxqat.validation.validate.PIECE_BYTES", 10 * 100_000)  # more than the weights
    held: list[int] = []
    run = Session.run

    def noted(self: Session, feeds: dict[str, np.ndarray], names: object = None) -> dict[str, np.ndarray]:
        if len(self._session.session.get_outputs()) > len(self.output_names):
            held.append(len(feeds["image"]))
        return run(self, feeds, names)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "run", noted)
    validate(*pair, {"image": tiny.images(40)}, batch_size=40, use_torch=False)
    assert held
    assert max(held) < 40


def test_labels_give_accuracy(pair: Pair) -> None:
    images = tiny.images(30)
    truth = validate(*pair, {"image": images}, use_torch=False)
    session_labels = np.zeros(30, np.int64)
    report = validate(*pair, {"image": images, "labels": session_labels}, use_torch=False)
    assert {a.against for a in report.accuracies} == {"labels"}
    assert truth.compared(PLAIN, FLOAT) == report.compared(PLAIN, FLOAT)
    with pytest.raises(DataError) as caught:
        validate(*pair, {"image": images, "labels": session_labels + 99}, use_torch=False)
    assert caught.value.code == "data-labels"


def test_labels_that_count_from_one_are_told(pair: Pair) -> None:
    images = tiny.images(60)
    answers = next(iter(Predictor.of(pair[0])({"image": images}).values())).argmax(1)
    kept = answers < tiny.CLASSES - 1  # whose number plus one is a class, too, so that no check finds it
    for more, told in ((0, False), (1, True)):
        report = validate(*pair, {"image": images[kept], "labels": answers[kept] + more}, use_torch=False)
        assert any("count classes from 1" in remark.message for remark in report.remarks) == told


def test_wrong_arithmetic_in_torch_is_caught_and_located(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_run.open_torch
    wrong = altered(pair[1], "conv2_w", -1.0)
    monkeypatch.setattr("onnxqat.validation.validate.open_torch", lambda _, remarks: right(io.load(wrong), remarks))
    report = validate(*pair, {"image": tiny.images(60)})
    assert not report.passed
    assert any("dB between torch and onnxruntime" in text for text in report.failures)
    assert report.first_parting is not None
    assert report.first_parting.tensor == "conv2_w_dequantized"
    assert not report.first_parting.rounding_tie
    conv2 = next(q for q in report.quantizers if q.tensor == "conv2")
    assert conv2.differing_given_input == 0
    assert (conv2.largest_in_network or 0) > 5


def test_differing_top1_is_limited(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_run.open_torch
    wrong = altered(pair[1], "fc_w", -1.0)
    monkeypatch.setattr("onnxqat.validation.validate.open_torch", lambda _, remarks: right(io.load(wrong), remarks))
    report = validate(*pair, {"image": tiny.images(60)})
    assert sum("top-1 differ between quantized model in torch" in text for text in report.failures) == 2
    loose = validate(
        *pair, {"image": tiny.images(60)}, max_differing_top1=60, max_differing_top1_default=60, min_parity_sqnr=-99
    )
    assert not any("top-1 differ" in text for text in loose.failures)


def test_wrong_quantizer_is_caught_given_its_own_input(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_run.TorchRun.quantizer

    def biased(self: Any, quantizer: Quantizer) -> Any:
        apply = right(self, quantizer)
        assert apply is not None
        return lambda x: apply(x + quantizer.qparams.scale * np.float32(0.01))

    monkeypatch.setattr(torch_run.TorchRun, "quantizer", biased)
    report = validate(*pair, {"image": tiny.images(8)})
    assert any("given the same input" in text for text in report.failures)


def test_a_bad_quantized_model_shows_in_flips_and_noise(pair: Pair) -> None:
    good = validate(*pair, {"image": tiny.images(40)}, use_torch=False)
    bad = validate(pair[0], altered(pair[1], "conv2_w", -1.0), {"image": tiny.images(40)}, use_torch=False)
    assert (bad.compared(PLAIN, FLOAT)[0].differing_top1 or 0) > (good.compared(PLAIN, FLOAT)[0].differing_top1 or 0)
    noise = {t.tensor: t.sqnr_db for t in bad.tensors}
    assert noise["relu1"] > 30 > noise["conv2"]


def test_non_finite_values_fail_even_where_a_quantizer_saturates_them(pair: Pair) -> None:
    report = validate(*pair, {"image": tiny.images(4)}, use_torch=False)
    hidden = dataclasses.replace(report.quantizers[0], non_finite=28)
    assert not_finite((), (hidden,), 0) == [f"quantizer of {hidden.tensor!r} gets 28 NaN or infinite values"]
    broken_outputs = tuple(dataclasses.replace(c, non_finite=3) for c in report.outputs[:1])
    assert not_finite(broken_outputs, (), 0) == [
        "quantized model in onnxruntime, optimizations off: 3 NaN or infinite values in output 'logits'"
    ]
    assert not_finite((), (), 2) == ["the float model gives 2 NaN or infinite output values"]


def test_other_outputs_are_judged_by_signal_to_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(quantized: bool, weight: float = 1.0) -> onnx.ModelProto:
        nodes, extra = [], []
        source = "x"
        if quantized:
            extra = [
                numpy_helper.from_array(np.float32(0.05).reshape(()), "s"),
                numpy_helper.from_array(np.array(0, np.int8), "z"),
            ]
            nodes = [
                helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            ]
            source = "d"
        nodes += [helper.make_node("Mul", [source, "w"], ["y"]), helper.make_node("Relu", [source], ["z2"])]
        extra.append(numpy_helper.from_array(np.float32(weight).reshape(1), "w"))
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3, 4]) for n in ("x", "y", "z2")]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], extra)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    data = {"x": np.random.default_rng(0).normal(size=(20, 3, 4)).astype(np.float32)}
    report = validate(model(False), model(True), data)
    assert report.passed
    assert report.accuracies == ()
    assert [c.differing_top1 for c in report.outputs] == [None] * len(report.outputs)
    right = torch_run.open_torch
    monkeypatch.setattr(
        "onnxqat.validation.validate.open_torch", lambda _, remarks: right(io.load(model(True, 2.0)), remarks)
    )
    report = validate(model(False), model(True), data)
    assert any("output 'y': 0.0 dB" in text for text in report.failures)


def test_ties_and_saturation_are_counted() -> None:
    quantizer = next(q for q in qdq.quantizers(io.load(tiny.pair()[1])) if q.tensor == "image")
    meter = parity.QuantizerMeter(quantizer, None)
    scale, zero = quantizer.qparams.scale, quantizer.qparams.zero_point
    steps = np.array([0.5, 1.5 + 5e-5, 1.5 + 1e-3, 2.0, 400.0, -400.0])
    x = (steps * scale).astype(np.float32)
    meter.update(x, fake_quantize(x, quantizer.qparams))
    found = meter.result()
    assert found.reference == "numpy"
    assert found.differing_given_input == 0
    assert found.tie_rate == pytest.approx(2 / 6)
    assert found.saturated == pytest.approx(2 / 6)
    assert 0 < zero < 255


def test_nan_has_no_code() -> None:
    """Runtimes give it one of their own, the bridge keeps it: what is counted is that a quantizer gets it."""
    quantizer = next(q for q in qdq.quantizers(io.load(tiny.pair()[1])) if q.tensor == "image")
    meter = parity.QuantizerMeter(quantizer, lambda x: np.where(np.isnan(x), x, fake_quantize(x, quantizer.qparams)))
    x = np.array([np.nan, np.inf, 1.0], np.float32)
    written = fake_quantize(np.array([-1e9, np.inf, 1.0], np.float32), quantizer.qparams)
    meter.update(x, written)
    meter.update_network((x, written), (x, np.array([np.nan, *written[1:]])))
    found = meter.result()
    assert (found.non_finite, found.differing_given_input, found.differing_in_network) == (2, 0, 0)


@pytest.mark.parametrize("value", [np.nan, 1.0])
def test_a_scalar_is_compared_as_well(value: float) -> None:
    quantizer = next(q for q in qdq.quantizers(io.load(tiny.pair()[1])) if q.tensor == "image")
    meter = parity.QuantizerMeter(quantizer, None)
    x = np.array(value, np.float32)
    written = fake_quantize(np.array(1.0, np.float32), quantizer.qparams)
    meter.update(x, written)
    meter.update_network((x, written), (x, written))
    found = meter.result()
    assert (found.elements, found.differing_given_input, found.differing_in_network) == (1, 0, 0)


@pytest.mark.parametrize("compare", [validate, profile])
def test_data_that_are_not_finite_are_blamed(pair: Pair, compare: Callable[..., Any]) -> None:
    images = tiny.images(4)
    images[2, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"batch 1 of .*: input 'image' has NaN or infinity in sample 0") as caught:
        compare(*pair, {"image": images}, batch_size=2)
    assert caught.value.code == "data-non-finite"


@pytest.mark.parametrize(("moved", "unexplained"), [(0.4, 0), (3.0, 0), (0.0, 1)])
def test_codes_may_differ_by_what_their_inputs_do(moved: float, unexplained: int) -> None:
    quantizer = next(q for q in qdq.quantizers(io.load(tiny.pair()[1])) if q.tensor == "image")
    scale = float(quantizer.qparams.scale)
    meter = parity.QuantizerMeter(quantizer, None)
    x = np.array([10 * scale], np.float32)
    other = np.array([(10 + moved) * scale], np.float32)
    output = fake_quantize(other, quantizer.qparams) if moved else fake_quantize(x + 3 * scale, quantizer.qparams)
    meter.update_network((x, fake_quantize(x, quantizer.qparams)), (other, output))
    assert meter.result().unexplained == unexplained


def test_ties_of_16_bits_are_as_far_apart_as_float32_says() -> None:
    """Neighbouring ties of large codes, whose quotients float32 puts less than a code apart."""
    quantizer = next(q for q in qdq.quantizers(io.load(tiny.pair()[1])) if q.tensor == "image")
    scale, zero = np.asarray(0.0137, np.float32), np.asarray(0)
    wide = dataclasses.replace(quantizer.qparams, scale=scale, zero_point=zero, qtype=QType.of(16, signed=False))
    codes = np.arange(40000, 60000, 2)
    last, first = (((codes + tie) * float(scale)).astype(np.float32) for tie in (0.5, 1.5))
    outside, inside = np.float32(0), np.float32(np.inf)
    last = np.where(np.rint(last / scale) == codes, last, np.nextafter(last, outside))
    first = np.where(np.rint(first / scale) == codes + 2, first, np.nextafter(first, inside))
    for _ in range(8):  # the neighbours that still get the code
        last, first = (
            np.where(np.rint((near := np.nextafter(at, to)) / scale) == code, near, at)
            for at, to, code in ((last, inside, codes), (first, outside, codes + 2))
        )
    written = [fake_quantize(values, wide) for values in (last, first)]
    found = {}
    for beyond in (0, 1):
        meter = parity.QuantizerMeter(dataclasses.replace(quantizer, qparams=wide), None)
        meter.update_network((last, written[0]), (first, written[1] + beyond * scale))
        found[beyond] = meter.result().unexplained
    assert found == {0: 0, 1: len(codes)}


def test_weighted_nodes_in_float_are_listed(pair: Pair) -> None:
    bare = onnx.ModelProto()
    bare.CopyFrom(pair[1])
    node = next(n for n in bare.graph.node if n.name == "Conv_conv2")
    node.input[0] = "relu1"
    report = validate(pair[0], bare, {"image": tiny.images(2)}, use_torch=False)
    assert report.float_nodes == (("Conv_conv2", "relu1"),)


def test_inputs_are_no_news_where_weights_alone_are_quantized() -> None:
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    weights = ", ".join(map(str, np.random.default_rng(1).standard_normal(32 * 32)))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,32] x) => (float[N,32] y)
        <float[32,32] w = {{{weights}}}, float[32,32] v = {{{weights}}}> {{
            a = MatMul(x, w) b = MatMul(a, v) y = Add(b, x) }}"""
    )
    made = insert_qdq(model, "onnxruntime-int4", overrides=Overrides(exclude=("b",))).model
    report = validate(model, made, {"x": x}, use_torch=False)
    assert [tensor for _, tensor in report.float_nodes] == ["v"]


def test_bad_input_is_refused(pair: Pair) -> None:
    original, quantized = pair
    with pytest.raises(DataError) as missing:
        validate(original, quantized)
    assert missing.value.code == "data-missing"
    with pytest.raises(ModelError) as swapped:
        validate(quantized, original, {"image": tiny.images(2)})
    assert swapped.value.code == "model-not-quantized"
    other = onnx.ModelProto()
    other.CopyFrom(original)
    other.graph.output[0].name = other.graph.node[-1].output[0] = "scores"
    with pytest.raises(ModelError) as different:
        validate(other, quantized, {"image": tiny.images(2)})
    assert "scores" in different.value.message


def test_rows_that_quantization_chooses_otherwise_are_to_be_cut_off() -> None:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (int64[2,K] rows) '
    plain = onnx.parser.parse_model(head + "{ y = Relu(x) rows = NonZero(y) }")
    pairs = "s = Constant<value_float=1.0>() q = QuantizeLinear(x, s) d = DequantizeLinear(q, s)"
    coarse = onnx.parser.parse_model(head + "{ " + pairs + " y = Relu(d) rows = NonZero(y) }")
    with pytest.raises(ModelError) as different:
        validate(plain, coarse, {"x": np.full((2, 4), 0.25, np.float32)})
    assert "onnxqat cut" in different.value.hint


def test_random_data_is_marked(pair: Pair) -> None:
    report = validate(*pair, random_data=True, limit=3, use_torch=False)
    assert report.samples == 3
    assert any("random" in r.message for r in report.remarks)


def test_works_without_torch(pair: Pair, tmp_path: Path, repository: Path) -> None:
    paths = tiny.save_pair(tmp_path)
    np.savez(tmp_path / "data.npz", image=tiny.images(6))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from onnxqat.validation.validate import validate\n"
        f"report = validate({paths[0]!r}, {paths[1]!r}, {str(tmp_path / 'data.npz')!r})\n"
        "assert report.passed and report.quantizers[0].reference == 'numpy', report\n"
        "assert any('torch is not installed' in r.message for r in report.remarks), report.remarks\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=hanging.SECONDS
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime-cpu", "a-table-of-the-user"])
def test_saturating_kernels_count_only_where_they_are_the_target(backend: str) -> None:
    x = np.full((4, 64), 2.55, np.float32)
    report = validate(*saturating(backend), {"x": x}, use_torch=False, min_parity_sqnr=0.0)
    difference = next(o for o in report.outputs if (o.run, o.against) == (DEFAULT, PLAIN)).max_abs
    expected = machine.saturates() and backend == "onnxruntime-cpu"
    assert (difference > 0) == expected
    assert any("this processor has no VNNI" in r.message for r in report.remarks) == machine.saturates()
    assert any("leave 16 bits" in r.message for r in report.remarks) == (backend == "onnxruntime-cpu")


@pytest.mark.parametrize("saturates", [True, False])
def test_wide_scales_are_named_where_sums_saturated(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "saturates", lambda: saturates)
    monkeypatch.setattr(verdicts, "parted_sessions", lambda _: ["its kernels are others"])  # on any processor
    x = np.linspace(0, 2.55, 64, dtype=np.float32)[None].repeat(2, 0)
    report = validate(*saturating("onnxruntime-cpu"), {"x": x}, min_parity_sqnr=math.inf)
    parity = next(v for v in report.verdicts if v.name == "parity")
    assert parity.remedy is not None
    assert parity.remedy.endswith("--safe-range" if saturates else "--exact")


SHARED = """<ir_version: 8, opset_import: ["" : 13]> g (float[N,4,6,6] x) => (float[N,4,6,6] y) <float[4,4,1,1] w, float big = {30}> {
    a = Conv(x, w) h = Mul(a, big) b = Conv(h, w) y = Add(a, b) }"""


@pytest.mark.skipif(not machine.saturates(), reason="other processors need no session option")
def test_a_weight_of_two_layers_runs_where_kernels_must_not_saturate(tmp_path: Path) -> None:
    model, rng = onnx.parser.parse_model(SHARED), np.random.default_rng(0)
    weight = rng.normal(size=(4, 4, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    data = {"x": rng.normal(size=(2, 4, 6, 6)).astype(np.float32)}
    quantized = insert_qdq(model, "tensorrt", data=data).model
    assert validate(model, quantized, data).passed
    for node in quantized.graph.node:  # as other tools write them
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not node.input[0].startswith("w"):
            node.input[2] = "x_zero_point"
    assert validate(model, quantized, data, use_torch=False).passed
    handoff(quantized, "tensorrt", tmp_path / "bundle", data=data, trace=False)
    assert validate(model, tmp_path / "bundle" / "model.onnx", data, use_torch=False).passed


@pytest.mark.skipif(not machine.saturates(), reason="other processors need no session option")
def test_a_zero_point_of_two_weights_runs_where_kernels_must_not_saturate() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[N,8] x) => (float[N,8] y) <float[8,8] w, float[8,8] v> {
        a = Gemm(x, w) b = Relu(a) c = Gemm(b, v) y = Add(a, c) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name in "wv":
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), name))
    data = {"x": rng.normal(size=(4, 8)).astype(np.float32)}
    quantized = insert_qdq(model, "tensorrt", data=data, overrides=Overrides(per_channel=False)).model
    for node in quantized.graph.node:  # as other tools write them
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[0].startswith("v"):
            node.input[2] = "w_zero_point"
    assert validate(model, quantized, data, use_torch=False).passed


def test_a_model_without_outputs(pair: Pair) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(pair[1])
    del model.graph.output[:]
    with pytest.raises(ModelError, match="no outputs") as caught:
        validate(model, model, random_data=True)
    assert caught.value.code == "model-invalid"


def test_scores_of_the_float_model_the_file_and_the_default_session(tmp_path: Path) -> None:
    original, quantized = tiny.save_pair(tmp_path)
    images = tiny.images(8)
    right = Predictor.of(original)({"image": images})["logits"].argmax(1)
    right[0] = (right[0] + 1) % tiny.CLASSES

    def files(path: Path) -> float:
        return 1.0 if path.name == Path(quantized).name else 2.0

    found = validate(
        original, quantized, {"image": images, "labels": right}, score=["top1", files], use_torch=False, batch_size=3
    ).scores
    outputs = Predictor.of(quantized)({"image": images})["logits"].argmax(1)
    assert found[0].values["float"] == 7 / 8
    assert found[0].values["ort-plain"] == float((outputs == right).mean())
    assert found[0].drops["ort-plain"] == 7 / 8 - float((outputs == right).mean())
    assert (found[1].values, found[1].drops["ort-default"]) == (
        {"float": 2.0, "ort-plain": 1.0, "ort-default": 1.0},
        1.0,
    )
