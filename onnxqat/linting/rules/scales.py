"""Scales that are no usable step: zero, negative, not finite, too small, or computed while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query, scale_defects
from onnxqat.linting.context import LintContext, block_size, scale
from onnxqat.linting.rule import Found, Rule

_SMALLEST = {ir.DataType.FLOAT16: 6.1035156e-5}  # smallest normal number where it is not float32's


def _scales(file: LintContext) -> Iterator[tuple[ir.Node, ir.Value, np.ndarray]]:
    """Each constant scale once, with the first node that reads it."""
    seen: set[int] = set()
    for node in file.ends:
        array, value = scale(node), query.input_at(node, 1)
        if array is not None and value is not None and id(value) not in seen:
            seen.add(id(value))
            yield node, value, array


def _where(
    file: LintContext, wrong: Callable[[ir.Node, ir.Value, np.ndarray], np.ndarray], text: str
) -> Iterator[Found]:
    for node, value, array in _scales(file):
        count = int(np.count_nonzero(wrong(node, value, array)))
        if count:
            share = "" if array.size == 1 else f" in {count} of {array.size} places"
            yield Found(f"the scale {text}{share}", node, str(value.name))


def _zero(file: LintContext) -> Iterator[Found]:
    yield from _where(file, lambda _node, _value, array: array == 0, "is 0")


def _negative(file: LintContext) -> Iterator[Found]:
    def wrong(node: ir.Node, _value: ir.Value, array: np.ndarray) -> np.ndarray:
        return scale_defects.negative(array, blocked=block_size(node) != 0)

    yield from _where(file, wrong, "is negative")


def _not_finite(file: LintContext) -> Iterator[Found]:
    yield from _where(file, lambda _node, _value, array: ~np.isfinite(array), "is NaN or infinite")


def _denormal(file: LintContext) -> Iterator[Found]:
    def wrong(_node: ir.Node, value: ir.Value, array: np.ndarray) -> np.ndarray:
        tiny = _SMALLEST.get(value.dtype or ir.DataType.FLOAT, float(np.finfo(np.float32).tiny))
        return np.asarray((np.abs(array) < tiny) & (array != 0))

    yield from _where(file, wrong, "is a denormal number")


def _find_computed_scales(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        if len(node.inputs) > 1 and scale(node) is None:
            yield Found("the scale is computed while the model runs", node, str(getattr(node.inputs[1], "name", "")))


RULES = (
    Rule(
        code="scale-zero",
        severity="error",
        defect="a scale is 0",
        reason="x / 0 is infinite or NaN, and every value comes back as 0",
        remedy="calibrate again; a tensor that is always 0 gets scale 1 and zero point 0",
        source="onnxruntime 1.32 run with scale 0: the output is +0 or -0 everywhere",
        check=_zero,
    ),
    Rule(
        code="scale-negative",
        severity="error",
        defect="a scale is negative",
        reason="compilers take scales for positive: min and max change places, and Relu-like saturation is on the wrong side",
        remedy="keep scales positive in training (a parametrization that cannot cross 0) and calibrate this one again",
        source="NVIDIA TensorRT developer guide, Q/DQ scales are positive; MQBench's LSQ flips learned scales by abs",
        check=_negative,
    ),
    Rule(
        code="scale-not-finite",
        severity="error",
        defect="a scale is NaN or infinite",
        reason="onnxruntime quantizes NaN to the smallest code, so that a diverged model looks alive; infinity gives NaN",
        remedy="take a checkpoint from before training diverged, or calibrate again without infinite inputs",
        source="onnxruntime 1.32 run with scale inf: NaN; NaN input: the smallest code",
        check=_not_finite,
    ),
    Rule(
        code="scale-denormal",
        severity="warning",
        defect="a scale is smaller than the smallest normal number of its type",
        reason="processors and compilers flush it to 0, and 1 / scale overflows",
        remedy="put a floor under scales; a channel that is always 0 takes the scale of the others",
        source="IEEE 754 binary32; onnxruntime denormal flushing, session option session.set_denormal_as_zero",
        check=_denormal,
    ),
    Rule(
        code="scale-computed",
        severity="note",
        defect="a scale is computed while the model runs",
        reason="static compilers have nothing to fuse: the node and its neighbours run in float",
        remedy="store the scale as an initializer, or leave dynamic quantization to the runtime",
        source="onnxruntime qdq_selectors.cc: scale and zero point must be constant initializers",
        check=_find_computed_scales,
    ),
)
