"""How a command ends that cannot do its work: user code that exits, streams, folders and memory that are not there."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxqat as package
from onnxqat.cli import _machine
from onnxqat.errors import InputError, ModelError, QatError

Run = Callable[..., Any]
CODE = """
import sys
import numpy as np

def batches():
    yield np.ones((2, 3, 8, 8), np.float32)
    sys.exit()

def score(path):
    raise SystemExit(0)

class Worse(BaseException): ...

def worse():
    raise Worse("odd")
    yield

def interrupted():
    raise KeyboardInterrupt
    yield
"""


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "onnxqat", *arguments]
    return subprocess.run(command, **{"capture_output": True, "check": False, **options})


@pytest.fixture
def exiting(qdq: Path) -> str:
    """The name of a module whose functions leave; each test has one of its own, since modules stay imported."""
    name = f"leaves_{re.sub('[^a-z]', '_', qdq.parent.name)}_{os.getpid()}_{len(sys.modules)}"
    Path(f"{name}.py").write_text(CODE, encoding="utf-8")
    Path(f"{name}_at_import.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("insert-qdq", "model.onnx", "-c", "CODE:batches", "-o", "out.onnx"), "line 7: sys.exit(None)"),
        (("insert-qdq", "model.onnx", "-c", "CODE_at_import:f", "-o", "out.onnx"), "line 2: sys.exit(0)"),
        (("insert-qdq", "model.onnx", "-c", "CODE:worse", "-o", "out.onnx"), "line 15: Worse('odd') was raised"),
        (("validate", "model.onnx", "model.qdq.onnx", "--data", "CODE:batches", "--no-torch"), "line 7"),
        (("finetune", "model.qdq.onnx", "--data", "CODE:batches", "--max-steps", "2", "-o", "out.onnx"), "line 7"),
        (("finetune", "model.qdq.onnx", "--data", "data.npz", "--method", "CODE_at_import.py"), "line 2"),
        (("export", "CODE_at_import:make", "--example-shape", "1,3", "-o", "out.onnx"), "line 2"),
        (("auto", "model.onnx", "--data", "data.npz", "--score", "CODE:score"), "score-failed"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_code_that_exits_is_an_error(arguments: tuple[str, ...], said: str, exiting: str, onnxqat: Run) -> None:
    done = onnxqat(*(a.replace("CODE", exiting) for a in arguments))
    assert done.status == 2, (done.out, done.err)
    assert "error[code-exited]" in done.err or "error[score-failed]" in done.err
    assert said in done.err
    assert not Path("out.onnx").exists()


def test_python_functions_say_so_too(exiting: str) -> None:
    with pytest.raises(InputError) as caught:
        package.insert_qdq("model.onnx", "onnxruntime-cpu", data=f"{exiting}:batches", output="out.onnx")
    assert caught.value.code == "code-exited"


def test_an_interrupt_stays_one(exiting: str, onnxqat: Run) -> None:
    assert onnxqat("insert-qdq", "model.onnx", "-c", f"{exiting}:interrupted", "-o", "out.onnx").status == 130


@pytest.mark.skipif(os.name == "nt", reason="streams and folders of POSIX")
def test_streams_that_are_closed(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = python("inspect", "model.onnx", stdout=writer, stderr=subprocess.PIPE, capture_output=False)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (141, b"")
    closed = python("insert-qdq", "model.onnx", "--random-data", preexec_fn=lambda: os.close(1))
    assert closed.returncode == 2
    assert closed.stderr.startswith(b"error[output-not-writable]: standard output is closed")
    assert not Path("model.qdq.onnx").exists()


@pytest.mark.skipif(os.name == "nt", reason="streams and folders of POSIX")
def test_a_closed_stream_does_not_end_up_in_a_file(folder: Path) -> None:
    done = python("insert-qdq", "model.onnx", "--random-data", preexec_fn=lambda: [os.close(n) for n in (0, 2)])
    assert done.returncode == 0
    assert python("inspect", "model.qdq.onnx").returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="streams and folders of POSIX")
def test_a_working_folder_that_was_deleted(folder: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); from onnxqat.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for arguments in (
        ["insert-qdq", "model.onnx", "--random-data"],
        ["insert-qdq", str(folder / "model.onnx"), "-c", "m:f"],
    ):
        gone.mkdir(exist_ok=True)
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, cwd=gone, env=environment, capture_output=True, check=False)
        assert done.returncode == 2, done.stderr
        assert b"defect" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="streams and folders of POSIX")
def test_torch_is_not_loaded_in_a_folder_that_was_deleted(qdq: Path, tmp_path: Path) -> None:
    """MKL ends the process as it is loaded there, with status 2 and no code."""
    pytest.importorskip("torch")
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); from onnxqat.cli.main import main; main()"
    model = str(qdq.absolute())
    command = [sys.executable, "-c", script, "validate", model, model, "--random-data"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=gone, env=environment, capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error[machine-limit]: the working folder"), done.stderr


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limit of memory here")
def test_too_little_memory_to_load_a_library(qdq: Path) -> None:
    pytest.importorskip("torch")
    size = 300 * 2**20  # enough for Python and onnx, not for torch
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))  # noqa: E731
    done = python("finetune", "model.qdq.onnx", "--data", "data.npz", "-o", "out.onnx", preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error[machine-limit]: out of memory"), done.stderr
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "machine-limit"),
        (RuntimeError("std::bad_alloc"), "machine-limit"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            "machine-limit",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "machine-limit"),
        (RuntimeError("can't start new thread"), "machine-limit"),
        (OSError(12, "Cannot allocate memory"), "machine-limit"),
        (ModelError("model-not-runnable", "onnxruntime cannot run the model: bad allocation"), "machine-limit"),
        (ModelError("runtime-failed", "it ended with status 1: Memory allocation still failed"), "machine-limit"),
        (OSError(36, "File name too long", "n" * 300), "option-invalid"),
        (PermissionError(13, "Permission denied", "secret"), "option-invalid"),
        (RuntimeError("shapes do not fit"), None),
        (ModelError("model-invalid", "m.onnx: std::bad_alloc"), "machine-limit"),
        (ModelError("model-invalid", "a node called bad_alloc"), None),
        (KeyError("x"), None),
    ],
    ids=str,
)
def test_limits_in_the_words_of_libraries(error: Exception, code: str | None) -> None:
    found = _machine.limit(error)
    assert (found.code if found is not None else None) == code


def test_a_limit_behind_another_error() -> None:
    try:
        try:
            np.empty(2**62, np.uint8)
        except MemoryError as error:
            raise RuntimeError("a step failed") from error
    except RuntimeError as error:
        found = _machine.limit(error)
        assert isinstance(found, QatError)
        assert found.code == "machine-limit"


def test_paths_that_no_system_takes(folder: Path, onnxqat: Run) -> None:
    long = "n" * 300
    for arguments in (
        ("inspect", long),
        ("insert-qdq", "model.onnx", "-c", long),
        ("insert-qdq", "model.onnx", "-o", long),
    ):
        done = onnxqat(*arguments)
        assert done.status == 2, done.err
        assert "File name too long" in done.err


def test_warnings_and_logs_of_libraries_are_printable(folder: Path) -> None:
    Path("noisy.py").write_text(
        "import logging, warnings\nimport numpy as np\n\ndef batches():\n"
        "    warnings.warn('\\x1b[31mred')\n    logging.getLogger('a library').warning('\\x1b[32mgreen')\n"
        "    yield np.ones((2, 3, 8, 8), np.float32)\n",
        encoding="utf-8",
    )
    done = python("insert-qdq", "model.onnx", "-c", "noisy:batches", "-o", "out.onnx")
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stderr
    assert b"red" in done.stderr
    assert b"green" in done.stderr


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limit of memory here")
def test_too_little_memory_to_map_the_data(folder: Path) -> None:
    with Path("large.npy").open("wb") as file:  # a file with a hole: 3 GB that take no space
        header = {"descr": "<f4", "fortran_order": False, "shape": (4_000_000, 3, 8, 8)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4_000_000 * 3 * 8 * 8 * 4)
    size = 2 * 2**30
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))  # noqa: E731
    done = python("insert-qdq", "model.onnx", "-c", "large.npy", "-o", "out.onnx", preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error[machine-limit]"), done.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("OSError(28, 'No space left on device')", 2, b"error[machine-limit]: No space left on device"),
        ("ValueError('of its own')", 0, b"ValueError: of its own"),
    ],
)
def test_a_limit_that_ends_a_thread_ends_the_command(folder: Path, error: str, status: int, said: bytes) -> None:
    Path("threaded.py").write_text(
        f"import threading\nimport numpy as np\n\ndef work():\n    raise {error}\n\ndef batches():\n"
        "    thread = threading.Thread(target=work)\n    thread.start()\n    thread.join()\n"
        "    yield np.ones((2, 3, 8, 8), np.float32)\n",
        encoding="utf-8",
    )
    done = python("insert-qdq", "model.onnx", "-c", "threaded:batches", "-o", "out.onnx")
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert (b"Traceback" in done.stderr) == (status == 0)
