"""A signal ends a command with one line and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
# Data that say that they are read, and do not end.
PYTHON = """
import pathlib, time
def batches():
    pathlib.Path("reading").touch()
    yield time.sleep(600)
"""
TURNED = """
import pathlib, time
def batches():
    pathlib.Path("reading").touch()
    try:
        yield time.sleep(600)
    except KeyboardInterrupt:
        raise ImportError("as native code says that is interrupted") from None
"""
NATIVE = (
    """
import pathlib
import numpy as np, onnx, onnxruntime
TEXT = """
    + "'''"
    + """<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) {
    most = Constant<value = int64 {9223372036854775807}> ()
    on = Constant<value = bool {1}> ()
    y = Loop<body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w) { d = Identity(c) w = Identity(v) }>
        (most, on, x) }"""
    + "'''"
    + """
def batches():
    model = onnx.parser.parse_model(TEXT).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    pathlib.Path("reading").touch()
    yield session.run(None, {"x": np.zeros(1, np.float32)})
"""
)


def start(folder: Path, data: str, *, ignored: bool = False) -> subprocess.Popen[str]:
    """`insert-qdq` in `folder`, as soon as it reads `data`; started to ignore SIGHUP, or not."""
    (folder / "slow.py").write_text(data, encoding="utf-8")
    (folder / "temporary").mkdir()
    command = [sys.executable, "-m", "onnxqat", "insert-qdq", "model.onnx", "-c", "slow:batches", "-o", "out.onnx"]
    env = {**os.environ, "TMPDIR": "temporary", "PYTHONDONTWRITEBYTECODE": "1"}
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    while not (folder / "reading").exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_signals(folder: Path, number: signal.Signals, status: int, line: str) -> None:
    before = set(os.listdir(folder))
    process = start(folder, PYTHON)
    process.send_signal(number)
    _, words = process.communicate()
    assert (process.returncode, words.strip()) == (status, line)
    assert set(os.listdir(folder)) - before == {"slow.py", "temporary", "reading"}
    assert not [name for name in os.listdir(folder / "temporary") if "onnxqat" in name]


def test_a_signal_that_something_else_was_made_of(folder: Path) -> None:
    process = start(folder, TURNED)
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate()
    assert (process.returncode, words.strip()) == (143, "ended by SIGTERM")


def test_native_code_that_does_not_come_back_is_left(folder: Path) -> None:
    process = start(folder, NATIVE)
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate()
    assert (process.returncode, words.strip()) == (143, "ended by SIGTERM, in the middle of a computation")


def test_a_signal_that_is_ignored_stays_ignored(folder: Path) -> None:
    process = start(folder, PYTHON, ignored=True)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
