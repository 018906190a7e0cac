"""Losses, optimizers and schedules through finetune(): each option acts, and bad ones are refused."""

from typing import Any

import pytest
import torch

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.value_clipping import ValueClipping
from onnxqat.training.objective.losses import Loss
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network

PLAIN: dict[str, Any] = {"epochs": 2, "learning_rate": 0.01, "device": "cpu"}
OPTIONS: dict[str, dict[str, Any]] = {
    "progressive": {"progressive": [8, 4]},
    "dampening": {"dampening": 0.5},
    "freezing": {"freezing": 1e-4, "epochs": 16, "learning_rate": 0.03},
    "gradient value": {"gradient_value": 1e-3, "optimizer": "sgd"},
    "schedule": {"schedule": "step", "schedule_options": {"step_size": 1}},
    "own schedule": {"schedule": lambda step, steps: 0.5},
    "optimizer": {"optimizer": "radam"},
    "optimizer options": {"optimizer_options": {"betas": (0.5, 0.9)}},
    "own optimizer": {"optimizer": lambda groups: torch.optim.Adamax(groups)},
    "rates": {"learning_rates": {"w1": 0.1}},
    "smoothing": {"loss": Loss(label_smoothing=0.3)},
}


def tuned(**options: Any) -> bytes:
    x, y = data(64)
    result = finetune(network(quantized=True), {"x": x}, labels=y, **{**PLAIN, **options})
    found: bytes = result.model.SerializeToString()
    return found


def test_each_option_acts_and_is_deterministic() -> None:
    for name, options in OPTIONS.items():
        same = {key: options[key] for key in ("epochs", "learning_rate") if key in options}
        if options.get("optimizer") == "sgd":
            same["optimizer"] = "sgd"
        assert tuned(**options) != tuned(**same), name
    assert tuned(**OPTIONS["progressive"]) == tuned(**OPTIONS["progressive"])


def test_plateau_resumes(tmp_path: Any) -> None:
    """A run whose rate has fallen goes on with the rate that it had."""
    scores = {"whole": iter([1.0] * 9), "first": iter([1.0] * 4), "second": iter([1.0] * 9)}
    options = {"schedule": "plateau", "schedule_options": {"patience": 0, "gamma": 0.5}, "epochs": 6}
    whole = tuned(evaluate=lambda _: next(scores["whole"]), **options)
    with pytest.raises(StopIteration):
        tuned(evaluate=lambda _: next(scores["first"]), checkpoint_dir=tmp_path, **options)
    resumed = tuned(evaluate=lambda _: next(scores["second"]), checkpoint_dir=tmp_path, resume=True, **options)
    assert resumed == whole


def test_a_run_shorter_than_an_epoch_is_scored_at_its_end() -> None:
    x, y = data(256)
    result = finetune(network(quantized=True), {"x": x}, labels=y, **{**PLAIN, "epochs": None, "max_steps": 5})
    assert (result.steps, result.written, result.best_epoch) == (5, "best", 1)


def test_gradients_are_clipped_by_value() -> None:
    module = torch.nn.Linear(2, 1)
    clip = ValueClipping(0.25)
    clip.start(type("Run", (), {"module": module})())
    module(torch.tensor([[3.0, -0.125]])).sum().backward()
    clip.after_backward(0)
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[0.25, -0.125]]
    assert isinstance(clip, Callback)


@pytest.mark.parametrize(
    "options",
    [
        {"progressive": [4, 8]},
        {"dampening": -1.0},
        {"freezing": 0.5},
        {"gradient_value": 0.0},
        {"schedule": "exponential"},
        {"schedule_options": {"gamma": 0.1}},
        {"optimizer_options": {"nesterov": True}},
        {"learning_rates": {"conv*": 0.1}},
    ],
)
def test_what_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tuned(**options)
