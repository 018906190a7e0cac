"""Options of finetune about what is minimized and how fast."""

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest

from onnxqat.cli import _objectives
from onnxqat.cli.commands import finetune as command
from onnxqat.errors import UsageError
from onnxqat.training.callbacks.progressive import Progressive
from onnxqat.training.config import ScheduleConfig
from onnxqat.training.objective.features import Features
from onnxqat.training.objective.losses import Loss
from onnxqat.training.options import Options


def keywords(*arguments: str) -> dict[str, Any]:
    parsed = command.run.make_context("finetune", ["model.qdq.onnx", *arguments]).params
    given = {name: parsed[name] for name in _objectives.options.names}
    return {**_objectives.keywords(given, None), "callbacks": _objectives.callbacks(given)}


def test_without_options_they_are_those_of_python() -> None:
    found = Options(**keywords())
    theirs = Options()
    assert dataclasses.replace(found.optimization, options=None, learning_rates=None) == theirs.optimization
    assert dataclasses.replace(found.scheduling, options=None) == theirs.scheduling
    assert [found.optimization.options, found.optimization.learning_rates, found.scheduling.options] == [{}, {}, {}]
    assert found.distillation == theirs.distillation
    assert (found.loss, found.learning_rate, list(found.callbacks)) == (Loss(), theirs.learning_rate, [])


def test_options_become_keywords() -> None:
    found = Options(
        **keywords(
            *("--optimizer-option", "betas=0.9,0.98", "--optimizer-option", "amsgrad=True"),
            *("--learning-rate-of", "head*=0.1", "--learning-rate-of", "a=b=2"),
            *("--schedule", "multistep", "--schedule-option", "milestones=10,15", "--schedule-option", "kind=text"),
            *("--progressive", "8, 4", "--label-smoothing", "0.1", "--distance", "mse"),
            *("--feature", "t", "--feature", "p=q", "--feature-loss", "attention", "--feature-weight", "2"),
        )
    )
    assert found.optimization.options == {"betas": (0.9, 0.98), "amsgrad": True}
    assert found.optimization.learning_rates == {"head*": 0.1, "a=b": 2.0}
    assert found.scheduling == ScheduleConfig("multistep", None, {"milestones": (10, 15), "kind": "text"})
    (progressive,) = found.callbacks
    assert isinstance(progressive, Progressive)
    assert progressive.widths == (8, 4)
    assert found.loss == Loss(label_smoothing=0.1, distance="mse")
    assert found.distillation.features == Features({"t": "t", "p": "q"}, "attention", 2.0)
    assert Options(**keywords("--feature", "t", "--feature", "p*")).distillation.features == Features(["t", "p*"])


@pytest.mark.parametrize(
    "option",
    [
        ("--optimizer-option", "betas"),
        ("--learning-rate-of", "=2"),
        ("--learning-rate-of", "v=fast"),
        ("--progressive", "8,four"),
        ("--feature-loss", "cosine", "--feature", "t"),
        ("--label-smoothing", "1"),
    ],
)
def test_what_is_refused(option: tuple[str, ...]) -> None:
    with pytest.raises((UsageError, click.BadParameter)):
        keywords(*option)


def test_a_run_with_all_of_them(qdq: Path, onnxqat: Any) -> None:
    arguments = {
        "--optimizer": "sgd",
        "--optimizer-option": "momentum=0.5",
        "--learning-rate-of": "v=0.5",
        "--schedule": "step",
        "--schedule-option": "step_size=1",
        "--warmup-steps": "1",
        "--label-smoothing": "0.1",
        "--feature": "t",
        "--feature-loss": "attention",
        "--dampening": "0.1",
        "--freezing": "0.01",
        "--gradient-norm": "1",
        "--gradient-value": "0.5",
        "--ema": "0.9",
    }
    given = [text for pair in arguments.items() for text in pair]
    teachers = ("--teacher", "model.onnx", "--teacher", "model.onnx")
    run = ("finetune", "model.qdq.onnx", "--data", "data.npz", *teachers, "--batch-size", "4", *given, "--json")
    done = onnxqat(*run)
    assert done.status == 0, done.err
    assert done.json["files"] == ["model.qdq.tuned.onnx"]
    refused = onnxqat(*run, "--progressive", "7")
    assert refused.status == 2, "no grid of the file has less than 7 bits"
