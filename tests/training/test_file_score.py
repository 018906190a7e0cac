"""Scores of the file that is written: metrics on held-out samples, and functions of the user's."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.errors import DataError, UsageError
from onnxqat.metrics import Predictor
from onnxqat.report import build
from onnxqat.report.json import to_dict
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network, run

OPTIONS: dict[str, Any] = {"epochs": 8, "batch_size": 16, "learning_rate": 0.01, "device": "cpu"}


def test_a_metric_is_that_of_the_file_on_held_out_samples(tmp_path: Path) -> None:
    x, y = data()
    held = np.arange(len(x)) % 5 == 4
    np.savez(tmp_path / "data.npz", x=x, labels=y)
    model = network(quantized=True)
    arrays = finetune(model, {"x": x}, labels=y, score="top1", **OPTIONS)
    assert (arrays.score, arrays.scored_samples, arrays.held_out) == ("top1", 51, True)
    assert arrays.start_score == pytest.approx((run(model, x[held]).argmax(1) == y[held]).mean())
    assert arrays.best_score == pytest.approx((run(arrays.model, x[held]).argmax(1) == y[held]).mean())
    assert arrays.best_score is not None
    assert arrays.start_score is not None
    assert arrays.best_score > arrays.start_score
    file = finetune(model, tmp_path / "data.npz", score="top1", **OPTIONS)
    assert (file.start_score, file.best_score) == (arrays.start_score, arrays.best_score)
    assert to_dict(build.from_finetune(file))["figures"]["score"] == "top1 of 51 samples held out of training"


def test_a_metric_against_the_teacher() -> None:
    x, _ = data(100)
    model, teacher = network(quantized=True), network(quantized=False)
    result = finetune(model, x, teacher=teacher, score="sqnr", **OPTIONS)
    assert result.score == "sqnr"
    assert result.helped
    with pytest.raises(DataError):
        finetune(model, x, score="sqnr", **OPTIONS)


def test_a_function_sees_the_file_that_is_written() -> None:
    """With all samples trained on, as the function has data of its own; the last score is that of what is written."""
    x, y = data()
    seen: list[bytes] = []

    def mine(predict: Predictor) -> float:
        seen.append(onnx.load(predict.path).SerializeToString())
        return float((predict({"x": x})["logits"].argmax(1) == y).mean())

    result = finetune(network(quantized=True), x, labels=y, score=mine, **OPTIONS)
    assert (result.score, result.scored_samples, result.steps) == ("mine", 0, 128)
    assert len(seen) == 9
    weights = [{t.name: t.raw_data for t in m.graph.initializer} for m in map(onnx.load_from_string, seen)]
    written = {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in result.model.graph.initializer}
    best = weights[result.best_epoch]
    assert all(best[name] == written[name] for name in ("w1", "w2", "w1_scale", "b1"))
    assert weights[0] != best


def test_what_is_refused() -> None:
    x, y = data(40)
    for options in ({"score": "top1", "evaluate": lambda _: 0.0}, {"score": "top1", "labels": Path("boxes")}):
        with pytest.raises(UsageError):
            finetune(network(quantized=True), x, **{"labels": y, **OPTIONS, **options})
    with pytest.raises(UsageError, match="labels in boxes are for a metric"):
        finetune(network(quantized=True), x, labels="boxes", **OPTIONS)
    with pytest.raises(UsageError, match="can be read again"):
        finetune(network(quantized=True), iter([(x, y)]), score="top1", **{**OPTIONS, "epochs": None, "max_steps": 1})
