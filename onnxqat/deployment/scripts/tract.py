"""tract inside its environment."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "int8": "i8"}
TYPES.update({"uint8": "u8", "bool": "bool", "int16": "i16", "uint16": "u16", "uint32": "u32", "uint64": "u64"})


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Optimize and run; what tract refuses comes without its stack trace."""
    tract = importlib.import_module("tract")
    try:
        model = tract.onnx().load(job["model"])
        names = [model.input_name(i) for i in range(model.input_count())]
        for i, name in enumerate(names):
            array = job["batches"][0][name]
            model.set_input_fact(i, ",".join([*map(str, array.shape), TYPES[str(array.dtype)]]))
        runnable = model.into_model().into_runnable()
        outputs = []
        for batch in job["batches"]:
            found = runnable.run([np.ascontiguousarray(batch[n]) for n in names])
            outputs.append({name: found[i].to_numpy() for i, name in enumerate(job["outputs"])})
    except tract.TractError as error:
        text = str(error).partition("Stack backtrace")[0]
        return {"error": " ".join(text.split())[:1000]}
    return {"outputs": outputs, "files": [], "facts": {}}
