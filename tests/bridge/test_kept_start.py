"""write_back with a score writes the better of the model that training began with and what it made of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from onnxqat.bridge.export.kept_start import TrainingDidNotHelpWarning
from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.metrics import Predictor
from tests.bridge.test_write_back import constants, nudge, qdq_model, run


def closeness(model: onnx.ModelProto) -> Callable[[Predictor], float]:
    """A score that is highest for the outputs of `model`."""
    x = np.random.default_rng(5).standard_normal((64, 8)).astype(np.float32)
    wanted = run(model, x)
    return lambda predict: -float(np.abs(predict({"x": x})["y"] - wanted).mean())


def broken(model: onnx.ModelProto, value: float) -> torch.nn.Module:
    """The module of `model` whose weight a bad optimizer step has overwritten."""
    module = to_torch(model)
    with torch.no_grad():
        module.get_parameter(next(k for k, n in module.parameter_names.items() if n == "w")).fill_(value)
    return module


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_the_start_is_kept_where_training_did_not_help(tmp_path: Path, value: float) -> None:
    model = qdq_model()
    path, output = tmp_path / "m.onnx", tmp_path / "tuned.onnx"
    onnx.save(model, path)
    with pytest.warns(TrainingDidNotHelpWarning, match="training did not help"):
        assert write_back(broken(model, value), path, output, score=closeness(model)) == output
    assert output.read_bytes() == path.read_bytes()
    with pytest.warns(TrainingDidNotHelpWarning):
        kept = write_back(broken(model, value), model, score=closeness(model))
    assert constants(kept).keys() == constants(model).keys()
    assert all(np.array_equal(constants(kept)[name], old) for name, old in constants(model).items())


def test_what_training_made_is_written_where_it_scores_as_well() -> None:
    model = qdq_model()
    module = to_torch(model)
    nudge(module)
    tuned = write_back(module, model, score=lambda predict: 1.0)
    assert tuned == write_back(module, model)
