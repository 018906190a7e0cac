"""Bad input: one line that says what is wrong, status 2, nothing written."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.errors import ERROR_CODES

Run = Callable[..., Any]
INSERT = ("insert-qdq", "model.onnx")
CALIBRATED = (*INSERT, "-c", "data.npz")


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def refused(onnxqat: Run, *arguments: object, code: str) -> str:
    """The message; nothing was written."""
    before = listing(Path())
    done = onnxqat(*arguments)
    assert done.status == 2, (done.out, done.err)
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert lines[0].startswith(f"error[{code}]: ")
    assert all(line.startswith("  hint: ") for line in lines[1:])
    assert len(lines) <= 2
    assert "Traceback" not in done.err
    assert listing(Path()) == before
    as_json = onnxqat(*arguments, "--json")
    assert as_json.status == 2
    assert json.loads(as_json.out)["error"]["code"] == code
    assert listing(Path()) == before
    return str(done.err)


def damaged(kind: str) -> Path:
    path = Path("bad.onnx")
    model = Path("model.onnx").read_bytes()
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "text": b"this is no model\n" * 20,
                "truncated": model[: len(model) // 2],
                "png": Path("images/0.png").read_bytes(),
                "zeros": bytes(100),
            }[kind]
        )
    return path


KINDS = {
    "missing": "model-not-found",
    "folder": "model-not-found",
    "empty": "model-empty",
    "text": "model-not-onnx",
    "truncated": "model-not-onnx",
    "png": "model-not-onnx",
    "zeros": "model-not-onnx",
}


@pytest.mark.parametrize("kind", KINDS)
def test_models(kind: str, folder: Path, onnxqat: Run) -> None:
    assert "bad.onnx" in refused(onnxqat, "insert-qdq", damaged(kind), "-c", "data.npz", code=KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    [
        ("finetune", "bad.onnx", "--data", "data.npz"),
        ("validate", "bad.onnx", "model.onnx", "--data", "data.npz"),
        ("validate", "model.onnx", "bad.onnx", "--data", "data.npz"),
        ("handoff", "bad.onnx", "--backend", "onnxruntime-cpu", "-o", "bundle"),
        ("lint", "bad.onnx"),
        ("explain", "bad.onnx"),
        ("diff", "model.onnx", "bad.onnx"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_models_of_the_other_commands(command: tuple[str, ...], kind: str, folder: Path, onnxqat: Run) -> None:
    damaged(kind)
    assert "bad.onnx" in refused(onnxqat, *command, code=KINDS[kind])


def test_already_quantized(qdq: Path, onnxqat: Run) -> None:
    message = refused(onnxqat, "insert-qdq", qdq, "-c", "data.npz", "-o", "x.onnx", code="model-already-quantized")
    assert "--replace" in message


@pytest.mark.parametrize(
    "command",
    [
        ("finetune", "model.onnx", "--data", "data.npz"),
        ("handoff", "model.onnx", "--backend", "onnxruntime-cpu", "-o", "bundle"),
        ("validate", "model.onnx", "model.onnx", "--data", "data.npz"),
    ],
    ids=lambda command: command[0],
)
def test_not_quantized(command: tuple[str, ...], folder: Path, onnxqat: Run) -> None:
    refused(onnxqat, *command, code="model-not-quantized")


@pytest.mark.parametrize(
    "command",
    [INSERT, ("finetune", "model.qdq.onnx"), ("validate", "model.onnx", "model.qdq.onnx")],
    ids=lambda command: command[0],
)
def test_missing_data(command: tuple[str, ...], qdq: Path, onnxqat: Run) -> None:
    kept = onnx.load(qdq)
    recorded = next(entry for entry in kept.metadata_props if entry.key == "onnxqat.data")
    recorded.value = "moved away"
    onnx.save(kept, "kept.onnx")
    command = tuple("kept.onnx" if c == "model.qdq.onnx" else c for c in command)
    refused(onnxqat, *command, code="data-missing")


@pytest.mark.parametrize(
    ("arrays", "code", "says"),
    [
        ({"image": np.zeros((4, 3, 9, 8), np.float32)}, "data-shape", "[4, 3, 9, 8]"),
        ({"image": np.zeros((4, 8, 8), np.float32)}, "data-shape", "'image'"),
        ({"picture": np.zeros((4, 3, 8, 8), np.float32)}, "data-input-name", "picture"),
        ({"image": np.full((4, 3, 8, 8), np.nan, np.float32)}, "data-non-finite", "image"),
        ({"image": np.zeros((4, 3, 8, 8), np.uint8)}, "data-format", "uint8"),
    ],
)
def test_data(arrays: dict[str, Any], code: str, says: str, folder: Path, onnxqat: Run) -> None:
    np.savez(folder / "bad.npz", **arrays)
    assert says in refused(onnxqat, *INSERT, "-c", "bad.npz", code=code)


def test_data_that_is_not_there(folder: Path, onnxqat: Run) -> None:
    refused(onnxqat, *INSERT, "-c", "no.npz", code="data-not-found")
    refused(onnxqat, *INSERT, "-c", "no.such:function", code="data-not-found")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--backend", "openvino"), "backend-unknown"),
        (("--backend", "no.yaml"), "backend-unknown"),
        (("--exclude", "nothing*"), "pattern-no-match"),
        (("--include", "nothing"), "pattern-no-match"),
        (("--exclude-op", "Sin"), "pattern-no-match"),
        (("--bits", "four"), "option-invalid"),
        (("--bits", "4,8,8"), "option-invalid"),
        (("--bits", "4;8"), "option-invalid"),
        (("--bits", ""), "option-invalid"),
        (("--bits", "1"), "option-invalid"),
        (("--bits", "8,9"), "option-invalid"),
        (("--bits", "²"), "option-invalid"),
        (("--first-last-bits", "1"), "option-invalid"),
        (("--first-last-bits", "-8"), "option-invalid"),
        (("--activation-type", "int7"), "option-invalid"),
        (("--observer", "min-max"), "name-unknown"),
        (("--preprocess", "sclae=1/255"), "option-invalid"),
        (("--preprocess", "scale=x"), "option-invalid"),
        (("--limit", "0"), "option-invalid"),
        (("--batch-size", "0"), "option-invalid"),
        (("-o", "missing/out.onnx"), "output-not-writable"),
        (("-o", "images"), "output-not-writable"),
    ],
    ids=str,
)
def test_options(options: tuple[str, str], code: str, folder: Path, onnxqat: Run) -> None:
    data = "images" if options[0] == "--preprocess" else "data.npz"
    refused(onnxqat, *INSERT, "-c", data, *options, code=code)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(folder: Path, onnxqat: Run) -> None:
    (folder / "locked").mkdir(mode=0o500)
    refused(onnxqat, *CALIBRATED, "-o", "locked/out.onnx", code="output-not-writable")


def test_a_broken_table(folder: Path, onnxqat: Run) -> None:
    (folder / "bad.yaml").write_text("backend: x\nextends: tensorrt\nplacment: both\n")
    assert "bad.yaml: placment" in refused(onnxqat, *CALIBRATED, "--backend", "bad.yaml", code="backend-table")
    assert "bad.yaml: placment" in refused(onnxqat, "backends", "check", "bad.yaml", code="backend-table")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--method", "lsqq"), "name-unknown"),
        (("--optimizer", "sdg"), "option-invalid"),
        (("--temperature", "0"), "option-invalid"),
        (("--alpha", "2"), "option-invalid"),
        (("--tolerance-lsb", "-1"), "option-invalid"),
        (("--device", "tpu9"), "option-invalid"),
        (("--teacher", "no.onnx"), "model-not-found"),
        (("-o", "missing/out.onnx"), "output-not-writable"),
    ],
    ids=str,
)
def test_options_of_finetune(options: tuple[str, str], code: str, qdq: Path, onnxqat: Run) -> None:
    refused(onnxqat, "finetune", "model.qdq.onnx", "--data", "data.npz", *options, code=code)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("insert-qdq",), "option-invalid", "onnxqat insert-qdq --help"),
        ((*CALIBRATED, "--bakend", "x"), "option-invalid", "did you mean --backend?"),
        ((*CALIBRATED, "--limit", "many"), "option-invalid", "--limit"),
        ((*CALIBRATED, "--limit", "0"), "option-invalid", "x>=1"),
        (("insrt-qdq", "model.onnx"), "name-unknown", "did you mean insert-qdq?"),
        (("backends", "lst"), "name-unknown", "did you mean list?"),
        (("handoff", "model.onnx", "-o", "bundle"), "option-invalid", "--backend"),
        (("finetune", "model.onnx", "--data", "data.npz", "--resume"), "option-invalid", "give --checkpoint-dir"),
        (("finetune", "model.onnx", "--checkpoint-dir", "data.npz"), "output-not-writable", "data.npz"),
        (("finetune", "model.onnx", "--distributed", "dpp"), "model-not-quantized", "no quantizer"),
        (("finetune", "model.onnx", "--data", "data.npz", "--lr", "nan"), "option-invalid", "not a finite number"),
        ((*CALIBRATED, "-o", "model.onnx"), "option-invalid", "same file"),
        (("lint", "model.onnx", "--fix", "-o", "./model.onnx"), "option-invalid", "same file"),
    ],
    ids=str,
)
def test_usage(arguments: tuple[str, ...], code: str, says: str, folder: Path, onnxqat: Run) -> None:
    assert says in refused(onnxqat, *arguments, code=code)


def test_the_codes_here_exist() -> None:
    assert set(KINDS.values()) <= set(ERROR_CODES)


@pytest.mark.parametrize("option", ["--output", "--html"])
@pytest.mark.parametrize("place", ["images", "none/x", "model.onnx/x"])
def test_outputs_are_refused_before_data_are_read(option: str, place: str, folder: Path, onnxqat: Run) -> None:
    message = refused(onnxqat, *INSERT, "-c", "none.npz", option, place, code="output-not-writable")
    assert place in message


@pytest.mark.parametrize("arguments", [("-o", "x.onnx", "--html", "./x.onnx"), ("--html", "model.onnx")])
def test_no_report_in_the_place_of_a_model(arguments: tuple[str, ...], folder: Path, onnxqat: Run) -> None:
    assert "--html" in refused(onnxqat, *CALIBRATED, *arguments, code="option-invalid")


def test_folders(folder: Path, onnxqat: Run) -> None:
    auto = ("auto", "model.onnx", "--data", "none.npz")
    assert "model.onnx" in refused(onnxqat, *auto, "-o", "model.onnx", code="output-not-writable")


def test_the_empty_path_is_not_the_working_folder(folder: Path, onnxqat: Run) -> None:
    refused(onnxqat, *INSERT, "-c", "", code="data-missing")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x"), MemoryError()])
def test_limits_of_the_machine_are_no_defect(
    error: Exception, folder: Path, onnxqat: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("onnxqat.linting.inspect.inspect", full)
    done = onnxqat("inspect", "model.onnx", "--json")
    assert done.status == 2
    assert done.json["error"]["code"] == "machine-limit"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_names_of_any_letters_and_a_full_output(folder: Path) -> None:
    Path("model.onnx").rename("mödel.onnx")
    command = [sys.executable, "-m", "onnxqat", "inspect", "mödel.onnx"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert done.stdout.startswith(b"m\\xf6del.onnx")
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (failed.returncode, failed.stderr.splitlines()[0][:21]) == (2, b"error[machine-limit]:")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where nobody makes a folder")
def test_folders_that_cannot_be_made(qdq: Path, onnxqat: Run) -> None:
    tuned = ("finetune", "model.qdq.onnx", "--data", "data.npz", "--max-steps", "1", "-o", "out.onnx")
    for arguments in (
        ("demo", "-o", "/proc/x"),
        (*tuned, "--checkpoint-dir", "/proc/x"),
        (*tuned, "--log-dir", "/proc/x"),
    ):
        done = onnxqat(*arguments)
        assert done.status == 2, done.err
        assert "error[output-not-writable]" in done.err


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_device_holds_no_data(folder: Path, onnxqat: Run) -> None:
    assert "a device or a pipe" in refused(onnxqat, *INSERT, "-c", "/dev/zero", code="data-format")


@pytest.fixture
def pipe(folder: Path) -> Iterator[Path]:
    """A named pipe that nobody writes to; whoever waits for it is interrupted."""

    def interrupt(*_: object) -> None:
        raise AssertionError("the pipe was opened")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(60)
    (folder / "pipes").mkdir()
    path = folder / "pipes" / "pipe.npz"
    os.mkfifo(path)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("inspect", "{pipe}"), "model-not-found"),
        (("validate", "model.onnx", "{pipe}", "--random-data"), "model-not-found"),
        ((*INSERT, "-c", "{pipe}"), "data-format"),
        ((*INSERT, "-c", "{folder}"), "data-format"),
        ((*INSERT, "--random-data", "-o", "{pipe}"), "output-not-writable"),
        (("inspect", "model.onnx", "--html", "{pipe}"), "output-not-writable"),
        (("handoff", "model.onnx", "--backend", "onnxruntime-cpu", "-o", "{pipe}"), "output-not-writable"),
    ],
)
def test_pipes_are_no_files(arguments: tuple[str, ...], code: str, pipe: Path, onnxqat: Run) -> None:
    words = [word.format(pipe=pipe, folder=pipe.parent) for word in arguments]
    assert "pipe" in refused(onnxqat, *words, code=code)
