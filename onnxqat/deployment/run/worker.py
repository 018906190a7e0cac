"""The process that a compiler runs in: ``python -m onnxqat.deployment.run.worker JOB_FOLDER``.

The job folder holds ``job.json`` and ``feeds.npz``; ``result.json`` and ``outputs.npz`` are written into it. Arrays go
by number, since tensor names may be anything.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from onnxqat.deployment import base_compiler
from onnxqat.errors import QatError


def _is_numbers(value: Any) -> bool:
    """Check whether `value` can be compared in LSB: neither strings nor a sequence of tensors."""
    return isinstance(value, np.ndarray) and value.dtype.kind != "O"


def main(folder: Path) -> None:
    """Compile, run, and write what came out; an exception is written as its message."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with np.load(folder / "feeds.npz", allow_pickle=False) as arrays:
        batches = [{name: arrays[str(index)] for name, index in batch.items()} for batch in job["batches"]]
    artefacts = Path(job["artefacts"]) if job["artefacts"] else None
    compiler = base_compiler.load(job["compiler"], job["options"])
    compiler.threads = job["threads"]
    try:
        result = compiler.compile_and_run(Path(job["model"]), batches, artefacts)
    except QatError as error:
        content: dict[str, object] = {"code": error.code, "error": error.message, "hint": error.hint}
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        content = {"error": f"{type(error).__name__}: {' '.join(lines)[:1000]}"}
    else:
        kept = [{n: v for n, v in outputs.items() if _is_numbers(v)} for outputs in result.outputs]
        flat = [value for outputs in kept for value in outputs.values()]
        numbers = iter(range(len(flat)))
        numbered: dict[str, Any] = {str(i): value for i, value in enumerate(flat)}
        np.savez(folder / "outputs.npz", **numbered)
        content = {
            "outputs": [{name: next(numbers) for name in outputs} for outputs in kept],
            "nodes": [dataclasses.asdict(node) for node in result.nodes],
            "files": result.files,
            "settings": dict(result.settings),
        }
    staged = folder / "result.part"
    staged.write_text(json.dumps(content), encoding="utf-8")
    staged.replace(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
