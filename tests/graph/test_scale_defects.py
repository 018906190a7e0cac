"""A scale that is no step gets one message from every command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onnxqat
from onnxqat.errors import ModelError
from onnxqat.graph import scale_defects
from tests.linting.qdq_files import changed, model

F = np.float32
DATA = np.random.default_rng(0).standard_normal((4, 1, 2, 4, 4)).astype(F)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.5, 1], ""),
        ([0.5, -1], "is negative in 1 of 2 places"),
        ([0, 0], "is 0 in 2 of 2 places"),
        ([np.nan], "is NaN or infinite"),
    ],
)
def test_defects_are_counted(values: list[float], text: str) -> None:
    assert scale_defects.defect(np.asarray(values, F)) == text
    assert scale_defects.defect(np.asarray(-1, F), blocked=True) == ""


def commands(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Everything that reads a quantized model, as a function of the model."""
    data = [{"x": x} for x in DATA]
    return {
        "to_torch": onnxqat.to_torch,
        "finetune": lambda m: onnxqat.finetune(m, data, max_steps=1, device="cpu"),
        "validate": lambda m: onnxqat.validate(model("y = Relu(x)"), m, data),
        "profile": lambda m: onnxqat.profile(model("y = Relu(x)"), m, data),
        "handoff": lambda m: onnxqat.handoff(m, "onnxruntime-cpu", folder / "bundle"),
    }


@pytest.mark.parametrize("name", commands(Path()))
def test_one_message_everywhere(name: str, tmp_path: Path) -> None:
    broken = changed(ws=np.asarray([0.01, -0.01], F))
    with pytest.raises(ModelError, match=r"scale 'ws' of tensor '(w|wq)' is negative in 1 of 2 places") as caught:
        commands(tmp_path)[name](broken)
    assert caught.value.code == "scale-invalid"
    assert "above 0" in caught.value.hint


def test_lint_and_inspect_name_it() -> None:
    broken = changed(s=F(-0.05))
    assert onnxqat.inspect(broken).defects == ("scale 's' of tensor 'x' is negative",)
    assert [f.code for f in onnxqat.lint(broken).findings if f.severity == "error"] == ["scale-negative"]
    assert onnxqat.inspect(model()).defects == ()
    assert {t.name for t in broken.graph.initializer if (numpy_helper.to_array(t) < 0).any()} >= {"s"}
