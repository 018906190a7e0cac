"""A file that is replaced or removed while a command reads it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import onnxqat
from onnxqat.errors import InputError, ModelError, UsageError
from onnxqat.graph import files_read, staging
from tests.graph.test_external import external_model


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"1")
    os.replace(other, path)


def shortened(path: Path) -> None:
    os.truncate(path, 1)


@files_read.guard
def reading(path: Path, change: Callable[[Path], object]) -> None:
    """A command that goes wrong after `change` has happened to the file that it reads."""
    files_read.note(path, "the weights")
    change(path)
    raise ValueError("mmap length is greater than file size")


@pytest.mark.parametrize("change", [removed, replaced, shortened])
def test_what_goes_wrong_then_is_the_changes_fault(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "w.data"
    path.write_bytes(b"12")
    with pytest.raises(InputError, match=r"w\.data: it was replaced or removed") as caught:
        reading(path, change)
    assert caught.value.code == "input-changed"


def test_with_files_as_they_were_an_error_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "w.data"
    path.write_bytes(b"12")
    with pytest.raises(ValueError, match="mmap length"):
        reading(path, Path.exists)


def test_what_a_command_staged_and_removed_is_no_change(tmp_path: Path) -> None:
    with staging.staging(tmp_path) as folder:
        path = folder / "w.data"
        path.write_bytes(b"12")
        with pytest.raises(ValueError, match="mmap length"):
            reading(path, removed)


def test_weights_of_a_model_in_memory_are_looked_for(tmp_path: Path) -> None:
    model = onnxqat.load(external_model(tmp_path))
    (tmp_path / "w.bin").unlink()
    for command in (onnxqat.to_torch, onnxqat.insert_qdq, onnxqat.inspect):
        with pytest.raises(ModelError, match=r"w\.bin") as caught:
            command(model)
        assert caught.value.code == "model-external-data"


@files_read.guard
def writing_where_a_read_file_was(first: Path, second: Path) -> None:
    """A command that gives a file's number to another one, as file systems do when the first is gone."""
    files_read.note(first, "the model")
    with pytest.raises(UsageError, match="same file"):
        files_read.check(first)
    first.replace(second)
    files_read.check(second)


def test_the_number_of_a_file_that_is_gone_is_given_again(tmp_path: Path) -> None:
    first = tmp_path / "attempt.onnx"
    first.write_bytes(b"12")
    writing_where_a_read_file_was(first, tmp_path / "bundle.onnx")
