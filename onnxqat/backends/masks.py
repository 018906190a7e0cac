"""Tensors that carry a mask: numbers beside -inf or the lowest float, which no scale fits both of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.ops import _base as ops

LARGEST = 1e9  # larger constants are masks, never data
BEYOND_DATA = 1e30  # larger values that a model computes or is given are masks too
JOINS = frozenset({"Add", "Sub", "Mul", "Where"})  # what puts a mask onto numbers, or makes one: (1 - keep) * -3e38
MOVES = frozenset({"Cast", "Concat", "ScatterND", "ScatterElements"})  # as what the operator table calls passthrough


def is_mask(values: np.ndarray) -> bool:
    """Whether constant `values` are those of a mask, or otherwise not finite."""
    return not np.isfinite(values).all() or float(np.abs(values).max(initial=0.0)) >= LARGEST


def carries_mask(value: ir.Value, known: frozenset[str] = frozenset()) -> bool:
    """Whether `value` is computed from a mask by sums, products, selection and data movement alone.

    A mask is a constant of such numbers, what a Pad or a ConstantOfShape fills with, or a tensor named in `known`.
    """
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        if current.name in known:
            return True
        node = current.producer()
        if id(current) in seen or node is None or node.domain:
            continue
        seen.add(id(current))
        row = ops.find("", node.op_type)
        if node.op_type in JOINS:
            sources = list(node.inputs)
        elif node.op_type == "Pad":
            sources = [node.inputs[0], *node.inputs[2:3]]
        elif node.op_type == "MaxPool":
            continue  # a maximum has the numbers only
        elif node.op_type == "ConstantOfShape":
            fill = query.attribute(node, "value", None)
            if fill is not None and is_mask(fill.numpy()):
                return True
            continue
        elif row is not None and (row.passthrough or node.op_type in MOVES):
            sources = [v for i, v in enumerate(node.inputs) if row.role(i) != "parameter"]
        else:
            continue
        constants = [(v, query.constant_array(v)) for v in sources if v is not None]
        if any(c.dtype.kind == "f" and is_mask(c) for _, c in constants if c is not None):
            return True
        pending.extend(v for v, constant in constants if constant is None)
    return False
