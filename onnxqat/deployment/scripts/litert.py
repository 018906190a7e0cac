"""LiteRT's interpreter inside its environment."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the model with reference kernels, or those that the option ``kernels`` names; codes in and out.

    Options: ``kernels``, a name of ``OpResolverType``: BUILTIN_REF without, BUILTIN for XNNPACK.
    """
    litert = importlib.import_module("ai_edge_litert.interpreter")
    model = Path(job["model"])
    facts = json.loads(model.with_suffix(".json").read_text(encoding="utf-8"))
    kernels = litert.OpResolverType[job["options"].get("kernels", "BUILTIN_REF")]
    interpreter = litert.Interpreter(str(model), experimental_op_resolver_type=kernels, num_threads=1)
    interpreter.allocate_tensors()
    runs = [_run(interpreter, facts, batch) for batch in job["batches"]]
    files = []
    if job["artefacts"] is not None:
        files = ["litert/model.tflite"]
        (Path(job["artefacts"]) / "litert").mkdir()
        shutil.copyfile(model, Path(job["artefacts"]) / files[0])
    return {"outputs": runs, "files": files, "facts": {"nodes": facts["nodes"]}}


def _run(interpreter: Any, facts: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
    for port, detail in zip(facts["inputs"], interpreter.get_input_details(), strict=True):
        array = batch[port["name"]]
        if port["scale"] is not None:
            codes = np.round(array / np.float32(port["scale"])) + port["zero_point"]
            array = np.clip(codes, -128, 127).astype(np.int8)
        interpreter.set_tensor(detail["index"], np.ascontiguousarray(array.transpose(port["layout"])))
    interpreter.invoke()
    outputs = {}
    for port, detail in zip(facts["outputs"], interpreter.get_output_details(), strict=True):
        array = interpreter.get_tensor(detail["index"])
        if port["scale"] is not None:
            array = (array.astype(np.float32) - np.float32(port["zero_point"])) * np.float32(port["scale"])
        outputs[port["name"]] = array.transpose(np.argsort(port["layout"]))
    return outputs
