"""Sony's IMX500 converter inside its environment."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ERROR = re.compile(r"ERROR ?: CODE: (?:\[\w+\] )?(.*?)(?:\[/[^\]]*\])?$")
_LAYER = re.compile(r"Layer \w+: (\S+) (.*)")


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Convert, and run the quantizers' own operators in onnxruntime."""
    with tempfile.TemporaryDirectory(prefix="onnxqat-") as folder:
        target = Path(folder) / "out"
        command = [str(Path(sys.executable).parent / "imxconv-pt"), "-i", job["model"], "-o", str(target)]
        for key, value in job["options"].items():
            command += [f"--{key}", value]
        done = subprocess.run(command, capture_output=True, text=True)
        packed = sorted(target.rglob("packerOut.zip"))
        if done.returncode or not packed:
            return _refused(done.stdout + done.stderr, done.returncode)
        files = []
        if job["artefacts"] is not None:
            files = ["imx500/packerOut.zip", "imx500/model.onnx"]
            (Path(job["artefacts"]) / "imx500").mkdir()
            shutil.copyfile(packed[0], Path(job["artefacts"]) / files[0])
            shutil.copyfile(job["model"], Path(job["artefacts"]) / files[1])
    return {"outputs": _run(job), "files": files, "facts": {}}


def _run(job: dict[str, Any]) -> list[dict[str, Any]]:
    ort, quantizers = importlib.import_module("onnxruntime"), importlib.import_module("mct_quantizers")
    options = quantizers.get_ort_session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    return [dict(zip(job["outputs"], session.run(job["outputs"], batch), strict=True)) for batch in job["batches"]]


def _refused(text: str, status: int) -> dict[str, Any]:
    told = [m[1].strip() for m in map(_ERROR.search, text.splitlines()) if m]
    lines = list(dict.fromkeys(told)) or [line for line in text.splitlines() if line.strip()][-2:]
    refused = [[m[1], m[2]] for m in map(_LAYER.match, lines) if m]
    return {"error": f"the converter ended with status {status}: {'; '.join(lines)[:1000]}", "refused": refused}
