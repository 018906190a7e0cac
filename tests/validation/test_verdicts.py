"""Three verdicts: what is red, amber and green, and what decides."""

import math
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxqat
from onnxqat.errors import UsageError
from onnxqat.metrics import Predictor, Scored
from onnxqat.metrics._accuracy import Accuracy
from onnxqat.metrics._limits import AGREEMENT, COSINE, FUNCTION, LABELLED, DropLimits
from onnxqat.metrics._paired import Paired
from onnxqat.validation.accuracy import AccuracyLimits, Loss, Noise, judge
from onnxqat.validation.compare import Comparison
from onnxqat.validation.result import DEFAULT, FLOAT, PLAIN
from onnxqat.validation.validate import validate
from onnxqat.validation.verdicts import judge_accuracy, parted_sessions
from onnxqat.verdict import AMBER_SQNR, MIN_SQNR, Status, Verdict
from tests.validation import tiny


def output(sqnr: float, run: str = PLAIN, against: str = FLOAT, differing: float | None = None) -> Comparison:
    return Comparison("y", run, against, 500, None, 1.0, sqnr, 0, differing)


def tops(
    base: float, quantized: float, *, samples: int = 500, against: str = "labels", kept: float = 1.0, most: float = 0.1
) -> list[Accuracy]:
    """Top-1 of the two models; `kept` of what float has right is right, as far as may be; `most` have one label."""
    one, two = round(base * samples), round(quantized * samples)
    both = min(round(kept * one), two)
    paired = Paired(samples, two, one - both, two - both, most)
    return [Accuracy(FLOAT, base, None, samples, against), Accuracy(PLAIN, quantized, None, samples, against, paired)]


NOBODY = AccuracyLimits()


@pytest.mark.parametrize(
    ("sqnr", "accuracies", "limits", "status"),
    [
        (28.0, [], NOBODY, "green"),
        (15.0, [], NOBODY, "amber"),
        (3.0, [], NOBODY, "red"),
        (math.nan, [], NOBODY, "red"),
        (-math.inf, [], NOBODY, "red"),
        (math.inf, [], NOBODY, "green"),
        (3.0, [], AccuracyLimits(min_sqnr=2.0), "amber"),
        # Labels decide: a trained W4A4 network has other logits and the same classes.
        (3.0, tops(0.90, 0.895), NOBODY, "green"),
        (28.0, tops(0.90, 0.88), NOBODY, "amber"),
        (28.0, tops(0.90, 0.80), NOBODY, "red"),
        (28.0, tops(0.90, 0.88), AccuracyLimits(max_drop=1.0), "red"),
        (28.0, tops(0.90, 0.80), AccuracyLimits(max_drop=15.0), "amber"),
        # A network that always gives the commonest answer is as good: labels say nothing.
        (3.0, tops(0.90, 0.90, most=0.9), NOBODY, "red"),
        (28.0, tops(0.90, 0.90, most=0.9), NOBODY, "green"),
        # 24 equal answers leave room for a loss of 10 points, so that the noise decides; 64 leave room for less than 5.
        (3.0, tops(0.90, 0.90, samples=24), NOBODY, "red"),
        (28.0, tops(0.90, 0.90, samples=24), NOBODY, "green"),
        (3.0, tops(0.90, 0.90, samples=64), NOBODY, "amber"),
        (28.0, tops(0.90, 0.90, samples=64), NOBODY, "green"),
        (3.0, tops(0.90, 0.90, samples=64, kept=0.9), NOBODY, "red"),
        (3.0, tops(0.90, 0.90, samples=64, most=0.9), NOBODY, "red"),
        # Trained on labels: with other logits no worse than an undertrained float model, as far as so many can show.
        (5.5, tops(0.40, 0.80, samples=24), NOBODY, "amber"),
        (5.5, tops(0.45, 0.50, samples=96, kept=0.8), NOBODY, "amber"),
        (5.5, tops(0.40, 0.45, samples=24, kept=0.8), NOBODY, "red"),
        (5.5, tops(0.40, 0.80, samples=24, most=0.8), NOBODY, "red"),
        # Worse by more than chance, whatever the noise; by no more than chance, a look.
        (28.0, tops(0.90, 0.50, samples=24), NOBODY, "red"),
        (28.0, tops(0.90, 0.78, samples=24), NOBODY, "amber"),
        # Half of what little there was is lost.
        (28.0, tops(0.08, 0.035, most=0.001), NOBODY, "red"),
        # Without labels, agreement and noise, whichever is worse.
        (28.0, tops(1.0, 0.99, against="top-1 of the float model"), NOBODY, "green"),
        (28.0, tops(1.0, 0.92, against="top-1 of the float model"), NOBODY, "amber"),
        (28.0, tops(1.0, 0.70, against="top-1 of the float model"), NOBODY, "red"),
        (3.0, tops(1.0, 1.0, against="top-1 of the float model"), NOBODY, "red"),
    ],
)
def test_accuracy(sqnr: float, accuracies: list[Accuracy], limits: AccuracyLimits, status: Status) -> None:
    found, reason = judge_accuracy([output(math.inf), output(sqnr)], accuracies, limits)
    assert (found, bool(reason)) == (status, True)


def test_whole_numbers_are_counted_and_not_measured_in_decibels() -> None:
    assert judge_accuracy([output(-20.0, differing=0.01)], [], NOBODY)[0] == "green"
    assert judge_accuracy([output(40.0, differing=0.5)], [], NOBODY)[0] == "red"


@pytest.mark.parametrize(
    ("own", "session", "parted"),
    [
        (30.0, 16.0, True),  # another arithmetic, such as a pool that counts its padding otherwise
        (12.0, 14.0, False),  # ties that fall the other way, in a network with as much noise of its own
        (30.0, 24.0, False),
        (math.inf, 19.0, True),
        (3.0, -2.0, False),  # the accuracy verdict fails this file, not parity
        (3.0, -9.0, True),
    ],
)
def test_a_session_that_computes_otherwise(own: float, session: float, parted: bool) -> None:
    pairs = [output(own), output(session, DEFAULT, PLAIN)]
    assert bool(parted_sessions(pairs)) is parted


def by_name(found: tuple[Verdict, ...]) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in found}


def test_a_dead_network_does_not_pass() -> None:
    """With scales of 1e-45, torch and onnxruntime agree on an output that says nothing."""
    float_model, quantized = tiny.pair()
    for tensor in quantized.graph.initializer:
        if tensor.name.endswith("_scale"):
            scale = np.full_like(numpy_helper.to_array(tensor), 1e-45)
            tensor.CopyFrom(numpy_helper.from_array(scale, tensor.name))
    report = validate(float_model, quantized, {"image": tiny.images(8)}, use_torch=False)
    assert by_name(report.verdicts)["accuracy"].status == "red"
    assert not report.passed


def bounded_log(*, quantized: bool) -> onnx.ModelProto:
    """Max(Log(x), -5): where x rounds to 0, an infinity that the output does not show."""
    pair = """
      codes = QuantizeLinear(x, scale, zero)
      v = DequantizeLinear(codes, scale, zero)
      log = Log(v)"""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4] x) => (float[N,4] y) <float scale = {{0.01}}, uint8 zero = {{0}}, float least = {{-5}}> {{
      {pair if quantized else "log = Log(x)"}
      y = Max(log, least)
    }}"""
    return onnx.parser.parse_model(text)


def test_an_infinity_that_no_output_shows_is_red() -> None:
    x = np.full((2, 4), 1e-3, np.float32)
    report = validate(bounded_log(quantized=False), bounded_log(quantized=True), {"x": x}, use_torch=False)
    assert by_name(report.verdicts)["accuracy"].status == "red"
    assert "not finite where the float model is: tensor 'log'" in report.failures[0]


def test_remedies_are_commands_that_differ_and_keep_data(tmp_path: object) -> None:
    paths = tiny.save_pair(tmp_path)
    np.savez(f"{tmp_path}/my data.npz", image=tiny.images(8))
    report = validate(*paths, f"{tmp_path}/my data.npz", use_torch=False, min_sqnr=200.0, backend="qnn-htp")
    found = by_name(report.verdicts)
    assert found["accuracy"].status == "red"
    assert found["accuracy"].remedy.startswith("onnxqat finetune ")
    assert f"'{tmp_path}/my data.npz'" in found["accuracy"].remedy
    assert found["deployment"].status == "amber"
    assert "--backend qnn-htp" in found["deployment"].remedy


def test_what_judges_is_not_trained_on(tmp_path: Path) -> None:
    float_path, path = tiny.save_pair(tmp_path)
    np.savez(tmp_path / "judge.npz", image=tiny.images(8))
    np.savez(tmp_path / "learn.npz", image=tiny.images(8, seed=3))
    model = onnx.load(path)
    for key, value in (("onnxqat.data", "learn.npz"), ("onnxqat.data_sha256", "0" * 64)):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, path)
    report = validate(float_path, path, tmp_path / "judge.npz", use_torch=False, min_sqnr=200.0)
    remedy = by_name(report.verdicts)["accuracy"].remedy
    assert "learn.npz" in remedy
    assert "judge.npz" not in remedy
    profiled = onnxqat.profile(float_path, path, tmp_path / "judge.npz", limit=2, ways=["alone"])
    assert Path(profiled.source).name == "learn.npz"


def test_a_file_for_another_target_is_red() -> None:
    float_model, quantized = tiny.pair()
    entry = quantized.metadata_props.add()
    entry.key, entry.value = "onnxqat.backend", "tensorrt"
    report = validate(float_model, quantized, {"image": tiny.images(4)}, use_torch=False, backend="qnn-htp")
    assert by_name(report.verdicts)["deployment"].status == "red"
    assert "placed for tensorrt, not for qnn-htp" in report.failures[-1]


def test_random_data_are_no_accuracy() -> None:
    float_model, quantized = tiny.pair()
    report = validate(float_model, quantized, random_data=True, limit=2, use_torch=False, min_sqnr=200.0)
    assert by_name(report.verdicts)["accuracy"].status == "amber"


def test_limits_are_those_that_the_page_states() -> None:
    assert (LABELLED.red, AGREEMENT.red, MIN_SQNR, AMBER_SQNR) == (5.0, 20.0, 10.0, 20.0)


@pytest.mark.parametrize("counted", [0, 1])
def test_a_pool_that_the_integer_kernel_counts_otherwise_stays_float(counted: int) -> None:
    """onnxruntime's QLinearAveragePool divides by another count where ceil_mode and count_include_pad meet."""
    pool = "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,3,8,8] x) => (float[N,3,h,w] y) {{
      y = AveragePool<{pool}, count_include_pad={counted}>(x)
    }}""")
    x = np.random.default_rng(0).uniform(1, 2, (8, 3, 8, 8)).astype(np.float32)
    result = onnxqat.insert_qdq(model, data={"x": x})
    reason = "the backend takes AveragePool only with ceil_mode=0 or count_include_pad=0"
    assert dict(result.plan.float_nodes) == ({"y_AveragePool": reason} if counted else {})


def scored(name: str, before: float, after: float, limits: DropLimits, against: str = "labels") -> Scored:
    return Scored(name, against, {FLOAT: before, PLAIN: after}, {PLAIN: before - after}, limits)


@pytest.mark.parametrize(
    ("sqnr", "score", "samples", "limits", "status", "said"),
    [
        # The score decides; the noise is shown beside it.
        (3.0, scored("f1", 0.80, 0.795, LABELLED), 500, NOBODY, "green", "0.5 points lost; 3.0 dB beside it"),
        (40.0, scored("f1", 0.80, 0.78, LABELLED), 500, NOBODY, "amber", "2 points lost, above 1 point"),
        # 0.992 - 0.982 is 0.010000000000000009 in doubles; one point is not above one point.
        (40.0, scored("f1", 0.992, 0.982, LABELLED), 500, NOBODY, "green", "1 point lost; 40.0 dB beside it"),
        (40.0, scored("f1", 0.80, 0.70, LABELLED), 500, NOBODY, "red", "10 points lost, above 5 points"),
        (40.0, scored("f1", 0.80, 0.70, LABELLED), 500, AccuracyLimits(max_drop=12), "amber", "above 1 point"),
        (40.0, scored("coco-map", 0.04, 0.01, LABELLED), 500, NOBODY, "red", "above 2 points"),
        (40.0, scored("f1", 0.80, -math.inf, LABELLED), 500, NOBODY, "red", "-inf"),
        (40.0, scored("cosine", 1.0, 0.97, COSINE, "float model"), 500, NOBODY, "amber", "3 points lost"),
        # A function counts in a unit of its own: percent of what float scores.
        (3.0, scored("mine", 200.0, 199.0, FUNCTION, "function"), 500, NOBODY, "green", "1 of the score lost"),
        (3.0, scored("mine", 200.0, 195.0, FUNCTION, "function"), 500, NOBODY, "amber", "above 2 of the score"),
        (40.0, scored("mine", -2.0, -2.2, FUNCTION, "function"), 500, NOBODY, "red", "above 0.1 of the score"),
        (3.0, scored("mine", 200.0, 150.0, FUNCTION, "function"), 500, AccuracyLimits(max_drop=60), "amber", "of the"),
        # A limit of the user's for the noise holds whatever a score says.
        (15.0, scored("f1", 0.80, 0.80, LABELLED), 500, AccuracyLimits(min_sqnr=16), "red", "below 16 dB"),
        # Of few samples one counts more than a limit: then both have to be past theirs.
        (40.0, scored("f1", 0.80, 0.70, LABELLED), 16, NOBODY, "amber", "10 points"),
        (3.0, scored("f1", 0.80, 0.70, LABELLED), 16, NOBODY, "red", "10 points"),
        (40.0, scored("f1", 0.80, 0.60, LABELLED), 16, NOBODY, "red", "20 points"),
        # Nothing can be lost of a score that float does not have.
        (40.0, scored("spearman", -math.inf, 0.1, LABELLED), 500, NOBODY, "amber", "not a number"),
        (3.0, scored("spearman", -math.inf, 0.1, LABELLED), 500, NOBODY, "red", "3.0 dB"),
    ],
)
def test_a_score_decides(
    sqnr: float, score: Scored, samples: int, limits: AccuracyLimits, status: Status, said: str
) -> None:
    found, reason = judge_accuracy([output(sqnr)], tops(0.9, 0.1), limits, [score], samples=samples)
    assert (found, said in reason) == (status, True), reason


@pytest.mark.parametrize(
    ("paired", "asked", "status"),
    [
        # Five points won, by answers that differ so often that five may be lost all the same.
        (Paired(60, 29, lost=10, won=13, commonest=0.1), True, "amber"),
        (Paired(60, 29, lost=10, won=13, commonest=0.1), False, "red"),
        (Paired(60, 29, lost=10, won=13, commonest=0.5), True, "red"),  # the commonest answer would be right as often
        (Paired(60, 23, lost=12, won=8, commonest=0.1), True, "red"),  # past its limit too
    ],
)
def test_few_labels_of_a_score_that_was_asked_for(paired: Paired, asked: bool, status: Status) -> None:
    before, after = ((paired.right + n) / paired.samples for n in (paired.lost - paired.won, 0))
    loss = Loss("top1", "labels", before, after, before - after, LABELLED, "onnxruntime", paired.samples, paired)
    found = judge([loss], Noise("red", 7.0, "7.0 dB"), NOBODY, asked=asked)
    assert found is not None
    assert (found[0], "60 samples are too few to decide" in found[1]) == (status, True), found


def test_a_gain_beyond_chance_is_no_loss() -> None:
    paired = Paired(samples=16, right=6, lost=0, won=8, commonest=0.1)
    loss = Loss("top1", "labels", 6 / 16, 14 / 16, -0.5, LABELLED, "onnxruntime", 16, paired)
    found = judge([loss], None, NOBODY, asked=False)
    assert found is not None
    assert (found[0], "so many samples show that at least" in found[1], "lost" in found[1]) == ("green", True, False)


def test_the_worst_of_several_scores_counts() -> None:
    both = [scored("f1", 0.8, 0.8, LABELLED), scored("miou", 0.8, 0.6, LABELLED)]
    found, reason = judge_accuracy([output(40.0)], [], NOBODY, both, samples=500)
    assert (found, reason.startswith("miou")) == ("red", True)


def test_a_score_of_the_command_decides() -> None:
    float_model, quantized = tiny.pair()
    data = {"image": tiny.images(8)}

    def always(predict: Predictor) -> float:
        return 1.0

    good = validate(float_model, quantized, data, use_torch=False, score=[always, "cosine"])
    assert by_name(good.verdicts)["accuracy"].status == "green"
    assert "beside it" in by_name(good.verdicts)["accuracy"].reason
    with pytest.raises(UsageError, match="by its decibels") as caught:
        validate(float_model, quantized, data, use_torch=False, score="sqnr", max_drop=1.0)
    assert caught.value.code == "option-invalid"


def test_a_score_does_not_pass_a_dead_network() -> None:
    """A scale that leaves nothing gives the same for every sample, which no score lets pass."""
    float_model, quantized = tiny.pair()
    for tensor in quantized.graph.initializer:
        if tensor.name == "logits_float_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(1e30), tensor.name))
    data = {"image": tiny.images(8)}
    report = validate(float_model, quantized, data, use_torch=False, score=lambda predict: 1.0)
    assert by_name(report.verdicts)["accuracy"].status == "red"
    assert "every sample gives the same outputs" in report.failures[0]
