"""insert_qdq runs a few calibration samples through what it made."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.backends.selection import Overrides
from onnxqat.calibration import not_finite
from onnxqat.errors import CheckError
from onnxqat.report import build, terminal
from tests.validation import tiny


def shares(*, mask: bool) -> onnx.ModelProto:
    """(x V) / (|x W| + 0.001), whose denominator meets a code of 0; with a legitimate mask of -inf behind it."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((16, 6)) * 2,
        "little": np.full((), 0.001),
        "v": rng.standard_normal((16, 6)) / 4,
        "least": np.full((), -np.inf),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="h"),
        helper.make_node("Abs", ["h"], ["size"], name="size"),
        helper.make_node("Add", ["size", "little"], ["sum"], name="sum"),
        helper.make_node("MatMul", ["x", "v"], ["part"], name="part"),
        helper.make_node("Div", ["part", "sum"], ["s"], name="s"),
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
        onnxqat.insert_qdq(shares(mask=mask), calibration=data, output=tmp_path / "q.onnx", guard=False)
    assert caught.value.code == "quantized-not-finite"
    assert "tensor 's' of node 's' (Div)" in caught.value.message
    assert "--exclude 's'" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()


CHOICE = """
<ir_version: 8, opset_import: ["" : 17]>
choose (float[1, 3] x) => (float[1, 1] y)
<int64[4] pads = {0, 0, 0, 1}, float least = {-inf}, int64 one = {1}>
{
    s = Mul (x, factor)
    padded = Pad (s, pads, least)
    best = ArgMax <axis = 1> (s)
    behind = Add (best, one)
    y = GatherElements <axis = 1> (padded, behind)
}"""


def choice(*factor: float) -> ir.Model:
    """The value behind the largest of ``x * factor``, or -inf where the largest is the last."""
    model = onnx.parser.parse_model(CHOICE.replace("-inf", "-1"))
    for found in model.graph.initializer:
        if found.name == "least":
            found.CopyFrom(numpy_helper.from_array(np.float32(-np.inf), "least"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([factor], np.float32), "factor"))
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def test_a_mask_that_another_index_chooses_is_no_origin() -> None:
    feeds = {"x": np.array([[1, 3, 2]], np.float32)}
    assert not_finite.origin(choice(1, 1, 2), choice(1, 1, 1), feeds) is None
    found = not_finite.origin(choice(1, np.inf, 1), choice(1, 1, 1), feeds)
    assert found is not None
    assert (found.tensor, found.kind) == ("s", "infinite")


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
