"""The process inside an environment: ``python -I _main.py JOB_FOLDER``.

The job folder holds ``job.json`` and ``feeds.npz``; ``result.json`` and ``outputs.npz`` are written into it. The script
named in the job gives a dict: ``outputs`` (one dict of arrays a batch), ``files``, and ``facts`` (JSON) from which
onnxqat reads back how each node runs; or ``error`` and ``refused`` (pairs of node name and reason).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    """Do the job and write what came out; an exception is written as its message."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with np.load(folder / "feeds.npz", allow_pickle=False) as feeds:
        job["batches"] = [{name: feeds[str(index)] for name, index in batch.items()} for batch in job["batches"]]
    try:
        found = _script(job["script"]).compile_and_run(job)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if any("Traceback" in line for line in lines):
            lines = lines[-1:]  # some tools raise their own stack trace as the message
        found = {"error": f"{type(error).__name__}: {' '.join(lines)[:1000]}"}
    outputs: list[dict[str, Any]] = found.pop("outputs", [])
    flat = [value for batch in outputs for value in batch.values()]
    numbers = iter(range(len(flat)))
    found["outputs"] = [{name: next(numbers) for name in batch} for batch in outputs]
    arrays: dict[str, Any] = {str(i): np.asarray(value) for i, value in enumerate(flat)}
    np.savez(folder / "outputs.npz", **arrays)
    staged = folder / "result.part"
    staged.write_text(json.dumps(found), encoding="utf-8")
    staged.replace(folder / "result.json")


def _script(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"onnxqat_script_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(Path(sys.argv[1]))
