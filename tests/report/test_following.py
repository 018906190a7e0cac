"""What follows a command that wrote a QDQ file carries what was given and what the file records."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.inspect import inspect
from onnxqat.report import following
from onnxqat.report.build_inspect import from_inspect
from onnxqat.report.build_subgraphs import from_cut, from_stitch
from onnxqat.subgraphs.cut import cut
from onnxqat.subgraphs.stitch import stitch
from tests.validation import tiny


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A float model and its QDQ file, with the data that it was calibrated on beside them."""
    original, quantized = tmp_path / "float model.onnx", tmp_path / "q.onnx"
    onnx.save(tiny.pair(symmetric=True)[0], original)
    np.savez(tmp_path / "cal.npz", image=tiny.images(4))
    insert_qdq(original, data=tmp_path / "cal.npz", output=quantized)
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


def test_a_float_form_of_a_qdq_file_knows_how_to_be_quantized_again(tmp_path: Path) -> None:
    (tmp_path / "cal").mkdir()
    known = {"onnxqat.backend": "tensorrt", "onnxqat.data": "cal", "onnxqat.preprocess": "scale=1/255"}
    model = str(tmp_path / "f.onnx")
    text = f"onnxqat insert-qdq {model} --backend tensorrt --calibration {tmp_path}/cal --preprocess scale=1/255"
    assert following.calibrate(model, known) == text
    assert following.calibrate(model, known | {"onnxqat.data": "gone"}).endswith("tensorrt --calibration DATA")
    assert following.calibrate("f.onnx", {}) == "onnxqat insert-qdq f.onnx --calibration DATA"


def test_inspect_cut_and_stitch_name_what_the_files_record(files: tuple[Path, Path], tmp_path: Path) -> None:
    original, quantized = files
    assert from_inspect(inspect(quantized)).next_command == f"onnxqat explain {quantized}"
    assert from_inspect(inspect(original)).next_command.endswith("--calibration DATA")
    part = Path(cut(quantized, None, ["relu1"], tmp_path / "part.onnx"))
    assert from_cut(part, whole=quantized).next_command == f"onnxqat explain {part}"
    whole = Path(stitch(quantized, original, tmp_path / "whole.onnx"))
    shown = from_stitch(whole, part=quantized, whole=original)
    assert shown.next_command == f"onnxqat validate '{original}' {whole}"
