"""What follows a command that wrote a QDQ file carries what was given and what the file records."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.insert import insert_qdq
from onnxqat.report import following
from tests.validation import tiny


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A float model and its QDQ file, with the data that it was calibrated on beside them."""
    original, quantized = tmp_path / "float model.onnx", tmp_path / "q.onnx"
    onnx.save(tiny.pair(symmetric=True)[0], original)
    np.savez(tmp_path / "cal.npz", image=tiny.images(4))
    insert_qdq(original, calibration=tmp_path / "cal.npz", output=quantized)
    return original, quantized


def test_recorded_model_and_data_fill_the_gaps(files: tuple[Path, Path]) -> None:
    original, quantized = files
    assert following.validate(quantized, "t.onnx") == f"onnxqat validate '{original}' t.onnx"


def test_what_was_given_is_carried(files: tuple[Path, Path]) -> None:
    given = {"original": "f.onnx", "data": "my images/", "preprocess": "scale=1/255"}
    text = "onnxqat validate f.onnx t.onnx --data 'my images/' --preprocess scale=1/255"
    assert following.validate(files[1], "t.onnx", **given) == text


def test_what_nobody_knows_is_for_the_user_to_fill_in(tmp_path: Path) -> None:
    onnx.save(tiny.pair(symmetric=True)[1], tmp_path / "q.onnx")
    assert following.validate(tmp_path / "q.onnx", "t.onnx") == "onnxqat validate MODEL.onnx t.onnx --data DATA"
