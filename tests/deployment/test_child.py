"""Children of a command end with it, whatever ends it, and within their memory."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from onnxqat.deployment.run import child, process
from onnxqat.errors import UsageError

posix = pytest.mark.skipif(sys.platform == "win32", reason="process groups of POSIX")
# What a parent runs: a child that starts a child of its own, and both wait.
PARENT = """
import os, sys, tempfile
from pathlib import Path
from onnxqat.deployment.run.child import run_child
inner = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
with open(sys.argv[1], "w+b") as log:
    run_child([sys.executable, "-c", outer], cwd=Path("."), env=os.environ, log=log, timeout=600.0)
"""


def is_running(number: int) -> bool:
    """Whether there is such a process that is no zombie."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@posix
def test_children_of_a_killed_command_end(tmp_path: Path, repository: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)], cwd=repository)
    while not (log.exists() and log.read_bytes().endswith(b"\n")):
        assert parent.poll() is None
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    grandchild = int(log.read_bytes())
    while is_running(grandchild):  # for ever, and so until the test runner's patience ends, where it goes on
        time.sleep(0.02)


def run(code: str, tmp_path: Path, **variables: str) -> tuple[int | None, str]:
    with tempfile.TemporaryFile("w+b") as log:
        env = dict(os.environ, **variables)
        status = child.run_child([sys.executable, "-c", code], cwd=tmp_path, env=env, log=log, timeout=600.0)
        log.seek(0)
        return status, log.read().decode()


@pytest.mark.parametrize("status", [0, 3])
def test_status(tmp_path: Path, status: int) -> None:
    assert run(f"raise SystemExit({status})", tmp_path)[0] == status


@posix
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGINT])
def test_signal(tmp_path: Path, number: signal.Signals) -> None:
    assert run(f"import os; os.kill(os.getpid(), {int(number)})", tmp_path)[0] == -number


@pytest.mark.skipif(sys.platform != "linux", reason="a limit that Linux enforces")
@pytest.mark.parametrize(("gigabytes", "ends"), [("0.25", 1), ("0", 0), ("2", 0)])
def test_memory_is_limited(tmp_path: Path, gigabytes: str, ends: int) -> None:
    status, words = run("bytearray(2**29)", tmp_path, **{child.MEMORY_VARIABLE: gigabytes})
    assert (status, "MemoryError" in words) == (ends, bool(ends))


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_none(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        child.memory_limit({child.MEMORY_VARIABLE: given})
    assert child.MEMORY_VARIABLE in caught.value.message


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+b") as log:
        status = child.run_child([str(tmp_path / "none")], cwd=tmp_path, env=os.environ, log=log, timeout=600.0)
        log.seek(0)
        assert (status, b"No such file" in log.read()) == (127, True)


def test_the_script_that_compiles_elsewhere_is_where_the_process_looks_for_it() -> None:
    assert process.SCRIPT.is_file()
