"""Operators on uint16, uint32, uint64 and float8, for which torch has few kernels.

A node with such an input is lowered as if the input had a type that torch computes in, and its result is turned back
(:class:`SignedView`); :func:`view` decides this for every node in one place. So lowerings need not know of these types.
What stands in for an input depends on the operator:

=======  ===============================================  ===================================================
form     operators                                        stands in
=======  ===============================================  ===================================================
bits     those that move elements or compute modulo 2^n   the same bits as intN (float8: uint8)
order    those that compare                               int64; uint64 with its highest bit flipped, which
                                                          keeps the order
values   all others                                       int64; uint64 stays what it is, for lowerings that
                                                          compute it with the functions of this file
index    indices of OneHot, exponents of Pow              int64, uint64 clipped to it
=======  ===============================================  ===================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx.defs
import onnx_ir as ir
import torch
from torch import fx

from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.builder import Builder, Lowered, NodeView
from onnxqat.bridge.importing.values import CONTAINERS, TORCH_DTYPES, Const, Dims, Value

UNSIGNED = frozenset({ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})
FLOAT8 = frozenset(t for t, dtype in CONTAINERS.items() if dtype.is_floating_point)

_TWINS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_HIGHEST = -(2**63)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BITS = _names("""
    Add Sub Mul Sum MatMul Einsum CumSum CumProd ReduceSum ReduceProd ReduceSumSquare Equal BitwiseAnd BitwiseOr
    BitwiseXor BitwiseNot Reshape Transpose Flatten Squeeze Unsqueeze Expand Tile DepthToSpace SpaceToDepth Pad
    CenterCropPad Gather GatherElements GatherND Slice Split Concat Where Scatter ScatterElements ScatterND
    TensorScatter Trilu Compress NonZero OneHot ReverseSequence
""")
ORDER = _names("""
    Max Min Greater GreaterOrEqual Less LessOrEqual ReduceMax ReduceMin ArgMax ArgMin TopK Clip Unique
""")
# Lowerings that take these types as they are: they only hand them on, or look at the type themselves.
AS_IS = _names("""
    Cast CastLike BitCast BitShift QuantizeLinear DequantizeLinear Identity Shape Size Constant ConstantOfShape EyeLike
    Range If Loop Scan SequenceConstruct SequenceEmpty SequenceInsert SequenceErase SequenceAt SequenceLength
    SequenceMap SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement
""")
INDICES = frozenset({("OneHot", 0), ("OneHot", 1), ("Pow", 1)})
# Lowerings that compute uint64 themselves.
COMPUTES_UINT64 = _names("Abs Sign Div Mod Pow PRelu ReduceMean ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp")


# Functions on torch.uint64 and on the int64 that stands in for it ------------------------------------------------


def to_bits(x: torch.Tensor) -> torch.Tensor:
    """The same bits in a type that torch moves and adds: uintN as intN, float8 as uint8; other types unchanged."""
    if x.dtype in _TWINS:
        return x.view(_TWINS[x.dtype])
    return x.view(torch.uint8) if x.is_floating_point() and x.element_size() == 1 else x


def from_bits(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`to_bits`."""
    return x.view(dtype)


def to_order(x: torch.Tensor) -> torch.Tensor:
    """int64 in the order of `x`."""
    return x.view(torch.int64) ^ _HIGHEST if x.dtype is torch.uint64 else x.to(torch.int64)


def from_order(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`to_order`."""
    return (x ^ _HIGHEST).view(dtype) if dtype is torch.uint64 else x.to(dtype)


def to_values(x: torch.Tensor) -> torch.Tensor:
    """int64 with the values of uint16 or uint32; uint64 unchanged."""
    return x if x.dtype is torch.uint64 else x.to(torch.int64)


def from_values(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` as an unsigned type, modulo 2^n."""
    return x.to(dtype)


def to_index(x: torch.Tensor) -> torch.Tensor:
    """int64; what is beyond it becomes its largest value."""
    if x.dtype is not torch.uint64:
        return x.to(torch.int64)
    index = x.view(torch.int64)
    return torch.where(index < 0, 2**63 - 1, index)


def _at_least(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a ^ _HIGHEST) >= (b ^ _HIGHEST)


def _divided(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quotient and remainder of uint64 in int64: half the numerator fits, and the quotient is then at most 1 short."""
    half = torch.where(b < 0, torch.ones_like(b), b)  # divisors of 2^63 and more are left to the comparison
    quotient = torch.div((a >> 1) & (2**63 - 1), half, rounding_mode="floor") << 1
    quotient = torch.where(b < 0, torch.zeros_like(quotient), quotient)
    more = _at_least(a - quotient * b, b)
    quotient = quotient + more.to(torch.int64)
    return quotient, a - quotient * b


def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Quotient of uint64."""
    return _divided(a.view(torch.int64), b.view(torch.int64))[0].view(torch.uint64)


def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Remainder of uint64."""
    return _divided(a.view(torch.int64), b.view(torch.int64))[1].view(torch.uint64)


def shift_right(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Logical shift of int64 bits by 0 to 63."""
    kept = torch.where(by == 0, torch.full_like(by, -1), (1 << (64 - by.clamp(min=1))) - 1)
    return (x >> by) & kept


# Lowering --------------------------------------------------------------------------------------------------------


_INTO: dict[str, Callable[..., torch.Tensor]] = {
    "bits": to_bits,
    "order": to_order,
    "values": to_values,
    "index": to_index,
}
_BACK: dict[str, Callable[..., torch.Tensor]] = {"bits": from_bits, "order": from_order, "values": from_values}


def view(builder: Builder, node: ir.Node, lower: Callable[[Builder, ir.Graph], None]) -> NodeView:
    """The view that the lowering of `node` gets: a :class:`SignedView` where an input has one of these types."""
    plain = NodeView(builder, node, lower)
    if node.domain not in ("", "ai.onnx") or node.op_type in AS_IS:
        return plain
    kinds = {plain.dtype(i) for i in range(plain.count) if plain.has(i)}
    return SignedView(builder, node, lower) if kinds & (UNSIGNED | FLOAT8) else plain


def refuse_doubtful(view: NodeView, doubtful: set[int]) -> None:
    """Refuse a node with an input that may have one of these types, as it comes from one and its type is unknown.

    Args:
        view: the node.
        doubtful: ids of such values met so far; outputs of the node are added.
    """
    if view.node.domain not in ("", "ai.onnx"):
        return
    given = [(i, v) for i, v in enumerate(view.node.inputs) if v is not None]
    asked = [v for i, v in given if id(v) in doubtful and view.dtype(i) is None]
    if asked and view.node.op_type not in AS_IS:
        raise view.refuse(f"input {asked[0].name!r}, whose element type does not follow from the file")
    if asked or any(v.dtype in UNSIGNED or v.dtype in FLOAT8 for _, v in given):
        doubtful.update(id(v) for v in view.node.outputs if v.dtype is None)


def finish(view: NodeView, result: Lowered) -> Lowered:
    """Convert the result of a lowering to the element types of the node's outputs."""
    return view.finish(result) if isinstance(view, SignedView) else result


class SignedView(NodeView):
    """A node whose unsigned and float8 inputs are shown as types that torch computes in; see :func:`view`."""

    def __init__(self, builder: Builder, node: ir.Node, lower: Callable[[Builder, ir.Graph], None]) -> None:
        super().__init__(builder, node, lower)
        self._file = NodeView(builder, node, lower)  # the inputs as they are in the file
        self._stand_ins: dict[int, fx.Node] = {}

    def form(self, index: int) -> str | None:
        """Return the name of the form in which input `index` is shown; None for its own type."""
        kind = self._file.dtype(index)
        if kind not in UNSIGNED and kind not in FLOAT8:
            return None
        operator = self.node.op_type
        if (operator, index) in INDICES:
            return "index"
        form = self._form_of_operator()
        if kind in FLOAT8 and form != "bits":
            raise self.refuse(f"element type {kind.name}")
        if kind is ir.DataType.UINT64 and form == "values":
            if operator not in COMPUTES_UINT64:
                raise self.refuse("element type UINT64")
            return None
        return form

    def _form_of_operator(self) -> str:
        operator = self.node.op_type
        ordered = operator in ("ScatterElements", "ScatterND") and self.attr("reduction", "none") in ("max", "min")
        if operator in ORDER or ordered:
            return "order"
        plain_product = operator == "Gemm" and self.attr("alpha", 1.0) == self.attr("beta", 1.0) == 1.0
        return "bits" if operator in BITS or plain_product else "values"

    def value(self, index: int) -> Value:
        found = self._file.value(index)
        form = self.form(index)
        if form is None:
            return found
        if index not in self._stand_ins:
            tensor = self.builder.tensor(found)
            self._stand_ins[index] = self.builder.emit("call_function", _INTO[form], (tensor,))
        return self._stand_ins[index]

    def dtype(self, index: int) -> ir.DataType | None:
        kind = self._file.dtype(index)
        form = self.form(index) if kind is not None else None
        if kind is None or form is None:
            return kind
        if form == "bits":
            return _bits_type(kind)
        return kind if kind is ir.DataType.UINT64 and form == "values" else ir.DataType.INT64

    def static(self, index: int) -> np.ndarray | None:
        form = self.form(index) if self.has(index) else None
        if form is None:
            return super().static(index)
        found = self._file.value(index)
        if isinstance(found, fx.Node) or (isinstance(found, Dims) and not found.static):
            return None
        array = found.array if isinstance(found, Const) else found.array.astype(found.dtype.numpy())
        return values.array(_INTO[form](values.tensor(array, found.dtype)), self.dtype(index) or ir.DataType.INT64)

    def ints(self, index: int) -> list[values.Number] | fx.Node:
        known = self.static(index)
        return super().ints(index) if known is None else [int(e) for e in known.flat]

    def operand(self, index: int) -> fx.Node | values.Number:
        return self.tensor(index) if self.form(index) else super().operand(index)

    def dims(self, index: int) -> tuple[int | None, ...] | None:
        return self._file.dims(index)

    def rank(self, index: int) -> int | None:
        return self._file.rank(index)

    def grids(self, indices: Iterable[int] | None = None) -> list[np.ndarray] | None:
        chosen = list(range(self.count) if indices is None else indices)
        return None if any(self.has(i) and self.form(i) for i in chosen) else super().grids(chosen)

    def finish(self, result: Lowered) -> Lowered:
        """`result` with every output that has one of these types turned back."""
        results = result if isinstance(result, tuple) else (result,)
        turned: list[Value | None] = list(results)
        for index, found in enumerate(results):
            kind = self._output_type(index) if found is not None and index < len(self.node.outputs) else None
            if found is None or (kind not in UNSIGNED and kind not in FLOAT8):
                continue
            form = self._form_of_operator()
            dtype = TORCH_DTYPES.get(kind) or CONTAINERS[kind]
            turned[index] = self.builder.emit(
                "call_function", _BACK[form], (self.builder.tensor(found), dtype), name=self.base
            )
        return tuple(turned) if isinstance(result, tuple) else turned[0]  # type: ignore[return-value]

    def _output_type(self, index: int) -> ir.DataType | None:
        """Type of an output: as inferred, else that of the first input with the same type variable."""
        known = self.node.outputs[index].dtype
        if known is not None:
            return known
        schema = onnx.defs.get_schema(self.node.op_type, self.opset, "")
        variable = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
        for position in range(self.count):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            if formal.type_str == variable and self.has(position):
                return self._file.dtype(position)
        return None


def _bits_type(kind: ir.DataType) -> ir.DataType:
    return ir.DataType.UINT8 if kind in FLOAT8 else ir.DataType[kind.name.removeprefix("U")]
