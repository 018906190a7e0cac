"""No output takes the place of a file that the command reads, whatever kind of file and whatever its names."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxqat as package
from onnxqat.backends import table_files
from onnxqat.data import data as sources
from onnxqat.data import inputs
from onnxqat.errors import UsageError
from onnxqat.graph import files_read, io

Run = Callable[..., Any]
CALIBRATED = ("insert-qdq", "model.onnx", "-c", "data.npz")
TUNED = ("finetune", "model.qdq.onnx", "--data", "data.npz", "--max-steps", "1")


def files() -> dict[Path, bytes]:
    """Every file with its bytes, but for what Python compiles of a module that it imports."""
    found = (path for path in Path().rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path: path.read_bytes() for path in found}


def kept(onnxqat: Run, *arguments: object) -> str:
    """The message of a command that is refused; every file is as it was."""
    before = files()
    done = onnxqat(*arguments)
    assert done.status == 2, (done.out, done.err)
    assert "error[option-invalid]" in done.err
    assert "same file" in done.err
    assert files() == before
    return str(done.err)


@pytest.fixture
def others(qdq: Path) -> Path:
    """Further files that commands read: an array, tables, a method, a module."""
    np.save("data.npy", np.load("data.npz")["image"])
    Path("parent.yaml").write_text((table_files.FOLDER / "onnxruntime_cpu.yaml").read_text(encoding="utf-8"), "utf-8")
    Path("table.yaml").write_text("schema: 1\nbackend: mine\nextends: parent.yaml\n", encoding="utf-8")
    Path("mine.py").write_text("from onnxqat.training.methods.lsq import Method\n", encoding="utf-8")
    Path("kept_data.py").write_text(
        "import numpy as np\n\ndef batches():\n    yield np.ones((2, 3, 8, 8), np.float32)\n", encoding="utf-8"
    )
    return qdq.parent


@pytest.mark.parametrize(
    "arguments",
    [
        ("insert-qdq", "model.onnx", "-c", "data.npy", "-o", "data.npy"),
        ("insert-qdq", "model.onnx", "-c", "images", "-o", "images/1.png"),
        ("insert-qdq", "model.onnx", "-c", "kept_data:batches", "-o", "kept_data.py"),
        (*CALIBRATED, "-o", "data.npz"),
        (*CALIBRATED, "-o", "out.onnx", "--html", "data.npz"),
        (*CALIBRATED, "--backend", "./table.yaml", "-o", "table.yaml"),
        (*CALIBRATED, "--backend", "./table.yaml", "-o", "parent.yaml"),
        (*TUNED, "-o", "data.npz"),
        (*TUNED, "--teacher", "model.onnx", "-o", "model.onnx"),
        (*TUNED, "--method", "mine.py", "-o", "mine.py"),
        ("validate", "model.onnx", "model.qdq.onnx", "--random-data", "--html", "model.qdq.onnx"),
        ("validate", "model.onnx", "model.qdq.onnx", "--data", "data.npz", "--html", "data.npz"),
        ("profile", "model.onnx", "model.qdq.onnx", "--data", "data.npz", "--csv", "data.npz"),
        ("simulate", "model.qdq.onnx", "--data", "data.npz", "--codes", "data.npz"),
        ("lint", "model.onnx", "--backend", "./table.yaml", "--html", "parent.yaml"),
        ("handoff", "model.qdq.onnx", "--backend", "./table.yaml", "-o", "b", "--html", "table.yaml"),
    ],
    ids=" ".join,
)
def test_each_kind_of_input(arguments: tuple[str, ...], others: Path, onnxqat: Run) -> None:
    kept(onnxqat, *arguments)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_is_the_same_file(link: Callable[[str, str], None], folder: Path, onnxqat: Run) -> None:
    link("data.npz", "other.onnx")
    kept(onnxqat, *CALIBRATED, "-o", "other.onnx")


def test_a_default_output_is_looked_at_too(qdq: Path, onnxqat: Run) -> None:
    Path("model.onnx").rename("model.qdq.tuned.onnx")
    assert "--teacher" in kept(onnxqat, *TUNED, "--teacher", "model.qdq.tuned.onnx")


def test_files_that_a_folder_gets_are_looked_at_too(qdq: Path, onnxqat: Run) -> None:
    os.link("data.npz", "log.jsonl")
    kept(onnxqat, *TUNED, "-o", "out.onnx", "--log-dir", ".")
    os.link("data.npz", "last.safetensors")
    kept(onnxqat, *TUNED, "-o", "out.onnx", "--checkpoint-dir", ".")


def test_a_checkpoint_is_no_output(qdq: Path, onnxqat: Run) -> None:
    Path("ck").mkdir()
    Path("ck/last.safetensors").write_bytes(b"weights")
    said = kept(onnxqat, *TUNED, "--checkpoint-dir", "ck", "--resume", "-o", "ck/last.safetensors")
    assert "--output" in said
    assert "checkpoint" in said


def test_external_data_of_the_model(folder: Path, onnxqat: Run) -> None:
    model = onnx.load("model.onnx")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, "big.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    kept(onnxqat, "insert-qdq", "big.onnx", "-c", "data.npz", "-o", "weights")


def test_python_functions_keep_what_they_read(folder: Path) -> None:
    content = Path("data.npz").read_bytes()
    infos = inputs.of_graph(io.load("model.onnx").graph)
    for data in ("data.npz", sources.open_data("data.npz", infos)):
        with pytest.raises(UsageError, match="same file"):
            package.insert_qdq("model.onnx", "onnxruntime-cpu", data=data, output="data.npz")
    assert Path("data.npz").read_bytes() == content


def test_what_a_command_wrote_is_its_own(folder: Path) -> None:
    with files_read.guarded():
        files_read.plan("a.onnx")
        for _ in range(2):
            io.save(io.load("model.onnx"), "a.onnx")
            io.load("a.onnx")
    with files_read.guarded():
        io.load("a.onnx")
        with pytest.raises(UsageError):
            io.write_atomic(Path("a.onnx"), b"")
    io.write_atomic(Path("a.onnx"), b"")  # by hand, outside of a command


def test_a_demo_writes_over_nothing_but_a_demo(folder: Path, onnxqat: Run) -> None:
    before = Path("model.onnx").read_bytes()
    done = onnxqat("demo", "-o", ".")
    assert done.status == 2
    assert "not as onnxqat demo wrote it, and so not replaced: model.onnx, data.npz" in done.err
    assert Path("model.onnx").read_bytes() == before
    assert not Path("test.npz").exists()
