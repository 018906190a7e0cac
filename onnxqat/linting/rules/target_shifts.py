"""Scales that the target's shifter cannot reach."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule
from onnxqat.types import ShiftLimit

SLACK = 1e-6  # of a bit: positions of scales that are no powers of two are not whole numbers


def _shifts(file: LintContext) -> Iterator[Found]:
    for limit in () if file.target is None or not file.is_quantized else file.target.plan.shift_limits:
        assert file.target is not None
        node = file.target.original(limit.node)
        total = None if node is None else _shift(file, node, limit)
        if total is not None and (total.min() < limit.low - SLACK or total.max() > limit.high + SLACK):
            text = " ".join(f"{'-' if sign < 0 else '+'} {what}" for sign, what in limit.terms).removeprefix("+ ")
            worst = float(total.min() if total.min() < limit.low else total.max())
            yield Found(f"the shift {text} is {worst:g}, the target has {limit.low}..{limit.high}", node)


def _shift(file: LintContext, node: ir.Node, limit: ShiftLimit) -> np.ndarray | None:
    """The sum of positions; None where a tensor carries no quantizer."""
    inputs = [file.reading(node, i) for i, _ in enumerate(node.inputs)]
    known = [None if q is None else -np.log2(np.abs(q.qparams.scale).astype(np.float64)) for q in inputs]
    outputs = [-np.log2(np.abs(q.qparams.scale).astype(np.float64)) for q in file.named(limit.output)]
    total = np.zeros((), np.float64)
    for sign, what in limit.terms:
        position = _position(what, known, outputs)
        if position is None:
            return None
        total = total + sign * position
    return np.asarray(total)


def _position(what: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> np.ndarray | None:
    if what == "out":
        return outputs[0] if outputs else None
    if what.startswith("in"):
        index = int(what.removeprefix("in"))
        return inputs[index] if index < len(inputs) else None
    known = [p for p in inputs if p is not None]
    if not known or len(known) < len(inputs):
        return None
    combine = {"max_in": np.maximum, "min_in": np.minimum, "sum_in": np.add}[what]
    return np.asarray(math.nan if not known else combine.reduce(np.broadcast_arrays(*known)))


RULES = (
    Rule(
        code="target-shift",
        severity="error",
        defect="scales need a shift that the target's hardware does not have",
        reason="the compiler stops, or changes the scales by itself",
        remedy="insert-qdq --replace for this target keeps scales within the limits",
        source="backend table, checks; AMD Quark, shift constraints of the DPU",
        check=_shifts,
        target=True,
    ),
)
