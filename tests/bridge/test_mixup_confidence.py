"""Harm that training did shows on mixtures of samples, by the float model's own probabilities."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.bridge.export import mixup_confidence
from onnxqat.bridge.export.far_from_start import OTHER_CLASSES, TrainedFarAwayWarning

X = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)


def written(path: Path, weight: np.ndarray, turn: np.ndarray) -> float:
    """Write back a calibrated linear layer whose weight training changed by `turn`; the share of other classes."""
    given, made = (helper.make_tensor_value_info(n, 1, ["n", size]) for n, size in (("x", 8), ("y", 4)))
    constant = numpy_helper.from_array(weight, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [given], [made], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnxqat.insert_qdq(model, data=[{"x": X}]).model, path)
    module = onnxqat.to_torch(path).train()
    for batch in torch.from_numpy(X).split(64):
        module(batch).sum().backward()
    with torch.no_grad():
        module.get_parameter(next(k for k, n in module.parameter_names.items() if n == "w")).add_(
            torch.from_numpy(turn)
        )
    onnxqat.write_back(module, path, path)
    return float(np.mean((X @ weight).argmax(1) != (X @ (weight + turn)).argmax(1)))


@pytest.mark.parametrize(("size", "is_harm"), [(20.0, True), (0.2, False)])
def test_what_the_float_model_is_sure_of(tmp_path: Path, size: float, is_harm: bool) -> None:
    """The same classes change, too few of them for the samples: harm to a model that is sure, maybe none to another."""
    draw = np.random.default_rng(1)
    weight, turn = ((size * scale * draw.standard_normal((8, 4))).astype(np.float32) for scale in (1.0, 0.1))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        others = written(tmp_path / "m.onnx", weight, turn)
    assert 0.02 < others < OTHER_CLASSES
    remarks = [str(w.message) for w in found if w.category is TrainedFarAwayWarning]
    assert bool(remarks) == is_harm
    assert all("of 256 mixtures of two samples" in text for text in remarks)


def test_right_classes_lose_what_is_explained() -> None:
    """Drawn from the float model's probabilities, as labels are where it is right about them."""
    draw = np.random.default_rng(2)
    logits = 2 * draw.standard_normal((40_000, 5))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (draw.random((len(logits), 1)) > probabilities.cumsum(1)).sum(1).clip(max=4)
    found = mixup_confidence.measure(logits, logits, np.eye(5)[labels])
    assert found.lost == pytest.approx(found.explained, abs=4 * found.error)
    assert mixup_confidence.measure(probabilities, logits, np.eye(5)[labels]).lost == pytest.approx(found.lost)


def test_classes_of_values_that_are_not_finite_have_no_confidence() -> None:
    wanted = 9 * np.eye(4)
    found = mixup_confidence.measure(wanted, wanted, np.full((4, 4), np.nan))
    assert found.lost == pytest.approx(1 / (1 + 3 * np.exp(-9)))
    assert found.is_harm


def test_mixtures_keep_shapes_and_need_floats() -> None:
    values, codes = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    (first, second) = mixup_confidence.mixtures([(values[:4],), (values[4:],)])
    assert torch.cat([*first, *second]).allclose(0.7 * values + 0.3 * values.roll(3, 0))
    assert [len(first[0]), len(second[0])] == [4, 2]
    assert not mixup_confidence.mixtures([(values, codes)])
    assert not mixup_confidence.mixtures([(values,), (values[:, :1],)])
