"""Run a model in onnxruntime and in the bridge, and compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from onnxqat.bridge.importing.importer import to_torch


def session(model: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    """A session that computes what the graph says: no optimization, one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def feeds(runner: onnxruntime.InferenceSession, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs; `sizes` gives dimensions that are not fixed, the first one being `batch` unless it is named."""
    random = np.random.default_rng(seed)
    made = {}
    for given in runner.get_inputs():
        shape = [
            d
            if isinstance(d, int) and d > 0
            else sizes.get(str(d), sizes["batch"] if axis == 0 else sizes.get("any", 4))
            for axis, d in enumerate(given.shape)
        ]
        if "int" in given.type:
            made[given.name] = random.integers(0, 2, shape).astype(np.int32 if "32" in given.type else np.int64)
        elif "bool" in given.type:
            made[given.name] = random.integers(0, 2, shape).astype(bool)
        else:
            made[given.name] = random.standard_normal(shape).astype(np.float16 if "16" in given.type else np.float32)
    return made


def run_module(module: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of an imported module."""
    with torch.no_grad():
        result = module(*[torch.from_numpy(np.array(inputs[name])) for name in module.input_names])
    return [r.detach().numpy() for r in (result if isinstance(result, tuple) else (result,))]


def assert_close(found: list[np.ndarray], wanted: list[np.ndarray], what: str = "") -> None:
    """Same number, shapes and types; largest difference below 1e-4, or 1e-3 of the largest value."""
    assert len(found) == len(wanted)
    for index, (f, w) in enumerate(zip(found, wanted, strict=True)):
        assert (f.shape, f.dtype) == (w.shape, w.dtype), f"{what} output {index}"
        if not w.size:
            continue
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(f, w, err_msg=f"{what} output {index}")
            continue
        limit = max(1e-4, 1e-3 * float(np.nanmax(np.abs(w[np.isfinite(w)]), initial=0.0)))
        np.testing.assert_allclose(f, w, rtol=0, atol=limit, equal_nan=True, err_msg=f"{what} output {index}")


def check(model: onnx.ModelProto | str, inputs: Mapping[str, np.ndarray] | None = None, **sizes: int) -> Any:
    """Import `model`, compare with onnxruntime; returns the module."""
    module = to_torch(model)
    runner = session(model)
    given = dict(inputs) if inputs is not None else feeds(runner, {"batch": 2, **sizes})
    assert_close(run_module(module, given), runner.run(None, given))
    return module
