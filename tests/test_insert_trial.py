"""insert_qdq runs a few calibration samples through what it made."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.backends.selection import Overrides
from onnxqat.errors import CheckError
from onnxqat.report import build, terminal
from tests.validation import tiny


def softplus(*, mask: bool) -> onnx.ModelProto:
    """Log(Exp(x W) + 1) V, whose Log meets a code of 0; with a legitimate mask of -inf behind it."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((16, 16)) * 2,
        "one": np.ones(()),
        "v": rng.standard_normal((16, 6)) / 4,
        "least": np.full((), -np.inf),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="h"),
        helper.make_node("Exp", ["h"], ["e"], name="e"),
        helper.make_node("Add", ["e", "one"], ["sum"], name="sum"),
        helper.make_node("Log", ["sum"], ["log"], name="log"),
        helper.make_node("MatMul", ["log", "v"], ["s"], name="s"),
        helper.make_node("Where", ["keep", "s", "least"], ["masked"], name="masked"),
        helper.make_node("Softmax", ["masked" if mask else "s"], ["y"], name="y"),
    ]
    keep = numpy_helper.from_array(np.tril(np.ones((6, 6), bool)), "keep")
    graph = helper.make_graph(
        nodes if mask else [n for n in nodes if n.name != "masked"],
        "g",
        [helper.make_tensor_value_info("x", 1, ["B", 6, 16])],
        [helper.make_tensor_value_info("y", 1, ["B", 6, 6])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items() if mask or n != "least"]
        + ([keep] if mask else []),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("mask", [False, True])
def test_what_is_not_finite_is_an_error_at_its_origin(mask: bool, tmp_path: Path) -> None:
    data = [{"x": np.random.default_rng(1).standard_normal((2, 6, 16)).astype(np.float32)} for _ in range(2)]
    with pytest.raises(CheckError) as caught:
        onnxqat.insert_qdq(softplus(mask=mask), calibration=data, output=tmp_path / "q.onnx")
    assert caught.value.code == "quantized-not-finite"
    assert "tensor 'log' of node 'log' (Log)" in caught.value.message
    assert "--exclude 'log'" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()


def test_a_good_file_is_green() -> None:
    result = onnxqat.insert_qdq(tiny.pair()[0], calibration={"image": tiny.images()})
    assert result.trial is not None
    assert result.trial.samples == 8
    assert (result.trial.status, result.trial.costly) == ("green", ())
    text = terminal.to_text(build.from_insert(result))
    assert "accuracy  GREEN" in text
    assert "signal to noise of logits" in text


def test_a_start_for_training_is_red_and_names_what_costs_most(tmp_path: Path) -> None:
    onnx.save(tiny.pair()[0], tmp_path / "model.onnx")
    np.savez(tmp_path / "my data.npz", image=tiny.images())
    two = Overrides(weight_bits=2, activation_bits=2)
    data = tmp_path / "my data.npz"
    result = onnxqat.insert_qdq(tmp_path / "model.onnx", calibration=data, overrides=two)
    assert result.trial is not None
    assert result.trial.status == "red"
    assert len(result.trial.costly) == 3
    report = build.from_insert(result, source="model.onnx", data=str(data), preprocess=None)
    (verdict,) = report.verdicts
    assert "a start for training, not for deployment" in verdict.reason
    assert result.trial.costly[0][0] in verdict.reason
    assert verdict.remedy.startswith("onnxqat finetune ")
    assert f"--data '{data}'" in verdict.remedy
    assert report.passed is None  # the work was done


def test_nothing_is_run_on_random_data_and_on_data_that_are_read_once() -> None:
    model = ir.from_proto(tiny.pair()[0])
    assert onnxqat.insert_qdq(model, random_data=True).trial is None
    once = iter([{"image": tiny.images(4)}])
    assert onnxqat.insert_qdq(model, calibration=once, equalize=False).trial is None
