"""Run a compiler in a process of its own, so that one that crashes or hangs takes nothing down with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

import onnxqat
from onnxqat.errors import CheckError, UsageError
from onnxqat.handoff._base import Array, BaseCompiler, CompilerResult, NodeResult

WORKER = "onnxqat.handoff._worker"
_ROOT = Path(onnxqat.__file__).resolve().parents[1]


def compile_in_process(
    compiler: BaseCompiler,
    path: Path,
    batches: Sequence[Mapping[str, Array]],
    *,
    artefacts: Path | None = None,
    timeout: float = 300.0,
    module: str = WORKER,
) -> CompilerResult:
    """:meth:`BaseCompiler.compile_and_run` in a process that is killed, with its children, after `timeout` seconds.

    Args:
        compiler: what to run.
        path: the model.
        batches: feeds by input name; plain numpy types.
        artefacts: folder for the vendor's files.
        timeout: seconds.
        module: what the process runs, for tests.

    Raises:
        CheckError: ``handoff-failed``: refused, crashed or out of time, with the compiler's own words.
        UsageError: ``dependency-missing``.
    """
    with tempfile.TemporaryDirectory(prefix="onnxqat-") as name:
        folder = Path(name)
        _write_job(folder, compiler, path, batches, artefacts)
        with (folder / "log").open("w+b") as log:
            status = _run(module, folder, log, timeout)
            words = _last_words(log)
        if status is None:
            raise CheckError("handoff-failed", f"{compiler.name} did not end within {timeout:g} s and was stopped")
        if not (folder / "result.json").exists():
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise CheckError("handoff-failed", f"{compiler.name} {how}{': ' + words if words else ''}")
        return _read_result(folder, compiler)


def _write_job(
    folder: Path, compiler: BaseCompiler, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None
) -> None:
    flat = [array for batch in batches for array in batch.values()]
    numbers = iter(range(len(flat)))
    job = {
        "compiler": compiler.name,
        "options": compiler.options,
        "model": str(path.resolve()),
        "artefacts": None if artefacts is None else str(artefacts.resolve()),
        "batches": [{key: next(numbers) for key in batch} for batch in batches],
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    arrays: dict[str, Any] = {str(i): array for i, array in enumerate(flat)}
    np.savez(folder / "feeds.npz", **arrays)


def _run(module: str, folder: Path, log: IO[bytes], timeout: float) -> int | None:
    """Exit status, negative for a signal; None when time ran out."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in paths if p))
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(folder)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after an interrupt, and for children that the compiler left behind.
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


def _read_result(folder: Path, compiler: BaseCompiler) -> CompilerResult:
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if found.get("code") == "dependency-missing":
        raise UsageError("dependency-missing", found["error"], hint=found["hint"])
    if "error" in found:
        raise CheckError("handoff-failed", f"{compiler.name} refused the model: {found['error']}")
    with np.load(folder / "outputs.npz", allow_pickle=False) as arrays:
        outputs = tuple({key: arrays[str(i)] for key, i in batch.items()} for batch in found["outputs"])
    return CompilerResult(outputs, tuple(NodeResult(**node) for node in found["nodes"]), tuple(found["files"]))
