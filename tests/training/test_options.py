"""The keywords of finetune and what its parts take are the same, with the same defaults."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from onnxqat.errors import UsageError
from onnxqat.training.config import CheckpointConfig, OptimizerConfig, ScoreConfig
from onnxqat.training.execution.execution import Execution
from onnxqat.training.finetune import finetune
from onnxqat.training.options import Options


def test_options_are_the_keywords_of_finetune() -> None:
    keywords = {n: p for n, p in inspect.signature(finetune).parameters.items() if p.kind is p.KEYWORD_ONLY}
    fields = {field.name: field for field in dataclasses.fields(Options)}
    assert list(keywords) == list(fields)
    assert {n: p.default for n, p in keywords.items()} == {n: f.default for n, f in fields.items()}
    assert {n: p.annotation for n, p in keywords.items()} == {n: f.type for n, f in fields.items()}


def test_where_the_black_box_goes() -> None:
    assert CheckpointConfig().box(None) is None
    assert CheckpointConfig().box("a/tuned.onnx") == Path("a/tuned.onnx.black_box")
    assert CheckpointConfig("b").box("a/tuned.onnx") == Path("b/black_box")
    assert CheckpointConfig("b", black_box="c").box(None) == Path("c")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Execution, {"precision": "float8"}),
        (Execution, {"accumulate": 0}),
        (Execution, {"gradient_norm": 0.0}),
        (Execution, {"recompute": -1}),
        (Execution, {"arithmetic": "onnxruntime", "precision": "float16"}),
        (OptimizerConfig, {"weight_decay": -1.0}),
        (OptimizerConfig, {"ema": 1.0}),
        (ScoreConfig, {"target": 1.0}),
        (ScoreConfig, {"score": "top1", "every": 0}),
        (ScoreConfig, {"score": "top1", "evaluate": lambda _: 0.0}),
        (CheckpointConfig, {"resume": True}),
        (CheckpointConfig, {"folder": "a", "save_every": 0}),
        (CheckpointConfig, {"skip_non_finite": -1}),
    ],
)
def test_a_group_of_settings_says_what_is_wrong_with_it(kind: type, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as error:
        kind(**wrong)
    assert error.value.code == "option-invalid"
