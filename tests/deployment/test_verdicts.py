"""Verdicts of a hand-off: the same whatever is traced, with the metric of the compiled model beside those of the files."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.cli import main
from onnxqat.deployment import handoff as module
from onnxqat.deployment.base_compiler import CompilerResult
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.matched_rows import matched, selected
from onnxqat.deployment.outputs import OutputCheck, check_outputs
from onnxqat.deployment.verdicts import allowed, judge_output, other_target
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.metrics import Predictor
from onnxqat.validation.remedies import Given
from onnxqat.validation.validate import validate
from tests.validation import tiny

IMAGES = tiny.images(12)
PLAIN, QUANTIZED = tiny.pair()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(compiler: Any, path: Path, batches: Any, **rest: Any) -> CompilerResult:
        found: CompilerResult = compiler.compile_and_run(path, batches, rest.get("artefacts"))
        return found

    monkeypatch.setattr(module, "compile_in_process", here)


def labels() -> np.ndarray:
    """What the float model says, but for two samples."""
    found = Predictor.of(PLAIN)({"image": IMAGES})["logits"].argmax(1)
    found[:2] = (found[:2] + 1) % tiny.CLASSES
    return found


def top1(outputs: np.ndarray) -> float:
    return float((outputs.argmax(1) == labels()).mean())


def test_scores_without_a_float_model_name_the_file_as_their_reference(tmp_path: Path, quick: None) -> None:
    report = handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / "bundle", data={"image": IMAGES})
    assert {(score.name, score.against) for score in report.scores} == {
        ("top1", "file handed in"),
        ("sqnr", "file handed in"),
    }


def test_a_compiler_gets_batches_of_one_size_whatever_the_data_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fixes the batch to that of the first; a score feeds one sample after the other."""
    sizes = []

    def compiled(compiler: Any, path: Path, batches: Any, **rest: Any) -> CompilerResult:
        sizes.extend(len(batch["image"]) for batch in batches)
        found: CompilerResult = compiler.compile_and_run(path, batches, rest.get("artefacts"))
        return found

    def batches() -> Any:
        yield from ({"image": part} for part in np.split(IMAGES, [5]))

    monkeypatch.setattr(module, "compile_in_process", compiled)
    report = handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / "bundle", data=batches, limit=8, float_model=PLAIN)
    assert report.samples == 8
    assert set(sizes) == {1}


@pytest.mark.parametrize("labelled", [True, False])
def test_scores_of_three_models_side_by_side(labelled: bool, tmp_path: Path, quick: None) -> None:
    data = {"image": IMAGES} | ({"labels": labels()} if labelled else {})
    report = handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / "bundle", data=data, float_model=PLAIN)
    scores = {s.name: s for s in report.scores}
    assert set(scores) == {"top1", "sqnr"}
    written = Predictor.of(QUANTIZED)({"image": IMAGES})["logits"]
    default = Predictor.of(tmp_path / "bundle" / "model.onnx", optimize=True)({"image": IMAGES})["logits"]
    original = Predictor.of(PLAIN)({"image": IMAGES})["logits"]
    if labelled:
        wanted = {"float": top1(original), "file": top1(written), "compiled": top1(default)}
    else:
        shares = [float((a.argmax(1) == original.argmax(1)).mean()) for a in (original, written, default)]
        wanted = dict(zip(("float", "file", "compiled"), shares, strict=True))
    assert scores["top1"].values == wanted
    assert scores["top1"].against == ("labels" if labelled else "float model")
    noise = float(((original.astype(float) - default) ** 2).sum())
    db = 10 * math.log10((original.astype(float) ** 2).sum() / noise)
    assert scores["sqnr"].values["compiled"] == pytest.approx(db if not labelled else scores["sqnr"].values["compiled"])
    assert {v.name: v.status for v in report.verdicts}["deployment"] == "green"
    assert (
        json.loads((tmp_path / "bundle" / "report.json").read_text())["scores"][0]["values"]["float"] == wanted["float"]
    )


def test_a_function_scores_the_compiled_model(tmp_path: Path, quick: None) -> None:
    def score(predict: Predictor) -> float:
        """Two samples at a time, which a compiled model takes one by one."""
        parts = [predict({"image": IMAGES[i : i + 2]})["logits"] for i in range(0, 12, 2)]
        return top1(np.concatenate(parts))

    def of_file(path: Path) -> float:
        return float(path.is_file())

    report = handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / "a", limit=2, score=[score, of_file], trace=False)
    assert report.scores[0].values["compiled"] == report.scores[0].values["file"] > 0
    assert "compiled" not in report.scores[1].values
    assert any("of_file reads an ONNX file" in r.message for r in report.remarks)
    seen: list[float] = []

    def restless(predict: Predictor) -> float:
        seen.append(0.0)
        return float(predict({"image": IMAGES[:1] + np.float32(len(seen))})["logits"].sum())

    with pytest.raises(UsageError, match="feeds") as caught:
        handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / "b", limit=2, score=restless)
    assert caught.value.code == "score-failed"


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, quantized = map(str, tiny.save_pair(tmp_path))
    np.savez(tmp_path / "data.npz", image=IMAGES, labels=labels())
    words = ["handoff", quantized, "--backend", "onnxruntime-cpu", "-o", str(tmp_path / "bundle"), "--json"]
    words += ["--data", str(tmp_path / "data.npz"), "--float", original, "--score", "f1", "--no-trace"]
    words += ["--max-drop", "50"]
    assert main.run(words) == 0
    figures = set(json.loads(capsys.readouterr().out)["figures"])
    assert {"score_f1_float", "score_f1_file", "score_f1_compiled"} <= figures
    command = json.loads((tmp_path / "bundle" / "manifest.json").read_text())["command"]
    assert command[-2:] == ["--score", "f1"]
    assert "--no-trace" in command
    assert command[command.index("--max-drop") + 1] == "50"


@pytest.mark.parametrize(
    ("score", "limits", "status", "said"),
    [
        # Eight labelled samples: the noise decides, within the user's limit for it.
        (None, {}, "green", "dB against the float model"),
        (None, {"min_sqnr": 200.0}, "red", "below 200 dB"),
        # A score decides, with the noise beside it.
        ("f1", {}, "green", "beside it"),
        ("cosine", {"max_drop": 1e-9}, "red", "points lost, above 1e-09 points"),
        (lambda predict: 2.0 - predict.name.startswith("the"), {}, "green", "0 of the score lost"),
    ],
)
def test_limits_and_scores_judge_as_in_validate(
    score: Any, limits: dict[str, float], status: str, said: str, tmp_path: Path, quick: None
) -> None:
    data = {"image": IMAGES[:8], "labels": labels()[:8]}
    report = handoff(
        QUANTIZED, "onnxruntime-cpu", tmp_path / "b", data=data, float_model=PLAIN, score=score, trace=False, **limits
    )
    judged = {v.name: v for v in report.verdicts}["accuracy"]
    assert (judged.status, said in judged.reason) == (status, True), judged.reason
    assert "sqnr" in {s.name for s in report.scores}
    assert (judged.reason in report.failures) is (status == "red")


def test_what_is_missing_for_a_judgement_is_named(tmp_path: Path, quick: None) -> None:
    original, quantized = tiny.save_pair(tmp_path)
    np.savez(tmp_path / "data.npz", image=IMAGES[:2])
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "a", data=tmp_path / "data.npz", trace=False)
    remedy = {v.name: v for v in report.verdicts}["accuracy"].remedy
    assert remedy == (
        f"onnxqat handoff {quantized} --backend onnxruntime-cpu --float FLOAT_MODEL --data {tmp_path}/data.npz -o bundle/"
    )
    report = handoff(
        quantized, "onnxruntime-cpu", tmp_path / "b", data=tmp_path / "data.npz", float_model=original, min_sqnr=200.0
    )
    remedy = {v.name: v for v in report.verdicts}["accuracy"].remedy
    assert remedy.startswith(f"onnxqat finetune {quantized} --data {tmp_path}/data.npz --teacher {original} -o ")


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_verdict_does_not_depend_on_the_trace(
    shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    right = module.compile_in_process

    def other(*arguments: Any, **rest: Any) -> CompilerResult:
        result = right(*arguments, **rest)
        outputs = tuple({n: v + np.float32(shift) for n, v in batch.items()} for batch in result.outputs)
        return CompilerResult(outputs, result.nodes, result.files)

    monkeypatch.setattr(module, "compile_in_process", other)
    reports = [
        handoff(QUANTIZED, "onnxruntime-cpu", tmp_path / str(trace), data={"image": IMAGES}, trace=trace)
        for trace in (True, False)
    ]
    one, two = reports
    assert (one.passed, one.verdicts, one.outputs) == (two.passed, two.verdicts, two.outputs)
    assert one.passed is (shift == 0.0)


def check(**given: Any) -> OutputCheck:
    usual = OutputCheck("y", "quantizer", 1.0, 1000, 900, 9.0, 1.0, 0.5, None, 25.0, 100)
    return dataclasses.replace(usual, **given)


def test_what_decides() -> None:
    cases: list[tuple[str, float, dict[str, Any]]] = [
        ("green", 40.0, {"beyond": 0.005}),
        ("amber", 40.0, {}),  # 25 dB: rounding that adds up
        ("red", 40.0, {"sqnr_db": 15.0}),
        ("amber", 20.0, {"sqnr_db": 15.0}),  # what quantization itself costs explains it
        ("red", 3.0, {"sqnr_db": 9.0}),
        ("red", 40.0, {"sqnr_db": -math.inf}),
        ("red", 40.0, {"sqnr_db": math.nan}),
        ("red", 40.0, {"differing_top1": 3, "samples": 4}),
        ("red", 40.0, {"differing_top1": 40, "samples": 100}),
        ("amber", 40.0, {"differing_top1": 12, "samples": 100, "beyond": 0.0}),
        ("amber", 40.0, {"differing_top1": 2, "samples": 4, "beyond": 0.54, "largest_steps": 17.0}),
        ("green", 40.0, {"differing_top1": 1, "samples": 100, "beyond": 0.0}),
        ("green", 40.0, {"largest_steps": 1.0, "beyond": 0.0}),
    ]
    for status, own, given in cases:
        assert judge_output(check(**given), own, 2.0, 0.01, "it").status == status, given
    assert "only by rounding ties" in judge_output(check(largest_steps=1.0, beyond=0.0), 40.0, 2.0, 0.01, "it").words
    floats = check(unit="range", largest_steps=0.0002, beyond=0.0)
    assert judge_output(floats, 40.0, 2.0, 0.01, "it").words.endswith("differ by at most 0.0002 of 1/255 of its range")
    assert allowed(0.2, 4) < 3 < allowed(0.2, 16)


def test_noise_of_an_output_with_nan_is_endless() -> None:
    reference = {"y": np.arange(6, dtype=np.float32).reshape(2, 3)}
    broken = {"y": reference["y"].copy()}
    broken["y"][1, 1] = np.nan
    assert check_outputs([broken], [reference], {}, 2.0)[0].sqnr_db == -math.inf
    assert check_outputs([reference], [reference], {}, 2.0)[0].sqnr_db == math.inf


LOGARITHM = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x) => (float[N,2] y) <float scale = {0.01}, uint8 zero = {0}> {
   codes = QuantizeLinear(x, scale, zero)
   v = DequantizeLinear(codes, scale, zero)
   y = Log(v)
}"""


@pytest.mark.parametrize("least", [0.5, 1e-3])
def test_an_infinity_that_float_does_not_have_is_red_whatever_the_score(
    least: float, tmp_path: Path, quick: None
) -> None:
    x = np.array([[1.0, 2.0], [1.0, least]], np.float32)  # a thousandth is the code 0
    report = handoff(
        onnx.parser.parse_model(LOGARITHM), "onnxruntime-cpu", tmp_path / "b", data={"x": x}, score=lambda predict: 1.0
    )
    judged = {v.name: v for v in report.verdicts}["accuracy"]
    assert ("NaN or infinite values in output 'y'" in judged.reason) is (least < 0.1)
    assert report.passed is (least > 0.1)


def test_a_file_for_another_target_is_no_pass(tmp_path: Path) -> None:
    """Made for onnxruntime, handed to a target that no compiler here knows."""
    made = insert_qdq(PLAIN, "onnxruntime-cpu", data={"image": IMAGES}).model
    report = handoff(made, "esp-dl", tmp_path / "bundle", data={"image": IMAGES})
    assert report.passed is False
    assert "made for onnxruntime-cpu, handed to esp-dl" in " ".join(report.failures)
    assert "insert-qdq" in report.verdicts[0].remedy
    taken = handoff(made, "openvino-cpu", tmp_path / "other", compiler="onnxruntime-cpu", data={"image": IMAGES})
    assert (taken.passed, taken.verdicts[0].status) == (True, "amber")
    for mine, target, other in (
        ("qnn-htp-a16", "qnn-htp", False),
        ("tensorrt", "qnn-htp", True),
        ("no-such", "qnn-htp", False),
    ):
        assert other_target(mine, schema.load(target)) is other


TOPK = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,6] s, float[1,6,2] b) => (float[1,4,2] boxes, float[1,4] scores, float[1,6] all)
<int64[1] k = {4}, int64[2] axes = {-1, 1}, int64[3] shape = {1, 1, 2}, int64[1] last = {-1}> {
   scores, i = TopK(s, k)
   j = Unsqueeze(i, last)
   e = Expand(j, shape)
   boxes = GatherElements<axis = 1>(b, e)
   all = Identity(s)
}"""


def test_rows_that_topk_chose_are_matched() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TOPK))
    assert selected(model) == ("boxes", "scores")
    assert selected(io.load(PLAIN)) == ()
    boxes = np.random.default_rng(0).uniform(0, 9, (1, 4, 2)).astype(np.float32)
    scores = np.array([[0.9, 0.5, 0.5, 0.1]], np.float32)
    order = [0, 2, 1, 3]
    rows = matched(
        [{"boxes": boxes[:, order] + 0.01, "scores": scores[:, order], "all": scores}],
        [{"boxes": boxes, "scores": scores, "all": scores[:, ::-1]}],
        ["boxes", "scores"],
    )
    assert (rows.moved, rows.rows, rows.others) == (2, 4, 0)
    np.testing.assert_array_equal(rows.found[0]["boxes"], boxes + np.float32(0.01))
    np.testing.assert_array_equal(rows.paired[0]["boxes"], boxes + np.float32(0.01))
    np.testing.assert_array_equal(rows.found[0]["all"], scores)
    # Rows without an axis of samples, as NonMaxSuppression gives them.
    rows = matched(
        [{"boxes": boxes[0, order], "scores": scores[0, order]}],
        [{"boxes": boxes[0], "scores": scores[0]}],
        ["boxes", "scores"],
    )
    assert rows.moved == 2
    np.testing.assert_array_equal(rows.found[0]["boxes"], boxes[0])
    # Another number of rows is not matched, and stays a difference.
    assert matched([{"scores": scores[:, :3]}], [{"scores": scores}], ["scores"]).rows == 0


def test_a_row_that_topk_chose_otherwise_is_counted_apart() -> None:
    boxes = np.random.default_rng(0).uniform(0, 9, (1, 5, 2)).astype(np.float32)
    reference = [{"boxes": boxes[:, :4]}]
    rows = matched([{"boxes": boxes[:, [1, 0, 2, 4]] + np.float32(0.01)}], reference, ["boxes"])
    assert (rows.moved, rows.rows, rows.others) == (2, 4, 1)
    assert rows.remark is not None
    assert "1 of 4 rows are others" in rows.remark.message
    checks = [check_outputs(one, reference, {}, 2.0) for one in (rows.found, rows.paired)]
    (check,) = rows.counted(*checks)
    assert (check.rows, check.other_rows) == (4, 1)
    step = float(np.ptp(boxes[:, :4])) / 255
    assert check.largest_steps > 20
    assert check.matched_steps is not None
    assert abs(check.matched_steps - 0.01 / step) < 1e-3


def test_validate_says_of_a_bundles_file_what_came_of_it(tmp_path: Path, quick: None) -> None:
    bundle = tmp_path / "bundle"
    made = handoff(QUANTIZED, "onnxruntime-cpu", bundle, data={"image": IMAGES}, float_model=PLAIN)
    found = validate(PLAIN, bundle / "model.onnx", {"image": IMAGES}, use_torch=False)
    wanted, verdict = ({v.name: v for v in report.verdicts}["deployment"] for report in (made, found))
    assert verdict.status == wanted.status
    assert verdict.reason == f"a file of the bundle bundle: {wanted.reason}"
    other = validate(PLAIN, bundle / "model.onnx", {"image": IMAGES}, use_torch=False, backend="openvino-cpu")
    assert "openvino-cpu, not compiled" in {v.name: v.reason for v in other.verdicts}["deployment"]
    model = onnx.load(bundle / "model.onnx")
    model.doc_string = "changed"
    onnx.save(model, bundle / "model.onnx")
    found = validate(PLAIN, bundle / "model.onnx", {"image": IMAGES}, use_torch=False)
    assert "changed after" in {v.name: v.reason for v in found.verdicts}["deployment"]


def test_what_commands_make_of_a_bundle_leaves_it_whole(tmp_path: Path, quick: None) -> None:
    bundle = tmp_path / "bundle"
    handoff(QUANTIZED, "onnxruntime-cpu", bundle, data={"image": IMAGES})
    made = insert_qdq(bundle / "float.onnx", data={"image": IMAGES})
    assert made.model == tmp_path / "bundle.qdq.onnx"
    given = Given("float.onnx", str(bundle / "model.onnx"))
    assert given.improve().endswith(f"-o {tmp_path / 'bundle.tuned.qdq.onnx'}")
    handoff(QUANTIZED, "onnxruntime-cpu", bundle, data={"image": IMAGES})
