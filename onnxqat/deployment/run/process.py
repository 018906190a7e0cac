"""Run a compiler in a process of its own, so that one that crashes or hangs takes nothing down with it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnxqat.deployment.base_compiler import Array, BaseCompiler, CompilerResult, ScriptJob
from onnxqat.deployment.run.child import MEMORY_VARIABLE, memory_limit, run_child
from onnxqat.errors import CheckError, ErrorCode, UsageError
from onnxqat.graph.staging import scratch

WORKER = "onnxqat.deployment.run.worker"
_PACKAGE = Path(__file__).resolve().parents[2]
SCRIPT = _PACKAGE / "deployment" / "scripts" / "_main.py"
_SHOWN = 5
_NO_MEMORY = re.compile(
    r"MemoryError|bad_?alloc|out of memory|insufficient memory|memory allocation|allocat\w* (memory|failed)",
    re.IGNORECASE,
)
Stop = Literal["refused", "crash", "hang"]
RARE_TYPES = {onnx.TensorProto.BFLOAT16: "bfloat16", onnx.TensorProto.DOUBLE: "double"}


class CompilerStopError(CheckError):
    """A compiler made nothing of a model: code ``handoff-failed``.

    Attributes:
        outcome: ``refused`` with words of its own, ``crash`` without a result, or ``hang`` until it was stopped.
    """

    def __init__(self, code: ErrorCode, message: str, *, hint: str = "", outcome: Stop = "refused") -> None:
        super().__init__(code, message, hint=hint)
        self.outcome: Stop = outcome


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

    A compiler with an environment runs there, on a copy of the model with static shapes; others in this Python.

    Args:
        compiler: what to run.
        path: the model.
        batches: feeds by input name; plain numpy types.
        artefacts: folder for the vendor's files.
        timeout: seconds.
        module: what the process runs, for tests.

    Raises:
        CompilerStopError: refused, crashed or out of time, with the compiler's own words.
        UsageError: ``dependency-missing``.
    """
    with scratch() as folder:
        job = _job(compiler, path, batches, artefacts)
        command = [sys.executable, "-m", module, str(folder)]
        script = compiler.script_job(path, batches, folder)
        if script is not None:
            outputs = [value.name for value in script.original.graph.output]
            job.update(model=str(script.model), script=script.name, outputs=outputs)
            command = [str(script.interpreter), "-I", str(SCRIPT), str(folder)]
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _write_feeds(folder, batches)
        with (folder / "log").open("w+b") as log:
            surroundings = _surroundings(folder)
            status = run_child(command, cwd=folder, env=surroundings, log=log, timeout=timeout)
            words = _last_words(log)
        if status is None:
            text = f"{compiler.name} did not end within {timeout:g} s and was stopped"
            raise CompilerStopError("handoff-failed", text, outcome="hang")
        if not (folder / "result.json").exists():
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            hint = _of_memory(words, surroundings)
            text = f"{compiler.name} {how}{': ' + words if words else ''}"
            raise CompilerStopError("handoff-failed", text, hint=hint, outcome="crash")
        return _read_result(folder, compiler, script, path)


def _job(
    compiler: BaseCompiler, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None
) -> dict[str, Any]:
    numbers = iter(range(sum(len(batch) for batch in batches)))
    return {
        "compiler": compiler.file or compiler.name,
        "options": compiler.options,
        "threads": compiler.threads,
        "model": str(path.resolve()),
        "artefacts": None if artefacts is None else str(artefacts.resolve()),
        "batches": [{key: next(numbers) for key in batch} for batch in batches],
    }


def _write_feeds(folder: Path, batches: Sequence[Mapping[str, Array]]) -> None:
    flat = [array for batch in batches for array in batch.values()]
    arrays: dict[str, Any] = {str(i): array for i, array in enumerate(flat)}
    np.savez(folder / "feeds.npz", **arrays)


def _surroundings(folder: Path) -> dict[str, str]:
    """The child's environment: its temporary files go with the job's folder, whatever it leaves behind."""
    paths = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    return dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in paths if p), **temporary)


def _of_memory(words: str, surroundings: Mapping[str, str]) -> str:
    """Return the hint for a compiler that ran into its memory limit; empty where its `words` tell of another error."""
    if not _NO_MEMORY.search(words):
        return ""
    gigabytes = memory_limit(surroundings) / 2**30
    return f"a compiler may use {gigabytes:.3g} GB: {MEMORY_VARIABLE}=N allows N, 0 any number" if gigabytes else ""


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


def _rare_types(path: Path) -> str:
    """Return the hint for inputs and outputs of types that few compilers take; empty where there are none."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except DecodeError:
        return ""
    found = [
        f"{value.name!r} is {kind}"
        for value in (*graph.input, *graph.output)
        if (kind := RARE_TYPES.get(value.type.tensor_type.elem_type)) is not None
    ]
    return f"{' and '.join(found)}: make the file with `onnxqat insert-qdq --float32-io`" if found else ""


def _read_result(folder: Path, compiler: BaseCompiler, script: ScriptJob | None, path: Path) -> CompilerResult:
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if found.get("code") == "dependency-missing":
        raise UsageError("dependency-missing", found["error"], hint=found["hint"])
    if "error" in found:
        refused = [f"{node}: {why}" for node, why in found.get("refused", []) if node]
        hint = f"it names {'; '.join(refused[:_SHOWN])}" if refused else found.get("hint", "")
        hint = hint or _of_memory(found["error"], os.environ) or _rare_types(path)
        text = f"{compiler.name} refused the model: {found['error']}"
        raise CompilerStopError("handoff-failed", text, hint=hint, outcome="refused")
    with np.load(folder / "outputs.npz", allow_pickle=False) as arrays:
        outputs = tuple({key: arrays[str(i)] for key, i in batch.items()} for batch in found["outputs"])
    settings = found.get("settings", {})
    return CompilerResult(outputs, compiler.nodes_of(found, script), tuple(found["files"]), settings)
