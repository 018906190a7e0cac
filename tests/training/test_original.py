"""The float model that a file was made from teaches, where it is found and fits."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.errors import UsageError
from onnxqat.placement.table_overrides import Overrides
from tests.insertion.test_rounding_choice import network, samples
from tests.training.grouped import finetune

DATA = {"x": samples("gemm", 64)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A float model, and a file of it whose weights of 3 bits were rounded on data."""
    path = tmp_path / "float.onnx"
    onnx.save(network("gemm"), path)
    overrides = Overrides(weight_bits=3)
    made = onnxqat.insert_qdq(path, data=DATA, overrides=overrides, rounding="compensated", guard=False)
    return path, Path(made.model)


def tuned(quantized: Path, **options: object) -> tuple[list[str], onnx.ModelProto]:
    """Remarks on the teacher, and what three steps give."""
    output = quantized.with_name("tuned.qdq.onnx")
    result = finetune(quantized, DATA, max_steps=3, batch_size=16, output=output, **options)  # type: ignore[arg-type]
    return [r.message for r in result.remarks if "teacher" in r.message], onnx.load(output)


def test_without_labels_the_float_file_teaches(files: tuple[Path, Path]) -> None:
    path, quantized = files
    remarks, found = tuned(quantized)
    assert remarks == [f"the teacher is {path}, the float model that the file was made from"]
    silent, given = tuned(quantized, teacher=path)
    assert silent == []
    assert found.graph == given.graph
    path.unlink()
    with pytest.raises(UsageError, match=r"float\.onnx is not found .*give the float model as the teacher"):
        tuned(quantized)


def test_eight_bits_teach_themselves(files: tuple[Path, Path]) -> None:
    """Rounding on data hardly moves such weights."""
    path, quantized = files
    onnxqat.insert_qdq(path, data=DATA, output=quantized)
    path.unlink()
    assert tuned(quantized)[0] == []


def test_labels_and_inner_tensors_need_no_file(files: tuple[Path, Path]) -> None:
    _, quantized = files
    labels = np.zeros(64, np.int64)
    assert tuned(quantized, labels=labels)[0] == []
    assert tuned(quantized, features=["y"])[0] == []


def test_a_float_file_with_other_outputs_does_not_teach(files: tuple[Path, Path]) -> None:
    path, quantized = files
    model = onnx.load(quantized)
    model.graph.output[0].name = "renamed"
    model.graph.node.append(onnx.helper.make_node("Identity", ["y"], ["renamed"]))
    onnx.save(model, quantized)
    with pytest.raises(UsageError, match=f"{path.name} has other outputs"):
        tuned(quantized)
