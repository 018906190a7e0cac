"""insert_qdq runs a few calibration samples through what it made."""

import math
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

import onnxqat
from onnxqat.calibration import noise
from onnxqat.data.data import open_data
from onnxqat.data.inputs import of_graph
from onnxqat.errors import CheckError
from onnxqat.graph import qdq
from onnxqat.insertion import trial
from onnxqat.placement.table_overrides import Overrides
from onnxqat.report import build, terminal
from onnxqat.runtime import non_finite, session
from onnxqat.runtime.isolated_session import TriedSession
from onnxqat.runtime.session import Session
from onnxqat.types import Remark
from onnxqat.verdict import AMBER_SQNR
from tests.insertion import culprits
from tests.insertion.culprits import Made
from tests.validation import tiny


def angles(*, mask: bool) -> Made:
    """The angles of ``culprits.angles``; with a legitimate mask of -inf behind them, and a Softmax."""
    model, data = culprits.angles()
    if mask:
        del model.graph.node[-1]
        nodes = [
            helper.make_node("Where", ["keep", "angle", "least"], ["masked"], name="masked"),
            helper.make_node("Softmax", ["masked"], ["y"], name="y"),
        ]
        model.graph.node.extend(nodes)
        model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4
        keep = np.tril(np.ones((3, 4), bool))
        model.graph.initializer.append(numpy_helper.from_array(keep, "keep"))
        model.graph.initializer.append(numpy_helper.from_array(np.full((), -np.inf, np.float32), "least"))
    return model, data


@pytest.mark.parametrize(("mask", "sample"), [(False, 0), (True, 0), (False, 16)])
def test_what_is_not_finite_is_an_error_at_its_origin(mask: bool, sample: int, tmp_path: Path) -> None:
    """In any of the samples that are run, though a quantizer behind it hides it from the output."""
    model, data = angles(mask=mask)
    data = {"x": np.roll(data["x"], sample, axis=0)}
    plain = Overrides(activation_observer="minmax")
    with pytest.raises(CheckError) as caught:
        onnxqat.insert_qdq(model, data=data, output=tmp_path / "q.onnx", overrides=plain, guard=False)
    assert caught.value.code == "quantized-not-finite"
    assert "tensor 'angle' of node 'angle' (Acos)" in caught.value.message
    assert "--exclude 'angle'" in caught.value.hint
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
    assert non_finite.origin(choice(1, 1, 2), choice(1, 1, 1), [feeds]) is None
    found = non_finite.origin(choice(1, np.inf, 1), choice(1, 1, 1), [feeds])
    assert found is not None
    assert (found.tensor, found.kind) == ("s", "infinite")


def test_sessions_are_opened_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(non_finite, "Session", lambda *a, **k: opened.append(k["what"]) or Session(*a, **k))
    feeds = [{"x": np.array([[1, 3, 2]], np.float32)}, {"x": np.array([[3, 1, 2]], np.float32)}]
    assert non_finite.origin(choice(1, 1, 1), choice(1, 1, 1), feeds) is None
    assert opened == ["the quantized model", "the float model"]


def test_two_sessions_are_opened_for_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that looks for NaN gives the outputs too; one of the calibration stands before them."""
    opened = []
    monkeypatch.setattr(session, "TriedSession", lambda *a: opened.append(a[-1]) or TriedSession(*a))
    onnxqat.insert_qdq(tiny.pair()[0], data={"image": tiny.images()}, fast=True)
    assert opened == ["the model", "the quantized model", "the float model"]


def test_a_good_file_is_green() -> None:
    result = onnxqat.insert_qdq(tiny.pair()[0], data={"image": tiny.images()})
    assert result.trial is not None
    assert result.trial.samples == 8
    assert (result.trial.status, result.trial.costly) == ("green", ())
    text = terminal.to_text(build.from_insert(result))
    assert "accuracy  GREEN" in text
    assert "signal to noise of logits" in text


@pytest.mark.parametrize(("size", "samples"), [(1, 8), (3, 6), (16, 16)])
def test_a_prescribed_batch_size_leaves_no_sample_out(size: int, samples: int) -> None:
    model = tiny.pair()[0]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    result = onnxqat.insert_qdq(model, data={"image": tiny.images(48)}, fast=True)
    assert result.trial is not None
    assert (result.trial.samples, result.trial.status) == (samples, "green")


def test_the_guard_sees_all_batches() -> None:
    """Its culprit does no harm in the first batch, which is all that a model of batch size 1 takes at once."""
    model, data = culprits.angles()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    x = data["x"].copy()
    x[[0, 4]] = x[[4, 0]]
    plain = Overrides(activation_observer="minmax")
    result = onnxqat.insert_qdq(model, data={"x": x}, overrides=plain)
    assert result.guard is not None
    assert result.guard.changes


def test_a_start_for_training_is_red_and_names_what_costs_most(tmp_path: Path) -> None:
    onnx.save(tiny.pair()[0], tmp_path / "model.onnx")
    np.savez(tmp_path / "my data.npz", image=tiny.images())
    two = Overrides(weight_bits=2, activation_bits=2, per_channel=False)
    data = tmp_path / "my data.npz"
    result = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=two, fast=True, guard=False)
    assert result.trial is not None
    assert result.trial.status == "red"
    assert len(result.trial.costly) == 3
    assert result.trial.costly_at == "outputs"
    report = build.from_insert(result, source="model.onnx", data=str(data), preprocess=None)
    (verdict,) = report.verdicts
    assert "a start for training, not for deployment" in verdict.reason
    assert f"most noise comes from the quantizers of {result.trial.costly[0][0]} (" in verdict.reason
    assert verdict.remedy.startswith("onnxqat finetune ")
    assert f"--data '{data}'" in verdict.remedy
    assert report.passed is None  # the work was done


def test_nothing_is_run_on_random_data_and_on_data_that_are_read_once() -> None:
    model = ir.from_proto(tiny.pair()[0])
    assert onnxqat.insert_qdq(model, random_data=True).trial is None
    once = iter([{"image": tiny.images(4)}])
    assert onnxqat.insert_qdq(model, data=once, equalize=False).trial is None


def test_noise_of_few_values_is_told_from_noise_of_all() -> None:
    """An argmax of near ties ruins the values that it chooses, and no more calibration mends that."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 32, 4] x) => (float[N, 32] y)
    <float[4] table = {10, 20, 40, 80}> { scaled = Mul(x, factor) best = ArgMax <axis = 2, keepdims = 0> (scaled)
    taken = Gather(table, best) least = ReduceMean <axes = [2], keepdims = 0> (x) y = Add(taken, least) }"""

    def model(*factor: float) -> ir.Model:
        made = parser.parse_model(text)
        made.graph.initializer.append(numpy_helper.from_array(np.array([factor], np.float32), "factor"))
        return ir.from_proto(onnx.shape_inference.infer_shapes(made))

    original = model(1, 1, 1, 1)
    data = open_data({"x": rng.uniform(size=(8, 32, 4)).astype(np.float32)}, of_graph(original.graph), batch_size=8)
    remarks: list[Remark] = []
    found = trial.attempt(original, model(1, 1, 1, 1.2), data, remarks)
    assert found is not None
    assert found.worst < AMBER_SQNR
    ((message, concern),) = [(r.message, r.concern) for r in remarks]
    assert re.search(r"9.% of the noise of output 'y' is in [\d.]+% of its values, and the others have 2...", message)
    assert concern == "result"


def test_even_noise_is_in_no_few_values() -> None:
    rng = np.random.default_rng(0)
    signal = rng.normal(size=10_000)
    assert noise.concentration(signal + 0.1 * rng.normal(size=signal.shape), signal, 30) is None
    assert noise.concentration(signal, signal, 30) is None
    flipped = signal.copy()
    flipped[:100] = 9
    found = noise.concentration(flipped, signal, 30)
    assert found is not None
    assert found == noise.Concentration(0.01, 1.0, math.inf)


@pytest.mark.parametrize(("most", "samples"), [(2**29, 8), (1, 2)])
def test_quantizers_are_measured_on_samples_that_fit_into_memory(
    most: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MOST_BYTES", most)
    made = onnxqat.insert_qdq(ir.from_proto(tiny.pair()[0]), data={"image": tiny.images()}, fast=True)
    batches = [{"image": tiny.images(8)}]
    activations = {q.tensor for q in qdq.quantizers(made.model) if q.role == "activation"}
    sizes = {len(x) for tensor, x, _ in trial.rounded(made.model, batches) if tensor in activations - {"image"}}
    assert sizes == {samples}
