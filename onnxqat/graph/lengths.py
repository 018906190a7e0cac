"""Lengths of the vectors that onnx would write out while it infers shapes, computed without writing them.

Each element takes onnx about a hundred bytes. Forty Concat of a vector with itself make 10**12 of them, and so does a
Range to a number that forty Add have doubled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import TensorProto, numpy_helper

LONGEST = 10**6
"""Elements of a vector that may be written out; those that shapes are computed with have a handful."""
ALL = 4 * LONGEST
"""Elements of all of them together."""

_WHOLE = (TensorProto.INT64, TensorProto.INT32)
_RANK = 64  # of any tensor: the length of what Shape gives
_CEILING = 2**62  # numbers beyond it overflow, which onnx does not propagate

_Bound = tuple[int, int]  # largest length and largest magnitude


class TooLongError(Exception):
    """A vector, or all of them together, may be too long to be written out."""


def check(proto: onnx.ModelProto) -> None:
    """Go through the main graph, bodies and called functions, with upper bounds of lengths and of numbers.

    Numbers that come from sizes of float tensors are not known here, and taken for small.

    Raises:
        TooLongError: see there.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    _Walk(functions).graph(proto.graph, {})


class _Walk:
    """One model; counts all elements on the way."""

    def __init__(self, functions: dict[tuple[str, str, str], onnx.FunctionProto]) -> None:
        self.functions = functions
        self.open: set[tuple[str, str, str]] = set()
        self.total = 0
        self.known: dict[tuple[object, ...], tuple[list[_Bound | None], int]] = {}

    def graph(self, graph: onnx.GraphProto, outer: dict[str, _Bound]) -> list[_Bound | None]:
        """The bounds of the graph's outputs."""
        bounds = dict(outer)
        for constant in graph.initializer:
            self._note(bounds, constant.name, _constant(constant))
        self._nodes(graph.node, bounds)
        return [bounds.get(value.name) for value in graph.output]

    def _nodes(self, nodes: Iterator[onnx.NodeProto], bounds: dict[str, _Bound]) -> None:
        for node in nodes:
            found = self._outputs(node, bounds)
            for name, bound in zip(node.output, found, strict=False):
                self._note(bounds, name, bound)

    def _note(self, bounds: dict[str, _Bound], name: str, bound: _Bound | None) -> None:
        if bound is None:
            return
        length, number = bound
        self.total += length
        if length > LONGEST or self.total > ALL:
            raise TooLongError
        bounds[name] = length, min(number, _CEILING)

    def _outputs(self, node: onnx.NodeProto, bounds: dict[str, _Bound]) -> list[_Bound | None]:
        key = (node.domain, node.op_type, node.overload)
        if key in self.functions:
            return self._call(key, [bounds.get(name) for name in node.input])
        bodies = [g for a in node.attribute for g in ([a.g] if a.HasField("g") else [*a.graphs])]
        if bodies:
            inner = [bound for body in bodies for bound in self.graph(body, bounds) if bound is not None]
            return [_largest(inner)] * len(node.output)
        given = [bounds[name] for name in node.input if name in bounds]
        if node.op_type == "Constant":
            return [_constant_node(node)]
        if node.op_type in ("Shape", "Size"):
            length = max((length for length, _ in given), default=1)
            return [(_RANK if node.op_type == "Shape" else 1, length)]
        if node.op_type in ("Slice", "Gather", "Expand"):
            return [_moved(node.op_type, [bounds.get(name) for name in node.input])]
        return [_combined(node.op_type, given)] * len(node.output) if given else []

    def _call(self, key: tuple[str, str, str], given: list[_Bound | None]) -> list[_Bound | None]:
        if key in self.open:  # a function that calls itself is refused elsewhere
            return []
        call = (*key, *given)
        if call not in self.known:
            function, before = self.functions[key], self.total
            bounds = {name: bound for name, bound in zip(function.input, given, strict=False) if bound is not None}
            self.open.add(key)
            self._nodes(iter(function.node), bounds)
            self.open.discard(key)
            self.known[call] = [bounds.get(name) for name in function.output], self.total - before
        else:
            self.total += self.known[call][1]  # it is written out at each call
        if self.total > ALL:
            raise TooLongError
        return self.known[call][0]


def _moved(operator: str, given: list[_Bound | None]) -> _Bound | None:
    """The bound of what `operator` moves of its first input: places and sizes, as an open end of a Slice, are not in it."""
    if not given or given[0] is None:
        return None
    others = [bound for bound in given[1:] if bound is not None]
    within = {"Slice": [], "Gather": [length for length, _ in others], "Expand": [number for _, number in others]}
    return max(given[0][0], *within[operator], 0), given[0][1]


def _combined(operator: str, given: list[_Bound]) -> _Bound:
    """The bound of what `operator` makes of vectors; of those that onnx does not propagate it is not asked."""
    lengths, numbers = [length for length, _ in given], [number for _, number in given]
    if operator == "Concat":
        return sum(lengths), max(numbers)
    if operator in ("Add", "Sub", "Sum"):
        return max(lengths), sum(numbers)
    if operator in ("Mul", "Pow", "ReduceProd"):
        return max(lengths), math.prod(max(1, number) for number in numbers)
    if operator in ("Range", "ConstantOfShape"):
        return min(max(*numbers, *lengths), _CEILING), max(numbers)
    if operator == "Tile":
        return lengths[0] * max(1, numbers[-1]), max(numbers)
    return max(lengths), max(numbers)


def _largest(bounds: list[_Bound]) -> _Bound | None:
    return (max(length for length, _ in bounds), max(number for _, number in bounds)) if bounds else None


def _constant_node(node: onnx.NodeProto) -> _Bound | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            return _constant(attribute.t)
        if attribute.name == "value_int":
            return 1, abs(attribute.i)
        if attribute.name == "value_floats":
            return len(attribute.floats), 1
        if attribute.name == "value_ints":
            return len(attribute.ints), max(map(abs, attribute.ints), default=0)
    return None


def _constant(tensor: onnx.TensorProto) -> _Bound | None:
    """Its length and largest magnitude; of what holds no sizes the length alone, since onnx writes it out all the same."""
    if len(tensor.dims) > 1:
        return None
    length = math.prod(tensor.dims)
    if length > _RANK or tensor.data_type not in _WHOLE or tensor.data_location == TensorProto.EXTERNAL:
        return length, 1
    numbers = [abs(int(v)) for v in numpy_helper.to_array(tensor).reshape(-1)]
    return length, max((n for n in numbers if n < _CEILING), default=1)
