"""A formula written down as a model-local function: symbols that know their bounds, and the nodes that make them.

Every symbol is an interval. From the intervals follow the types of the nodes, int32 where all that meets there fits,
else int64, and the width of each stage: a proof that no stage overflows, whatever codes come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxqat.errors import CheckError
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.types import STORAGE

INT32, INT64 = TensorProto.INT32, TensorProto.INT64
AXES_INPUT = 18
"""From this opset on ReduceMax has its axes as an input, as ReduceSum has them from 13 on."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """An intermediate result of a function.

    Attributes:
        name: what it is.
        low: smallest number that it can be.
        high: largest number that it can be.
    """

    name: str
    low: int
    high: int

    @property
    def bits(self) -> int:
        """Bits of the signed type that holds it."""
        return bits(self.low, self.high)


def bits(low: int, high: int) -> int:
    """Bits of the smallest signed type that holds `low` to `high`."""
    return max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + 1


class Symbol:
    """A tensor of whole numbers from `low` to `high`, called `name`, in int32 or int64."""

    def __init__(self, tracer: Tracer, name: str, low: int, high: int, kind: int) -> None:
        self.tracer, self.name, self.low, self.high, self.kind = tracer, name, low, high, kind

    def __add__(self, other: Integers) -> Symbol:
        return self.tracer.binary("Add", self, other)

    def __sub__(self, other: Integers) -> Symbol:
        return self.tracer.binary("Sub", self, other)

    def __rsub__(self, other: Integers) -> Symbol:
        return self.tracer.binary("Sub", other, self)

    def __mul__(self, other: Integers) -> Symbol:
        return self.tracer.binary("Mul", self, other)

    def __neg__(self) -> Symbol:
        return self.tracer.binary("Sub", 0, self)

    __radd__, __rmul__ = __add__, __mul__


class Tracer(Operations):
    """Operations on symbols; collects nodes and stages.

    Args:
        opset: version of ONNX's operators.
    """

    def __init__(self, opset: int) -> None:
        super().__init__()
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.stages: list[Stage] = []
        self._casts: dict[tuple[str, int], str] = {}
        self._constants: dict[tuple[int, int], str] = {}
        self._axes = ""

    # --- inputs and the result
    def codes(self, name: str, storage: str) -> Symbol:
        """The input `name`, codes of type `storage`, as int32."""
        low, high, _ = STORAGE[storage]
        return Symbol(self, self._made("Cast", [name], to=INT32), low, high, INT32)

    def parameter(self, name: str, low: int, high: int) -> Symbol:
        """The input `name`, integers of the type that holds `low` to `high`."""
        return Symbol(self, name, low, high, kind_of(low, high))

    def give(self, x: Symbol, name: str, storage: str) -> None:
        """Make `x` the output `name` of type `storage`."""
        low, high, _ = STORAGE[storage]
        if x.low < low or x.high > high:
            raise _overflow(name, x.low, x.high, storage)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(storage))
        self.nodes.append(helper.make_node("Cast", [x.name], [name], to=kind))

    # --- operations
    def binary(self, operator: str, x: Integers, y: Integers) -> Symbol:
        """``x + y``, ``x - y`` or ``x * y``."""
        (a, b), (c, d) = _ends(x), _ends(y)
        if operator == "Add":
            low, high = a + c, b + d
        elif operator == "Sub":
            low, high = a - d, b - c
        else:
            corners = (a * c, a * d, b * c, b * d)
            low, high = min(corners), max(corners)
            if x is y:  # a square is not negative
                low = 0 if a <= 0 <= b else min(a * a, b * b)
        return self._result(operator, [x, y], low, high)

    def shifted(self, x: Integers, by: Integers) -> Symbol:
        """See the base class.

        BitShift has unsigned types alone. A power of two that is divisible by ``2**by`` makes a negative number
        positive in front of the shift, and its share is taken off behind it: signs and the direction of rounding stay.
        """
        (low, high), (least, most) = _ends(x), _ends(by)
        if low >= 0:
            return self._bit_shift(x, by, "RIGHT", low >> most, high >> least)
        lifted = 1 << max((-low - 1).bit_length(), most)
        moved = self._bit_shift(x + lifted, by, "RIGHT", 0, (high + lifted) >> least)
        share = (
            lifted >> by
            if isinstance(by, int)
            else self._bit_shift(lifted, by, "RIGHT", lifted >> most, lifted >> least)
        )
        result = moved - share
        result.low, result.high = low >> least, max(high >> least, high >> most)
        return result

    def scaled_up(self, x: Integers, by: Integers) -> Integers:
        """See the base class."""
        if isinstance(x, int) and isinstance(by, int):
            return x << by
        (low, high), (least, most) = _ends(x), _ends(by)
        return self._bit_shift(x, by, "LEFT", low << least, high << most)

    def remainder(self, x: Integers, divisor: int) -> Symbol:
        """See the base class."""
        return self._result("Mod", [x, divisor], 0, divisor - 1)

    def divided(self, x: Integers, divisor: Integers) -> Symbol:
        """See the base class."""
        (low, high), (least, most) = _ends(x), _ends(divisor)
        if low < 0 or least < 1:
            raise ValueError(f"a quotient of {low}..{high} and {least}..{most}")
        return self._result("Div", [x, divisor], low // most, high // least)

    def limited(self, x: Integers, low: int, high: int) -> Symbol:
        """See the base class."""
        least, most = _ends(x)
        kind = self._kind(x)
        name = self._made("Clip", [self._named(x, kind), self._named(low, kind), self._named(high, kind)])
        result = Symbol(self, name, min(max(least, low), high), max(min(most, high), low), kind)
        return self._narrowed(result)

    def smaller(self, x: Integers, y: Integers) -> Symbol:
        """See the base class."""
        (a, b), (c, d) = _ends(x), _ends(y)
        return self._result("Min", [x, y], min(a, c), min(b, d))

    def larger(self, x: Integers, y: Integers) -> Symbol:
        """See the base class."""
        (a, b), (c, d) = _ends(x), _ends(y)
        return self._result("Max", [x, y], max(a, c), max(b, d))

    def magnitude(self, x: Integers) -> Symbol:
        """See the base class."""
        low, high = _ends(x)
        return self._result("Abs", [x], 0 if low <= 0 <= high else min(abs(low), abs(high)), max(-low, high))

    def is_less(self, x: Integers, y: Integers) -> Symbol:
        """See the base class."""
        kind = max(self._kind(x), self._kind(y))
        return Symbol(self, self._made("Less", [self._named(x, kind), self._named(y, kind)]), 0, 1, TensorProto.BOOL)

    def where(self, condition: Integers, x: Integers, y: Integers) -> Symbol:
        """See the base class."""
        (a, b), (c, d) = _ends(x), _ends(y)
        low, high = min(a, c), max(b, d)
        kind = kind_of(low, high)
        name = self._made("Where", [condition.name, self._named(x, kind), self._named(y, kind)])
        return Symbol(self, name, low, high, kind)

    def looked_up(self, table: Integers, places: Integers) -> Symbol:
        """See the base class."""
        name = self._made("Gather", [table.name, self._named(places, self._kind(places))])
        return Symbol(self, name, table.low, table.high, table.kind)

    def gathered(self, x: Integers, places: Integers, axis: int) -> Symbol:
        """See the base class."""
        name = self._made("Gather", [x.name, places.name], axis=axis)
        return Symbol(self, name, x.low, x.high, x.kind)

    def along(self, x: Integers, axis: int) -> Symbol:
        """See the base class."""
        if axis == -1:
            return Symbol(self, x.name, x.low, x.high, x.kind)
        behind = self._constant(np.arange(1, -axis), INT64)
        return Symbol(self, self._made("Unsqueeze", [x.name, behind]), x.low, x.high, x.kind)

    def constant_table(self, entries: Sequence[int], like: Integers) -> Symbol:
        """See the base class."""
        del like
        kind = kind_of(min(entries), max(entries))
        return Symbol(self, self._constant(np.asarray(entries), kind), min(entries), max(entries), kind)

    def entries_not_above(self, entries: Sequence[int], x: Integers) -> Symbol:
        """See the base class."""
        table = self.constant_table(entries, x)
        wide = self._made("Unsqueeze", [self._named(x, table.kind), self._constant(np.asarray([-1]), INT64)])
        less = self._made("Less", [wide, table.name])  # GreaterOrEqual has no int64 kernel in every runtime
        above = self._made("Cast", [less], to=INT32)
        total = self._made("ReduceSum", [above, self._constant(np.asarray([-1]), INT64)], keepdims=0)
        return Symbol(self, total, 0, len(entries), INT32).__rsub__(len(entries))

    def elements_of_row(self, x: Integers, longest: int) -> Symbol:
        """See the base class."""
        sizes = self._made("Gather", [self._made("Shape", [x.name]), self._axes_input()])
        return Symbol(self, self._made("ReduceProd", [sizes], keepdims=0), 1, longest, INT64)

    def largest_of_row(self, x: Integers) -> Symbol:
        """See the base class."""
        if self.opset < AXES_INPUT:
            node = helper.make_node("ReduceMax", [x.name], [self._fresh()], keepdims=1)
            node.attribute.append(_of_call("axes", "axes", onnx.AttributeProto.INTS))
            self.nodes.append(node)
            return Symbol(self, node.output[0], x.low, x.high, x.kind)
        return Symbol(self, self._made("ReduceMax", [x.name, self._axes_input()], keepdims=1), x.low, x.high, x.kind)

    def row_sum(self, x: Integers, longest: int) -> Symbol:
        """See the base class."""
        low, high = min(x.low, x.low * longest), max(x.high, x.high * longest)
        kind = kind_of(low, high)
        name = self._made("ReduceSum", [self._named(x, kind), self._axes_input()], keepdims=1)
        return Symbol(self, name, low, high, kind)

    def reduced_sum(self, x: Integers, longest: int) -> Symbol:
        """See the base class."""
        low, high = min(x.low, x.low * longest), max(x.high, x.high * longest)
        kind = kind_of(low, high)
        node = helper.make_node("ReduceSum", [self._named(x, kind), self._axes_input()], [self._fresh()])
        node.attribute.append(_of_call("keepdims", "keepdims", onnx.AttributeProto.INT))
        self.nodes.append(node)
        return Symbol(self, node.output[0], low, high, kind)

    def running_sum(self, x: Integers, longest: int) -> Symbol:
        """See the base class."""
        low, high = min(x.low, x.low * longest), max(x.high, x.high * longest)
        kind = kind_of(low, high)
        axis = self._made("Squeeze", [self._axes_input()])
        node = helper.make_node("CumSum", [self._named(x, kind), axis], [self._fresh()])
        node.attribute.extend(_of_call(name, name, onnx.AttributeProto.INT) for name in ("exclusive", "reverse"))
        self.nodes.append(node)
        return Symbol(self, node.output[0], min(low, 0), max(high, 0), kind)

    def grouped(self, x: Integers) -> Symbol:
        """See the base class."""
        count = helper.make_node("Constant", [], [self._fresh()])
        count.attribute.append(_of_call("value_int", "num_groups", onnx.AttributeProto.INT))
        self.nodes.append(count)
        one = self._constant(np.asarray([1]), INT64)
        groups = self._made("Reshape", [count.output[0], one])
        others = self._made("Sub", [self._made("Shape", [self._axes_input()]), one])
        ones = self._made("ConstantOfShape", [others], value=numpy_helper.from_array(np.ones(1, np.int64)))
        same, rest = (self._constant(np.asarray([number]), INT64) for number in (0, -1))
        shape = self._made("Concat", [same, groups, rest, ones], axis=0)
        return Symbol(self, self._made("Reshape", [x.name, shape]), x.low, x.high, x.kind)

    def shaped_like(self, x: Integers, y: Integers) -> Symbol:
        """See the base class."""
        return Symbol(self, self._made("Reshape", [x.name, self._made("Shape", [y.name])]), x.low, x.high, x.kind)

    def stage(self, name: str, x: Integers) -> Integers:
        """See the base class."""
        self.stages.append(Stage(name, x.low, x.high))
        return x

    # --- nodes
    def _result(self, operator: str, operands: Sequence[Integers], low: int, high: int) -> Symbol:
        """A node on operands of one type, which holds them and the result."""
        kind = kind_of(*(end for pair in (*map(_ends, operands), (low, high)) for end in pair))
        name = self._made(operator, [self._named(x, kind) for x in operands])
        return self._narrowed(Symbol(self, name, low, high, kind))

    def _narrowed(self, x: Symbol) -> Symbol:
        """`x` in int32 where that holds it."""
        kind = kind_of(x.low, x.high)
        return x if kind == x.kind else Symbol(self, self._made("Cast", [x.name], to=kind), x.low, x.high, kind)

    def _bit_shift(self, x: Integers, by: Integers, direction: str, low: int, high: int) -> Symbol:
        least, most = _ends(x)
        if least < 0 or low < 0:
            raise ValueError(f"a shift of {least}..{most}")
        kind = kind_of(most, high)
        unsigned = TensorProto.UINT32 if kind == INT32 else TensorProto.UINT64
        operands = [self._made("Cast", [self._named(v, kind)], to=unsigned) for v in (x, by)]
        moved = self._made("BitShift", operands, direction=direction)
        return self._narrowed(Symbol(self, self._made("Cast", [moved], to=kind), low, high, kind))

    def _kind(self, x: Integers) -> int:
        return kind_of(x, x) if isinstance(x, int) else int(x.kind)

    def _named(self, x: Integers, kind: int) -> str:
        """Name of `x` in type `kind`."""
        if isinstance(x, int):
            return self._constant(np.asarray(x), kind)
        if x.kind == kind:
            return str(x.name)
        key = (x.name, kind)
        if key not in self._casts:
            self._casts[key] = self._made("Cast", [x.name], to=kind)
        return self._casts[key]

    def _constant(self, value: np.ndarray, kind: int) -> str:
        key = None if value.ndim else (int(value), kind)
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self._fresh()
        tensor = numpy_helper.from_array(value.astype(helper.tensor_dtype_to_np_dtype(kind)))
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        if key is not None:
            self._constants[key] = name
        return name

    def _axes_input(self) -> str:
        if not self._axes:
            node = helper.make_node("Constant", [], [self._fresh()])
            node.attribute.append(_of_call("value_ints", "axes", onnx.AttributeProto.INTS))
            self.nodes.append(node)
            self._axes = node.output[0]
        return self._axes

    def _made(self, operator: str, inputs: Iterable[str], **attributes: Any) -> str:
        node = helper.make_node(operator, list(inputs), [self._fresh()], **attributes)
        self.nodes.append(node)
        return str(node.output[0])

    def _fresh(self) -> str:
        return f"t{len(self.nodes)}"


def kind_of(*numbers: int) -> int:
    """int32 where it holds all of `numbers`, else int64."""
    low, high = min(numbers), max(numbers)
    if low >= -(2**31) and high < 2**31:
        return int(INT32)
    if low < -(2**63) or high >= 2**63:
        raise _overflow("a stage", low, high, "int64")
    return int(INT64)


def _ends(x: Integers) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (x.low, x.high)


def _of_call(name: str, given: str, kind: onnx.AttributeProto.AttributeType) -> onnx.AttributeProto:
    """The attribute `name` of a node of a function, which takes the value of the call's attribute `given`."""
    return onnx.AttributeProto(name=name, ref_attr_name=given, type=kind)


def _overflow(name: str, low: int, high: int, kind: str) -> CheckError:
    return CheckError("accumulator-overflow", f"{name} of an integer function reaches {low} to {high}, and is {kind}")
