"""RKNN-Toolkit2 inside its environment: Rockchip's compiler and its simulator."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TARGET = "rk3588"
# The toolkit asks for this level where it finds a quantized file. With 3, its default, the result of a pool of averages
# lies on the grid of its input, whatever the file says, and windows of more than 7 x 7 are rounded twice.
LEVEL = 2
# Seen with 2.5.0: where an operand of six axes is stored they end with "'IRGraph' object has no attribute
# 'node_use_target_const'"; they take a Reshape that stands in front of one away, too.
FAILING_RULES = [f"squeeze_nd_{name}" for name in ("add", "sub", "mul", "div")]
_ERROR = re.compile(r"(?:\x1b\[[0-9;]*m)*E(?:\x1b\[[0-9;]*m)* (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Build for the option ``target_platform``, simulate, and give the compiler's table of operators."""
    said = {"out": "", "err": ""}
    with _captured(said):
        rknn = importlib.import_module("rknn.api").RKNN(verbose=True)
        step = _build(rknn, job)
    if step:
        errors = [m[1] for m in map(_ERROR.match, said["err"].splitlines() + said["out"].splitlines()) if m]
        told = [line for line in map(_without_colour, errors) if "version:" not in line and "Traceback" not in line]
        return {"error": f"{step} failed: {' '.join(told[-3:])[-1000:]}"}
    files = []
    if job["artefacts"] is not None:
        files = ["rknn/model.rknn", "rknn/model.onnx"]
        target = Path(job["artefacts"]) / files[0]
        target.parent.mkdir()
        rknn.export_rknn(str(target))
        shutil.copyfile(job["model"], Path(job["artefacts"]) / files[1])
    facts = {"table": [line for line in said["out"].splitlines() if line.startswith("D RKNN:")]}
    rknn.init_runtime()
    outputs = []
    for batch in job["batches"]:
        arrays = [np.ascontiguousarray(array) for array in batch.values()]
        layouts = ["nchw" if array.ndim == 4 else "undefined" for array in arrays]
        found = rknn.inference(arrays, data_format=layouts)
        outputs.append({name: np.asarray(found[i]) for i, name in enumerate(job["outputs"])})
    rknn.release()
    return {"outputs": outputs, "files": files, "facts": facts}


def _without_colour(line: str) -> str:
    return _COLOUR.sub("", line).strip()


def _build(rknn: Any, job: dict[str, Any]) -> str:
    """Name of the step that failed; empty when all went well."""
    options: dict[str, Any] = {"target_platform": TARGET, "optimization_level": LEVEL, "disable_rules": FAILING_RULES}
    options.update({key: value for key, value in job["options"].items() if "." not in key})
    options["optimization_level"] = int(options["optimization_level"])
    calls = {"config": options, "load_onnx": {"model": job["model"]}, "build": {"do_quantization": False}}
    name = ""
    try:
        for name, arguments in calls.items():
            if getattr(rknn, name)(**arguments) not in (0, None):
                return name
    except Exception as error:  # the toolkit raises what it has logged, with its own stack trace as the message
        sys.stderr.write(f"E {type(error).__name__}: {str(error).strip().splitlines()[-1]}\n")
        return name
    return ""


@contextlib.contextmanager
def _captured(said: dict[str, str]) -> Iterator[None]:
    """Capture the output of the toolkit and its libraries, each stream by itself: mixed, lines break in the middle."""
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        sys.stdout.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)
            for name, file in (("out", out), ("err", err)):
                file.seek(0)
                said[name] = file.read().decode("utf-8", "replace")
