"""Scales that are no step of a grid: negative, 0, NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import qdq, query, walk

HINT = (
    "a scale is a step and above 0, compilers take it so: calibrate again from the float model (onnxqat insert-qdq), "
    "and train with a parametrization that cannot cross 0, as onnxqat finetune has"
)


def negative(scale: npt.NDArray[np.float32], *, blocked: bool = False) -> npt.NDArray[np.bool_]:
    """Return where `scale` (any shape) is negative; in blocks it may be: the largest value of one then gets code -8."""
    return np.zeros(scale.shape, np.bool_) if blocked else scale < 0


def defect(scale: npt.NDArray[np.float32], *, blocked: bool = False) -> str:
    """Describe defects of `scale` (any shape) and count their places; empty without any."""
    kinds = (
        ("is NaN or infinite", ~np.isfinite(scale)),
        ("is negative", negative(scale, blocked=blocked)),
        ("is 0", scale == 0),
    )
    for text, places in kinds:
        count = int(np.count_nonzero(places))
        if count:
            return text if scale.size == 1 else f"{text} in {count} of {scale.size} places"
    return ""


def defects(model: ir.Model) -> Iterator[str]:
    """Yield a line for each constant scale that is none, with its name and the tensor that it quantizes."""
    seen: set[int] = set()
    for node in walk.nodes(model):
        value = query.input_at(node, 1)
        if value is None or id(value) in seen or not qdq.is_qdq(node):
            continue
        seen.add(id(value))
        array = query.constant_array(value)
        blocked = bool(query.attribute(node, "block_size", 0))
        text = "" if array is None else defect(np.asarray(array, np.float32), blocked=blocked)
        if text:
            tensor = node.inputs[0].name if node.inputs[0] is not None else ""
            yield f"scale {value.name!r} of tensor {tensor!r} {text}"


def check(model: ir.Model, name: str = "the model") -> None:
    """Refuse a model with a scale that is no step.

    Args:
        model: a quantized model.
        name: of the model, for the message.

    Raises:
        ModelError: ``scale-invalid``.
    """
    found = next(defects(model), None)
    if found is not None:
        raise ModelError("scale-invalid", f"{name}: {found}", hint=HINT)
