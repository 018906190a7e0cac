"""Vela inside its environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_MAIN = "from ethosu.vela import vela; vela.main()"


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Compile, and give the lines that say where each operator runs; options are those of Vela's command line."""
    model = Path(job["model"])
    facts = json.loads(model.with_suffix(".json").read_text(encoding="utf-8"))
    options = {"accelerator_config": "ethos-u55-128", **job["options"]}
    with tempfile.TemporaryDirectory(prefix="onnxqat-") as folder:
        command = [sys.executable, "-I", "-c", _MAIN, str(model), "--show-cpu-operations"]
        command += ["--output-dir", folder]
        for key, value in options.items():
            command += [f"--{key.replace('_', '-')}", value]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        compiled = Path(folder) / "model_vela.tflite"
        if done.returncode or not compiled.is_file():
            lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            return {"error": " | ".join(lines[-3:])[-1000:] or f"Vela ended with status {done.returncode}"}
        files = []
        if job["artefacts"] is not None:
            target = Path(job["artefacts"]) / "litert"
            target.mkdir()
            shutil.copyfile(model, target / "model.tflite")
            shutil.copyfile(compiled, target / "model_vela.tflite")
            files = ["litert/model.tflite", "litert/model_vela.tflite"]
    rows = [line for line in done.stdout.splitlines() if line.lstrip().startswith(("NPU: ", "CPU: "))]
    return {"outputs": [], "files": files, "facts": {"nodes": facts["nodes"], "rows": rows}}
