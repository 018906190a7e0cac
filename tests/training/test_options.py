"""The keywords of finetune and what its parts take are the same, with the same defaults."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from onnxqat.errors import UsageError
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
    assert Options().box is None
    assert Options(output="a/tuned.onnx").box == Path("a/tuned.onnx.black_box")
    assert Options(output="a/tuned.onnx", checkpoint_dir="b").box == Path("b/black_box")
    assert Options(checkpoint_dir="b", black_box="c").box == Path("c")


def test_an_execution_says_what_is_wrong_with_it() -> None:
    for wrong in ({"precision": "float8"}, {"accumulate": 0}, {"gradient_norm": 0.0}, {"recompute": -1}):
        with pytest.raises(UsageError) as error:
            Execution(**wrong)  # type: ignore[arg-type]
        assert error.value.code == "option-invalid"
