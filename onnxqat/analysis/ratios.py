"""Tensors whose small values count as much as their large ones: divisors, and arguments of logarithms and roots."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from onnxqat.analysis import dataflow, signs
from onnxqat.graph import query
from onnxqat.graph.layers import LAYERS
from onnxqat.ops import operators as ops

REASON = "{} reads it, which makes as much of a small value as of a large one"
CARRIES = frozenset({"Mul", "Relu", "Abs", "Neg", "Clip", "Sqrt", "Pow", "Cast", "Identity", "LeakyRelu"})
SUMS = frozenset({"Add", "Sub", "Max", "Min", "Sum", "Concat"})
REDUCTIONS = frozenset(
    {
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceProd",
        "AveragePool",
        "GlobalAveragePool",
    }
)
ROOTS = frozenset({"Sqrt", "Pow"})
"""The root of a sum of squares is a length, which is off by no more than what is squared."""
ENOUGH = 0.1
"""Summand from which on a sum of values that cannot be negative is far enough from 0: an 8-bit grid of what is added to
it changes the quotient by no more than that grid would change the quotient itself. Epsilons are smaller."""


class Ratios:
    """Find those tensors, walking back from their consumers.

    On the way are sums and products, powers, limits, data movement and sums over axes; a layer with weights ends it, in
    front or behind, and so does the sum of 1 (or another constant from :data:`ENOUGH` on) and what cannot be negative.
    What an Exp makes is found all the same: 1 + exp(x) spans orders of magnitude. A sum over all of a sample ends it at
    what others read on a grid in any case, as in a global response normalization, where x * |x| / mean(|x|) reads x
    twice: it is as large as what that grid was chosen for. Normalizations that are written out are found by themselves
    (:mod:`onnxqat.analysis.normalizations`).

    Args:
        graph: that is read.
        chosen: operators that were asked for in integers (``--integer``): what they read is no reason against a grid.

    Attributes:
        values: those tensors, each with the operator that reads it.
        reasons: nodes that make or divide by such a tensor, with the reason to leave them in float.
    """

    def __init__(self, graph: ir.Graph, chosen: Collection[str] = ()) -> None:
        self.values: dict[ir.Value, str] = {}
        self.reasons: dict[ir.Node, str] = {}
        for node in dataflow.in_order(graph):
            if node.op_type in chosen:
                continue
            for value in _read_relatively(node):
                if _is_computed(value):
                    self.reasons[node] = f"{node.op_type} makes as much of a small value as of a large one"
                    self._walk(value, node.op_type)

    def _walk(self, value: ir.Value, reader: str) -> None:
        pending, seen = [(value, False)], set()
        while pending:
            current, summed = pending.pop()
            if current in seen or self._feeds_layer(current) or (summed and self._is_read_besides(current)):
                continue
            seen.add(current)
            self.values.setdefault(current, reader)
            maker = current.producer()
            if maker is None or (maker.op_type in LAYERS and not _is_of_energies(maker)):
                continue
            self.reasons.setdefault(maker, REASON.format(reader))
            if reader in ROOTS and signs.is_square(maker):
                continue
            summed = summed or _sums_a_sample(maker)
            pending.extend((v, summed) for v in _sources(maker) if _is_computed(v))

    def _feeds_layer(self, value: ir.Value) -> bool:
        """Check whether `value` also feeds a layer with weights, whose integer kernel needs it on a grid."""
        return any(user.op_type in LAYERS and user not in self.reasons for user in value.consumers())

    def _is_read_besides(self, value: ir.Value) -> bool:
        """Check whether an operator reads `value` that is not in the way to a divisor, and divides nothing itself."""
        return any(user not in self.reasons and user.op_type != "Div" for user in value.consumers())


def _read_relatively(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the float input of `node` whose relative error counts: a divisor, or the argument of Log, Sqrt or Pow."""
    if node.domain:
        return
    index = {"Log": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1}.get(node.op_type)
    if node.op_type == "Pow":
        exponent = query.constant_array(node.inputs[1])
        index = 0 if exponent is not None and bool(((exponent < 0) | (exponent % 1 != 0)).any()) else None
    value = node.inputs[index] if index is not None and len(node.inputs) > index else None
    if value is not None and value.dtype in (None, ir.DataType.FLOAT):
        yield value


def _is_computed(value: ir.Value) -> bool:
    return query.constant_tensor(value) is None and value.producer() is not None


def _sources(node: ir.Node) -> list[ir.Value]:
    """Inputs of `node` that need the relative precision of its result."""
    if node.domain:
        return []
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type in SUMS:
        constants = [c for v in inputs if (c := query.constant_array(v)) is not None]
        computed = [v for v in inputs if query.constant_tensor(v) is None]
        far = any(c.size and bool((c >= ENOUGH).all()) for c in constants) and node.op_type == "Add"
        return [v for v in computed if not (far and signs.is_non_negative(v)) or _is_exp(v)]
    row = ops.of(node)
    if node.op_type in CARRIES or node.op_type in REDUCTIONS or (row is not None and row.passthrough):
        return [v for i, v in enumerate(node.inputs) if v is not None and (row is None or row.role(i) != "parameter")]
    if node.op_type == "Div" or node.op_type in LAYERS:
        return inputs[:1]
    return []


def _sums_a_sample(node: ir.Node) -> bool:
    """Check whether `node` adds values that cannot be negative to one for each sample: no small part of it counts."""
    if node.op_type not in REDUCTIONS - {"ReduceMin", "ReduceProd"} or node.domain:
        return False
    data, result = node.inputs[0], node.outputs[0]
    return (
        data is not None
        and result.shape is not None
        and all(size == 1 for size in tuple(result.shape)[1:])
        and signs.is_non_negative(result)
    )


def _is_exp(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type == "Exp" and not maker.domain


def _is_of_energies(layer: ir.Node) -> bool:
    """Check whether `layer` sums energies, as the filters of a spectrogram do: squares in, no negative weight or bias.

    Its result spans as many decades as its input. Other layers end the walk: their sums cancel.
    """
    weights = [query.constant_array(v) for v in layer.inputs[1:] if v is not None]
    data = layer.inputs[0]
    if data is None or any(w is None or bool((w < 0).any()) for w in weights):
        return False
    return signs.is_non_negative(data) and any(
        signs.is_square(n) or n.op_type == "ReduceSumSquare" for n in _makers(data)
    )


def _makers(value: ir.Value) -> Iterator[ir.Node]:
    """The producer of `value`, behind data movement."""
    pending = [value]
    while pending:
        node = pending.pop().producer()
        if node is None or node.domain:
            continue
        yield node
        if ops.is_passthrough(node) and node.inputs[0] is not None:
            pending.append(node.inputs[0])
