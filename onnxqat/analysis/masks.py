"""Tensors that carry a mask: data together with -inf or the lowest float, which no scale can represent both of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import query
from onnxqat.ops import operators as ops

LARGEST = 1e9  # larger constants are masks, never data
FAR = 100.0
"""Fill of a mask in front of a Softmax, by size, from which on it is far from every score: exporters write -100 to the
lowest float, and exp(-100) is 0 beside any score that counts."""

BEYOND_DATA = 1e30  # larger values that a model computes or is given are masks too
JOINS = frozenset({"Add", "Sub", "Mul", "Where"})  # what puts a mask onto numbers, or makes one: (1 - keep) * -3e38
LIMITS = frozenset({"Max", "Min", "Clip"})  # what keeps a sum of masks within the numbers of the type
SOFTMAXES = frozenset({"Softmax", "LogSoftmax", "Exp"})  # one that is written out is an Exp and a quotient
MOVES = frozenset({"Cast", "Concat", "ScatterND", "ScatterElements"})  # as what the operator table calls passthrough


def is_mask(values: np.ndarray) -> bool:
    """Check whether constant `values` are not all finite, or reach :data:`LARGEST` in magnitude."""
    return not np.isfinite(values).all() or float(np.abs(values).max(initial=0.0)) >= LARGEST


def _is_far(node: ir.Node, values: np.ndarray) -> bool:
    """Check whether a constant in front of a Softmax reaches -:data:`FAR`, or :data:`FAR` where it is subtracted."""
    low = float(values.min(initial=0.0))
    return low <= -FAR or (node.op_type == "Sub" and float(values.max(initial=0.0)) >= FAR)


class Masks:
    """Find the values of a graph that are computed from a mask by sums, products, selection and data movement alone.

    A mask is a constant of such numbers, what a Pad or a ConstantOfShape fills with, or a tensor named in `known`; on
    the way to a Softmax, where scores are small, also a constant of numbers from -:data:`FAR` down. Results are cached,
    so that each value of a graph is visited once: the graph must not change in between.

    Args:
        known: names of tensors that are masks.
    """

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        self._known = known
        self._found: dict[ir.Value, bool] = {}
        self._scores: dict[ir.Value, bool] = {}

    def carries(self, value: ir.Value) -> bool:
        """Return True when `value` is computed from a mask."""
        pending: list[tuple[ir.Value, list[ir.Value] | None]] = [(value, None)]
        while pending:
            current, sources = pending.pop()
            if sources is not None:
                self._found[current] = any(self._found[source] for source in sources)
            elif current not in self._found:
                self._found[current] = False  # until its sources are known; a cycle ends here
                sources = None if current.name in self._known else self._sources(current)
                if sources is None:
                    self._found[current] = True
                    continue
                pending.append((current, sources))
                pending.extend((source, None) for source in sources)
        return self._found[value]

    def masks(self, node: ir.Node, constant: np.ndarray) -> bool:
        """Return True when `constant`, which `node` reads, is a mask."""
        if is_mask(constant):
            return True
        carries = _joins_or_moves(node) or node.op_type in ("ConstantOfShape", "Pad")
        return carries and _is_far(node, constant) and any(map(self._leads_to_softmax, node.outputs))

    def _leads_to_softmax(self, value: ir.Value) -> bool:
        """Check whether only sums, products, selection and data movement separate `value` from a Softmax."""
        if value not in self._scores:
            self._scores[value] = dataflow.leads_to(value, SOFTMAXES, _joins_or_moves)
        return self._scores[value]

    def _sources(self, value: ir.Value) -> list[ir.Value] | None:
        """Computed values that a mask may reach `value` from, in one step; None where a constant is one already."""
        node = value.producer()
        if node is None or node.domain:
            return []
        row = ops.of(node)
        if node.op_type in JOINS:
            inputs = list(node.inputs)
        elif node.op_type in LIMITS:
            return _limited(node)
        elif node.op_type == "Pad":
            inputs = [node.inputs[0], *node.inputs[2:3]]
        elif node.op_type == "MaxPool":
            return []  # a maximum has the numbers only
        elif node.op_type == "ConstantOfShape":
            fill = query.attribute(node, "value", None)
            return None if fill is not None and self.masks(node, fill.numpy()) else []
        elif row is not None and (row.passthrough or node.op_type in MOVES):
            inputs = [v for i, v in enumerate(node.inputs) if row.role(i) != "parameter"]
        else:
            return []
        constants = [(v, query.constant_array(v)) for v in inputs if v is not None]
        if any(c.dtype.kind == "f" and self.masks(node, c) for _, c in constants if c is not None):
            return None
        return [v for v, constant in constants if constant is None]


def _joins_or_moves(node: ir.Node) -> bool:
    row = ops.of(node)
    return row is not None and (node.op_type in JOINS | MOVES | LIMITS or row.passthrough)


def _limited(node: ir.Node) -> list[ir.Value]:
    """Computed inputs of a Max, Min or Clip; empty if its lower limit is above -:data:`FAR`, which ends a mask."""
    given = [v for v in node.inputs if v is not None]
    constants = [c for v in given[1:] if (c := query.constant_array(v)) is not None and c.size]
    if node.op_type != "Min" and any(float(c.min()) > -FAR for c in constants[:1]):
        return []
    return [v for v in given if query.constant_tensor(v) is None]
