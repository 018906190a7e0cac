"""A command replaces the files that it wrote into a folder, and no others there."""

import json
from pathlib import Path

import pytest

from onnxqat.errors import UsageError
from onnxqat.graph.own_files import OwnFiles

COMMAND = ["onnxqat", "demo"]
NAMES = ("a.onnx", "images")


def own(folder: Path) -> OwnFiles:
    return OwnFiles(folder, COMMAND)


def write(folder: Path, content: str) -> None:
    with own(folder).writing(*NAMES):
        (folder / "a.onnx").write_text(content)
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / "0.png").write_text(content)


def test_what_is_unchanged_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / "beside").write_text("mine")
    write(tmp_path, "two")
    assert (tmp_path / "images" / "0.png").read_text() == "two"
    assert (tmp_path / "beside").read_text() == "mine"
    own(tmp_path).check(NAMES)


@pytest.mark.parametrize("name", ["a.onnx", "images/0.png", "images/mine.png"])
def test_what_others_wrote_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "one")
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"not replaced: {name}"):
        write(tmp_path, "two")
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["a.onnx", "images"])
def test_a_link_is_refused(tmp_path: Path, name: str) -> None:
    """Also to the same content: what it points to is somebody's."""
    write(tmp_path, "one")
    (tmp_path / name).rename(tmp_path / "elsewhere")
    (tmp_path / name).symlink_to("elsewhere")
    with pytest.raises(UsageError, match=f"not replaced: {name}"):
        own(tmp_path).check(NAMES)


@pytest.mark.parametrize("content", ["{}", "[", json.dumps({"command": ["onnxqat", "handoff"], "sha256": {}})])
def test_the_manifest_of_somebody_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match=r"not replaced: manifest\.json"):
        own(tmp_path).check(NAMES)


def test_files_without_a_manifest_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("mine")
    with pytest.raises(UsageError, match=r"not replaced: a\.onnx"):
        own(tmp_path).check(NAMES)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Each step lists what it wrote: the next run replaces that."""
    write(tmp_path, "one")
    with pytest.raises(KeyboardInterrupt), own(tmp_path).writing("b.onnx"):
        raise KeyboardInterrupt
    write(tmp_path, "two")
