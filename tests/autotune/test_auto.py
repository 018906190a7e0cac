"""The whole way in one call: cheap ways first, training where they are not enough, one file that is proven."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.autotune import budget as budgets
from onnxqat.autotune import moves, reconstruction, sensitivity, tuning
from onnxqat.autotune.budget import Budget
from onnxqat.autotune.moves import finetune_again
from onnxqat.autotune.scoring import FEWEST_TOP1, Judge
from onnxqat.autotune.search import Search
from onnxqat.cli import main
from onnxqat.data import inputs as model_inputs
from onnxqat.data.data import open_data
from onnxqat.errors import DataError, UsageError
from onnxqat.graph import io
from onnxqat.placement.table_overrides import Overrides
from onnxqat.report.build_auto import from_auto
from onnxqat.runtime.session import Session
from onnxqat.training import digits as demo
from onnxqat.validation.remedies import Given
from tests import once
from tests.validation import tiny

BITS = Overrides(weight_bits=2, activation_bits=2)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return tiny.write(None)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The demo's network, and the digits that it was trained on with their labels."""
    images, labels = demo.load()

    def make(folder: Path) -> None:
        demo.export(demo.train(images["train"], labels["train"]), folder / "digits.onnx")

    path = once.folder(tmp_path_factory, "demo_digits", make) / "digits.onnx"
    return {"model": onnx.load(path), "data": {"image": images["train"], "labels": labels["train"]}}


def data(model: onnx.ModelProto, samples: int) -> dict[str, np.ndarray]:
    """Images, and the classes that the float model gives them."""
    x = tiny.images(samples)
    logits = Session(io.load(model), optimize=True).run({"image": x})["logits"]
    return {"image": x, "labels": logits.argmax(1)}


def judge(model: onnx.ModelProto, source: Any) -> Judge:
    loaded = io.load(model)
    return Judge(Session(loaded, optimize=True), open_data(source, model_inputs.of_graph(loaded.graph)))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("30", 30.0)])
def test_budget_is_read(text: str, seconds: float) -> None:
    assert budgets.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "0m", "-3s", "5d"])
def test_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no length of time"):
        budgets.parse(text)


def test_judge_measures_what_there_is(model: onnx.ModelProto) -> None:
    labelled = data(model, FEWEST_TOP1)
    by_label = judge(model, labelled)
    assert (by_label.measure, by_label.float_accuracy) == ("accuracy", 1.0)
    without = judge(model, {"image": labelled["image"]})
    assert (without.measure, without.float_accuracy) == ("agreement", None)
    few = judge(model, {"image": labelled["image"][:50]})
    assert few.measure == "noise"

    session = Session(io.load(model), optimize=True)
    wrong = np.arange(FEWEST_TOP1) % 8 == 0

    def rolled(feeds: Any) -> dict[str, np.ndarray]:
        """The logits of one sample in eight belong to the class before."""
        rows = np.isin(feeds["image"].reshape(len(feeds["image"]), -1)[:, 0], labelled["image"][wrong, 0, 0, 0])
        found = session.run(feeds)["logits"]
        found[rows] = np.roll(found[rows], 1, axis=1)
        return {"logits": found}

    assert by_label.drop(rolled) == without.drop(rolled) == 12.5
    assert by_label.drop(session.run) == 0.0

    def louder(feeds: Any) -> dict[str, np.ndarray]:
        return {"logits": session.run(feeds)["logits"] * np.float32(1.25)}

    assert few.drop(louder) == pytest.approx(25.0)
    assert few.drop(lambda feeds: {"logits": louder(feeds)["logits"] * np.nan}) == np.inf


def test_labels_that_are_no_classes_judge_nothing(model: onnx.ModelProto) -> None:
    x = tiny.images(FEWEST_TOP1)
    found = judge(model, {"image": x, "labels": np.zeros((len(x), 4), np.float32)})
    assert found.measure == "agreement"
    assert found.drop(Session(io.load(model), optimize=True).run) == 0.0


def test_stops_at_the_first_that_is_good_enough(model: onnx.ModelProto, tmp_path: Path) -> None:
    before = model.SerializeToString()
    result = onnxqat.auto(model, data=data(model, 1200), output=tmp_path / "out", target_drop=3.0)
    assert model.SerializeToString() == before
    assert [a.name for a in result.attempts] == ["calibrated"]
    assert result.passed, result.failures
    assert (result.measure, result.samples) == ("accuracy", 240)
    assert result.validation.samples == 240
    assert result.bundle is not None
    assert (tmp_path / "out" / "bundle" / "model.onnx").exists()
    assert ir.load(result.model).metadata_props["onnxqat.backend"] == "onnxruntime-cpu"


def test_trains_where_calibration_is_not_enough(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MOST_STEPS_UNLABELLED", 40)
    monkeypatch.setattr(reconstruction, "MOST", 100)
    monkeypatch.setattr(finetune_again, "MOST", 2)
    given = {"image": data(model, 200)["image"]}
    result = onnxqat.auto(
        model, "academic", data=given, output=tmp_path, overrides=BITS, target_drop=0.0, budget=3600.0
    )
    names = [a.name for a in result.attempts]
    assert names[:3] == ["calibrated", "observer mse", "observer percentile"]
    assert names[3].endswith("compensated rounding")
    learned = ["worst blocks reconstructed", "fine-tuned", "reconstructed", "fine-tuned, round 2"]
    assert names[4:] == learned  # one hour is enough for all
    of_worst = result.attempts[4].commands[-1]
    assert of_worst.startswith("onnxqat reconstruct calibrated.qdq.onnx")
    assert "--recipe lsq --worst-blocks 4" in of_worst
    assert result.chosen in names[4:]
    assert result.drop == min(a.drop for a in result.attempts) < min(a.drop for a in result.attempts[:4])
    assert not result.passed
    assert result.failures[-1].startswith("the best of 8 attempts loses")
    planned = [each.name for each in result.plan]
    assert planned[:3] == ["calibrated", "observer mse", "observer percentile"]
    assert planned[-4:] == learned
    # What was judged in torch while training is what onnxruntime makes of the file.
    held = {"image": given["image"][4::5]}
    found = judge(model, held).drop(Session(ir.load(result.model), optimize=False).run)
    assert found == pytest.approx(result.drop, rel=1e-3)


def test_a_score_of_ones_own_decides(model: onnx.ModelProto, tmp_path: Path) -> None:
    seen: list[str] = []

    def score(path: Path) -> float:
        """As if the float model had 0.9 and each quantized one a little more than the one before."""
        seen.append(path.name)
        return 0.9 if len(seen) == 1 else 0.5 + 0.05 * len(seen)

    result = onnxqat.auto(
        model,
        data=data(model, 60),
        output=tmp_path,
        score=score,
        target_drop=0.25,
        overrides=Overrides(observer="minmax"),
    )
    assert seen[0] == "float.onnx"
    assert (result.measure, len(result.attempts)) == ("score", 2)
    assert result.drop == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("seconds", "score", "epoch", "labelled", "steps"),
    [
        (100.0, 0.0, 50, False, 1000),
        (10.0, 0.0, None, True, 100),
        (22.0, 5.0, 50, False, 109),
        (1e9, 0.0, 7, True, 210),
    ],
)
def test_length_follows_from_the_time(
    seconds: float, score: float, epoch: int | None, labelled: bool, steps: int
) -> None:
    run = tuning.Tuning(None, labelled, None, None, None, None, 0.0, 0, None)  # type: ignore[arg-type]
    assert run._length(seconds, 0.1, score, epoch) == steps


@pytest.mark.parametrize("own_score", [False, True])
def test_training_ends_once_the_target_is_met(
    digits: dict[str, Any], tmp_path: Path, own_score: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits at 2 bits, BatchNormalization kept: the longest run is 990 steps, and the target needs fewer."""
    # Four blocks are all that this network has, and meet the target too.
    monkeypatch.setattr(moves, "ORDER", tuple(name for name in moves.ORDER if name != "reconstruct_worst"))
    held = judge(digits["model"], {name: array[4::5] for name, array in digits["data"].items()})
    scored: list[str] = []

    def score(path: Path) -> float:
        """Points of top-1."""
        scored.append(path.name)
        return -held.drop(Session(ir.load(path), optimize=False).run)

    result = onnxqat.auto(
        digits["model"],
        "academic",
        data=digits["data"],
        output=tmp_path,
        overrides=dataclasses.replace(BITS, observer="mse"),
        target_drop=1.0,
        budget=3600.0,
        score=score if own_score else None,
    )
    assert result.chosen == "fine-tuned"
    assert result.attempts[1].drop > 1.0
    assert result.drop <= 1.0
    assert not [failure for failure in result.failures if "attempts" in failure]
    told = [re.search(r"met the target after (\d+) of (\d+) steps", r.message) for r in result.remarks]
    (found,) = [line for line in told if line is not None]
    done, planned = int(found[1]), int(found[2])
    assert 0 < done < planned  # how soon differs from one processor to another
    assert len(scored) >= 4 if own_score else not scored  # float, calibrated, on the way, the result
    # The file that was written is the one that met it.
    assert not any(node.op_type == "BatchNormalization" for node in ir.load(result.model).graph)
    assert held.drop(Session(ir.load(result.model), optimize=False).run) == pytest.approx(result.drop)


def test_without_time_nothing_is_trained(model: onnx.ModelProto, tmp_path: Path) -> None:
    result = onnxqat.auto(
        model,
        "academic",
        data={"image": tiny.images(40)},
        output=tmp_path,
        overrides=BITS,
        target_drop=0.0,
        budget=0.01,
    )
    assert [a.name for a in result.attempts] == ["calibrated"]
    assert any("no time for: observer mse, observer percentile" in r.message for r in result.remarks)
    given = Given("m.onnx", "m.qdq.onnx", "d.npz", target="academic")
    again = "onnxqat auto m.onnx --budget 1h"
    assert from_auto(result, given, longer=again).next_command == again
    ended = dataclasses.replace(result, cut_short=False)  # more time would change nothing
    look = "onnxqat profile m.onnx m.qdq.onnx --data d.npz"
    assert from_auto(ended, given, longer=again).next_command == look
    met = dataclasses.replace(ended, failures=(), drop=-1.0)
    assert from_auto(met, given, longer=again).next_command.startswith("onnxqat explain ")


def test_commands_make_the_same_file(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(moves, "ORDER", moves.ORDER[:3])
    onnx.save(model, "m.onnx")
    np.savez("d.npz", image=tiny.images(50))
    overrides = Overrides(weight_bits=4, activation_bits=8, exclude=("Gemm_*",))
    result = onnxqat.auto("m.onnx", "academic", data="d.npz", output="out", overrides=overrides, target_drop=-1.0)
    (line,) = result.commands
    assert "--calibration 'd.npz#without-every-5'" in line
    assert main.run(shlex.split(line)[1:]) == 0
    wanted, found = (
        {name: v.const_value.numpy().tobytes() for name, v in ir.load(path).graph.initializers.items() if v.const_value}
        for path in (result.model, "calibrated.qdq.onnx")
    )
    assert found == wanted


def ten_layers() -> tuple[onnx.ModelProto, np.ndarray]:
    """Ten layers, of which `conv5` reads a tensor with an outlier channel, and samples for them."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8, 1, 1)).astype(np.float32) * np.float32(0.5) for _ in range(10)]
    weights[4][0] *= np.float32(100.0)  # one channel of x5 is large, and counts for little
    weights[5][:, 0] *= np.float32(0.01)
    nodes = []
    for place in range(10):
        nodes.append(helper.make_node("Conv", [f"x{place}", f"w{place}"], [f"c{place}"], name=f"conv{place}"))
        nodes.append(helper.make_node("Relu", [f"c{place}"], [f"x{place + 1}"], name=f"relu{place}"))
    ends = [helper.make_tensor_value_info(name, 1, ["N", 8, 6, 6]) for name in ("x0", "x5", "x10")]
    constants = [numpy_helper.from_array(w, f"w{place}") for place, w in enumerate(weights)]
    proto = helper.make_model(
        helper.make_graph(nodes, "ten", ends[:1], ends[1:], constants),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    x = rng.standard_normal((40, 8, 6, 6)).astype(np.float32)
    return proto, x


def test_the_most_sensitive_layers_are_relieved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten layers may be in 16 bits or float."""
    monkeypatch.setattr(moves, "ORDER", ("calibrate", "sensitive_layers"))
    proto, x = ten_layers()
    result = onnxqat.auto(proto, data={"x0": x}, output=tmp_path, target_drop=-1.0, budget=3600.0)
    assert [a.name for a in result.attempts[1:]] == ["most sensitive layers: 1", "most sensitive layers: 2"]
    assert result.chosen == "most sensitive layers: 2"
    (line,) = result.commands
    assert len(re.findall(r"--(?:bits-of conv\d=8,16|exclude conv\d) ", line)) == 2


def test_gradients_name_the_layer_that_switching_names() -> None:
    """Gradients of a few samples say what a run for each quantizer says: the layer with codes of 5 bits."""
    proto, x = ten_layers()
    narrow = Overrides(node_bits=(("conv6", 5, 8),))
    options: dict[str, Any] = {"fast": True, "guard": False, "rounding": "nearest", "overrides": narrow}
    quantized = onnxqat.insert_qdq(proto, "tensorrt", data={"x0": x}, **options).model
    data = open_data({"x0": x}, model_inputs.of_graph(ir.from_proto(proto).graph))
    found = sensitivity.ranked(proto, ir.from_proto(quantized), data)
    switched = onnxqat.profile(proto, quantized, {"x0": x}, ways=("alone",))
    assert found[0] == switched.layers[0].node == "conv6"
    assert set(found) == {layer.node for layer in switched.layers}


def test_several_backends_share_the_time(
    model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **data(model, 60))
    line = ["auto", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--target-drop", "100", "--json"]
    assert main.run([*line, "--backend", "onnxruntime-cpu", "--backend", "academic"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["backend"] for row in report["tables"]["backends"]] == ["onnxruntime-cpu", "academic"]
    for name in ("onnxruntime-cpu", "academic"):
        assert (tmp_path / "m.auto" / name / "model.qdq.onnx").exists()
        assert any(remark["source"].startswith(f"{name}, ") for remark in report["remarks"])
    assert main.run([*line[:-1], "--backend", "onnxruntime-cpu", "--backend", "academic"]) == 0
    (row,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("  onnxruntime-cpu  yes")]
    assert "%" not in row  # integer nodes are a count
    assert main.run([*line, "--backend", "academic", "--backend", "academic"]) == 2


def test_data_that_can_be_read_once_is_refused(model: onnx.ModelProto, tmp_path: Path) -> None:
    batches = ({"image": tiny.images(8, seed=s)} for s in range(6))
    with pytest.raises(DataError, match="only once"):
        onnxqat.auto(model, data=batches, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_batch_learns_and_judges(model: onnx.ModelProto, tmp_path: Path) -> None:
    result = onnxqat.auto(model, data=[{"image": tiny.images(32)}], output=tmp_path)
    assert (result.measure, result.target_drop) == ("noise", 3.0)
    assert any("judged on them, too" in r.message for r in result.remarks)
    assert result.passed


def test_command_prints_what_was_tried(
    model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **data(model, 60))
    line = ["auto", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--json"]
    assert main.run([*line, "--target-drop", "100"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "auto"
    assert (tmp_path / "m.auto" / "report.html").exists()
    assert (
        main.run([*line, "--target-drop=-100", "--budget", "0.001s", "--exclude", "Conv_conv1", "--exclude", "Gemm_*"])
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    assert any("no time for: " in remark["message"] for remark in report["remarks"])
    words = ["onnxqat", "auto", line[1], "--budget", "0.002s", "--target-drop", "-100", "--data", line[3]]
    assert report["next_command"] == shlex.join([*words, "--exclude", "Conv_conv1", "--exclude", "Gemm_*", "--json"])
    assert main.run(["auto", str(tmp_path / "m.onnx")]) == 2


def test_budget_counts_down() -> None:
    clock = Budget(1000.0)
    assert 0.0 <= clock.spent < 1000.0
    assert clock.left <= 1000.0
    with pytest.raises(UsageError, match="above 0"):
        Budget(0.0)


def test_a_metric_by_name_decides(model: onnx.ModelProto, tmp_path: Path) -> None:
    result = onnxqat.auto(
        model, data=data(model, 60), output=tmp_path, score="sqnr", budget=1.0, overrides=Overrides(observer="minmax")
    )
    assert result.score is not None
    assert (result.measure, result.target_drop, result.score.values["float"]) == ("score", 3.0, math.inf)
    assert result.drop == pytest.approx(100 * 10 ** (-result.score.values["quantized"] / 20))


def test_a_reconstruction_for_which_there_is_no_time_is_named(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "ORDER", ("calibrate", "reconstruct"))
    monkeypatch.setattr(reconstruction, "FEWEST", 10**9)  # as where a step of the first block takes too long
    result = onnxqat.auto(model, data={"image": tiny.images(40)}, output=tmp_path, target_drop=-1.0, budget=3600.0)
    assert [a.name for a in result.attempts] == ["calibrated"]
    assert any(remark.message == "no time for: reconstructed" for remark in result.remarks)


@pytest.mark.parametrize(("most", "steps"), [(5, 5), (3, 2)])
def test_a_short_reconstruction_times_a_longer_one(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, steps: int
) -> None:
    """What was learned to take the time is a result, and is kept unless twice as much fits in."""
    monkeypatch.setattr(moves, "ORDER", ("calibrate", "reconstruct"))
    monkeypatch.setattr(reconstruction, "FEWEST", 2)
    monkeypatch.setattr(reconstruction, "MOST", most)
    result = onnxqat.auto(model, data={"image": tiny.images(40)}, output=tmp_path, target_drop=-1.0, budget=3600.0)
    learned = result.attempts[-1]
    assert learned.name == "reconstructed"
    assert f"--iterations {steps} " in learned.commands[-1]


def test_without_torch_nothing_is_trained(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "trains", False)
    monkeypatch.setattr(moves, "ORDER", ("calibrate", "finetune", "reconstruct", "finetune_again"))
    result = onnxqat.auto(model, data={"image": tiny.images(40)}, output=tmp_path, target_drop=-1.0)
    assert [a.name for a in result.attempts] == ["calibrated"]
    assert [planned.name for planned in result.plan] == ["calibrated"]
    assert any("torch is not installed" in remark.message for remark in result.remarks)
