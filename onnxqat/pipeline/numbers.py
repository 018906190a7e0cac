"""A model before and after a pass, computed by onnxruntime with its graph optimization off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from onnxqat.promises import BrokenError

if TYPE_CHECKING:
    import onnxruntime as ort


def compare_outputs(a: onnx.ModelProto, b: onnx.ModelProto, atol: float, seed: int = 0, size: int = 2) -> None:
    """Compare the outputs of two models by name, on random inputs.

    Args:
        a: the model before.
        b: the model after; it may read fewer inputs.
        atol: largest difference that is accepted.
        seed: of the random numbers.
        size: of symbolic dimensions.

    Raises:
        BrokenError: they differ.
    """
    feeds = random_feeds(a, seed, size)
    left = ort_run(a, feeds)
    taken = {i.name for i in b.graph.input}
    right = ort_run(b, {name: array for name, array in feeds.items() if name in taken})
    if list(left) != list(right):
        raise BrokenError(f"outputs {', '.join(left)} became {', '.join(right)}", "numbers")
    for name, before in left.items():
        after = right[name]
        if before.dtype != after.dtype or before.shape != after.shape:
            kinds = f"{before.dtype} {list(before.shape)} became {after.dtype} {list(after.shape)}"
            raise BrokenError(f"output {name!r}: {kinds}", "numbers")
        if before.dtype == object:
            same = np.array_equal(before, after)
        else:
            same = np.allclose(after, before, rtol=0, atol=atol, equal_nan=True)
        if not same:
            raise BrokenError(f"output {name!r} differs{_by(before, after)}, {atol:g} is accepted", "numbers")


def _by(before: np.ndarray, after: np.ndarray) -> str:
    if before.dtype.kind not in "fiu":
        return ""
    return f" by up to {np.nanmax(np.abs(before.astype(np.float64) - after.astype(np.float64))):.3g}"


def ort_run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs by name, graph optimization off, one thread."""
    session = ort_session(model)
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))


def ort_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Open a session, graph optimization off, one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def random_feeds(model: onnx.ModelProto, seed: int, size: int = 2) -> dict[str, np.ndarray]:
    """Return random inputs; symbolic dimensions get `size`."""
    rng = np.random.default_rng(seed)
    constants = {i.name for i in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.dim_value > 0 else size for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype == np.bool_:
            feeds[value.name] = np.full(shape, seed % 2 == 0)
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[value.name] = np.asarray(rng.normal(size=shape) * 2).astype(dtype)
    return feeds
