"""Shape inference through onnxruntime's own operators, which onnx knows nothing about.

Without it, everything behind such an operator has no rank. While the context is open, onnx has schemas for them; the
dimensions that they state are those that follow without looking at values, the others stay unknown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import onnx
import onnx.defs
import onnx_ir as ir
from onnx import AttributeProto, TensorProto, TensorShapeProto, TypeProto

from onnxqat.graph import walk

Dimension: TypeAlias = "TensorShapeProto.Dimension"
Shape: TypeAlias = "list[Dimension] | None"
Rule: TypeAlias = "Callable[[_Context], None]"

DOMAIN = "com.microsoft"
MOST_INPUTS = 20
TYPES = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double", "bool", "float8e4m3fn")] + [
    f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)
]
_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Context:
    """Inputs, attributes and outputs of a node, as an inference rule reads and writes them."""

    inner: Any

    def kind(self, index: int) -> int:
        """Element type of an input, 0 where it is unknown or omitted."""
        found = self._type(index)
        return 0 if found is None else int(found.tensor_type.elem_type)

    def shape(self, index: int) -> Shape:
        """Dimensions of an input, None where the rank is unknown."""
        found = self._type(index)
        if found is None or not found.tensor_type.HasField("shape"):
            return None
        return list(found.tensor_type.shape.dim)

    def attribute(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        found: AttributeProto | None = self.inner.get_attribute(name)
        return default if found is None else int(found.i)

    def sizes(self, name: str) -> list[int]:
        """An attribute of integers."""
        found: AttributeProto | None = self.inner.get_attribute(name)
        return [] if found is None else list(found.ints)

    def give(self, index: int, kind: int, shape: Shape) -> None:
        """State the type of an output, where it exists and its element type is known."""
        if index >= self.inner.get_num_outputs() or not kind:
            return
        made = TypeProto()
        made.tensor_type.elem_type = kind
        if shape is not None:
            made.tensor_type.shape.dim.extend(shape)
        self.inner.set_output_type(index, made)

    def _type(self, index: int) -> TypeProto | None:
        if index >= self.inner.get_num_inputs():
            return None
        found: TypeProto | None = self.inner.get_input_type(index)
        return found if found is not None and found.HasField("tensor_type") else None


def _dimension(value: int | None = None) -> Dimension:
    return TensorShapeProto.Dimension() if value is None else TensorShapeProto.Dimension(dim_value=value)


def _unknown(shape: Shape) -> Shape:
    """Shape of the same rank with all dimensions unknown."""
    return None if shape is None else [_dimension() for _ in shape]


def _like(index: int = 0, *, kind: int | None = None, outputs: Sequence[int] = (0,)) -> Rule:
    """Outputs of the shape of input `index`; of its type, or of that of input `kind`."""

    def rule(context: _Context) -> None:
        for output in outputs:
            context.give(output, context.kind(index if kind is None else kind), context.shape(index))

    return rule


def _ranked(index: int = 0, *, kind: int | None = None, kept: Sequence[int] = ()) -> Rule:
    """An output of the rank of input `index`, with the dimensions `kept` of it."""

    def rule(context: _Context) -> None:
        given = context.shape(index)
        shape = _unknown(given)
        if shape is not None and given is not None:
            for axis in kept:
                shape[axis] = given[axis]
        context.give(0, context.kind(index if kind is None else kind), shape)

    return rule


def _broadcast(*indices: int, kind: int) -> Rule:
    """Rule for elementwise operators: rank of the highest-rank input, and its shape if all others broadcast to it."""

    def rule(context: _Context) -> None:
        shapes = [context.shape(i) for i in indices]
        known = [s for s in shapes if s is not None]
        if len(known) < len(shapes):
            return context.give(0, context.kind(kind), None)
        largest = max(known, key=len)
        same = all(s == largest or all(d.dim_value == 1 for d in s) for s in known)
        return context.give(0, context.kind(kind), largest if same else _unknown(largest))

    return rule


def _product(*, kind: int) -> Rule:
    """A matrix product of the first two inputs, with FusedMatMul's attributes."""

    def rule(context: _Context) -> None:
        a, b = context.shape(0), context.shape(1)
        if a is None or b is None:
            return context.give(0, context.kind(kind), None)
        for letter, side in (("A", a), ("B", b)):
            if context.attribute(f"transBatch{letter}"):
                side.insert(len(side) - 2, side.pop(0))
            if context.attribute(f"trans{letter}") and len(side) > 1:
                side[-2:] = side[:-3:-1]
        longest = a if len(a) >= len(b) else b
        batch = longest[:-2] if min(len(a), len(b)) <= 2 else _unknown(longest[:-2])
        return context.give(0, context.kind(kind), [*(batch or []), *a[-2:-1], *(b[-1:] if len(b) > 1 else [])])

    return rule


def _gemm(b: int, *, kind: int, float_without: int | None = None) -> Rule:
    """(M, N); a float where input `float_without` is omitted."""

    def rule(context: _Context) -> None:
        sides = context.shape(0), context.shape(b)
        rows = _dimension() if sides[0] is None else sides[0][1 if context.attribute("transA") else 0]
        columns = _dimension() if sides[1] is None else sides[1][0 if context.attribute("transB") else 1]
        element = context.kind(kind)
        if float_without is not None and not context.kind(float_without):
            element = TensorProto.FLOAT
        context.give(0, element, [rows, columns])

    return rule


def _last_dimension_rule(name: str) -> Rule:
    """The shape of input 0 with the attribute `name` as its last dimension."""

    def rule(context: _Context) -> None:
        shape = context.shape(0)
        context.give(0, context.kind(0), None if shape is None else [*shape[:-1], _dimension(context.attribute(name))])

    return rule


def _halved(context: _Context) -> None:
    shape = context.shape(0)
    if shape is not None:
        shape[-1] = _dimension(shape[-1].dim_value // 2 or None)
    context.give(0, context.kind(0), shape)


def _embed(context: _Context) -> None:
    ids, words = context.shape(0), context.shape(2)
    if ids is None or words is None:
        return
    for index in (0, 2):
        context.give(index, context.kind(2), [*ids, words[-1]])
    context.give(1, TensorProto.INT32, ids[:1])


def _embed_codes(context: _Context) -> None:
    ids, words = context.shape(0), context.shape(2)
    if ids is not None and words is not None:
        context.give(0, TensorProto.FLOAT, [*ids, words[-1]])
        context.give(1, TensorProto.INT32, ids[:1])


def _attention(kind: int) -> Rule:
    """Attention and QAttention; floats of the type of input `kind`."""

    def rule(context: _Context) -> None:
        x, weight, stated = context.shape(0), context.shape(1), context.sizes("qkv_hidden_sizes")
        hidden = 0 if weight is None else weight[-1].dim_value // 3
        if stated:
            hidden = stated[2]
        if x is None:
            return
        context.give(0, context.kind(kind), [x[0], x[1], _dimension(hidden or None)])
        heads = context.attribute("num_heads")
        size = _dimension(hidden // heads if hidden and heads else None)
        context.give(1, context.kind(kind), [_dimension(2), x[0], _dimension(heads), _dimension(), size])

    return rule


def _multi_head(heads: str) -> Rule:
    """MultiHeadAttention and GroupQueryAttention, whose keys have as many heads as attribute `heads` says."""

    def rule(context: _Context) -> None:
        q, v = context.shape(0), context.shape(2)
        if q is None:
            return
        width = _dimension()
        if heads == "kv_num_heads" and v is not None:
            width = q[2]
        elif v is not None:
            width = v[2] if len(v) == 3 else _dimension(v[1].dim_value * v[3].dim_value or None)
        context.give(0, context.kind(0), [q[0], q[1], width])
        for index in (1, 2):
            present = [q[0], _dimension(context.attribute(heads)), _dimension(), _dimension()]
            context.give(index, context.kind(0), present)

    return rule


def _gather(context: _Context) -> None:
    table, indices = context.shape(0), context.shape(1)
    if table is not None and indices is not None:
        context.give(0, context.kind(2), [_dimension() for _ in range(len(table) - 1 + len(indices))])


def _lstm(context: _Context) -> None:
    x, weight = context.shape(0), context.shape(1)
    if x is None or weight is None:
        return
    state = [weight[0], x[1], _dimension(context.attribute("hidden_size") or None)]
    context.give(0, context.kind(0), [x[0], *state])
    for index in (1, 2):
        context.give(index, context.kind(0), state)


def _longer(context: _Context) -> None:
    """One dimension more than input 0, none of them known."""
    shape = context.shape(0)
    context.give(0, context.kind(0), None if shape is None else _unknown([*shape, _dimension()]))


def _crops(context: _Context) -> None:
    x, regions = context.shape(0), context.shape(1)
    if x is not None and regions is not None:
        context.give(0, context.kind(0), [regions[0], x[1], _dimension(), _dimension()])


def _pairs(context: _Context) -> None:
    """A number for each row of input 0 and each of input 1."""
    a, b = context.shape(0), context.shape(1)
    if a is not None and b is not None:
        context.give(0, context.kind(0), [a[0], b[0]])


def _points(context: _Context) -> None:
    """Infer the output of a gather whose input 1 holds coordinates of input 0 along its last axis (GatherND)."""
    x, indices = context.shape(0), context.shape(1)
    if x is not None and indices is not None and indices[-1].dim_value:
        context.give(0, context.kind(0), [*indices[:-1], *x[indices[-1].dim_value :]])


def _unique(context: _Context) -> None:
    for index, kind in enumerate((context.kind(0), TensorProto.INT64, TensorProto.INT64)):
        context.give(index, kind, [_dimension()])


def _quantize(context: _Context) -> None:
    context.give(0, context.kind(2) or TensorProto.UINT8, context.shape(0))


RULES: dict[tuple[str, str], Rule] = {
    ("", "LayerNormalization"): _like(kind=1),
    ("", "SimplifiedLayerNormalization"): _like(kind=1),
    **{(DOMAIN, name): _like() for name in ("Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasAdd", "BiasSoftmax")},
    **{(DOMAIN, name): _like() for name in ("GroupNorm", "RotaryEmbedding", "QLinearSigmoid", "QLinearLeakyRelu")},
    **{
        (DOMAIN, f"Skip{norm}"): _like(outputs=(0, 3))
        for norm in ("LayerNormalization", "SimplifiedLayerNormalization")
    },
    (DOMAIN, "SkipGroupNorm"): _like(outputs=(0, 1)),
    (DOMAIN, "QLinearSoftmax"): _like(),
    (DOMAIN, "QuantizeLinear"): _quantize,
    (DOMAIN, "DequantizeLinear"): _like(kind=1),
    (DOMAIN, "BiasSplitGelu"): _halved,
    (DOMAIN, "EmbedLayerNormalization"): _embed,
    (DOMAIN, "QEmbedLayerNormalization"): _embed_codes,
    (DOMAIN, "Attention"): _attention(0),
    (DOMAIN, "QAttention"): _attention(3),
    (DOMAIN, "MultiHeadAttention"): _multi_head("num_heads"),
    (DOMAIN, "GroupQueryAttention"): _multi_head("kv_num_heads"),
    (DOMAIN, "FusedMatMul"): _product(kind=0),
    (DOMAIN, "TransposeMatMul"): _product(kind=0),
    (DOMAIN, "MatMulIntegerToFloat"): _product(kind=2),
    (DOMAIN, "DynamicQuantizeMatMul"): _product(kind=0),
    (DOMAIN, "FusedGemm"): _gemm(1, kind=0),
    (DOMAIN, "QGemm"): _gemm(3, kind=8, float_without=7),
    (DOMAIN, "FusedConv"): _ranked(kept=(0,)),
    (DOMAIN, "QLinearConv"): _ranked(kind=7, kept=(0,)),
    (DOMAIN, "QLinearAveragePool"): _ranked(kept=(0,)),
    (DOMAIN, "QLinearGlobalAveragePool"): _ranked(kept=(0,)),
    (DOMAIN, "NhwcMaxPool"): _ranked(kept=(0, -1)),
    (DOMAIN, "QLinearConcat"): _ranked(2),
    (DOMAIN, "QLinearAdd"): _broadcast(0, 3, kind=0),
    (DOMAIN, "QLinearMul"): _broadcast(0, 3, kind=0),
    (DOMAIN, "QLinearWhere"): _broadcast(0, 1, 4, kind=1),
    (DOMAIN, "MatMulNBits"): _last_dimension_rule("N"),
    (DOMAIN, "GatherBlockQuantized"): _gather,
    (DOMAIN, "DynamicQuantizeLSTM"): _lstm,
    (DOMAIN, "CDist"): _pairs,
    (DOMAIN, "CropAndResize"): _crops,
    (DOMAIN, "GatherND"): _points,
    (DOMAIN, "GridSample"): _ranked(kept=(0, 1)),
    (DOMAIN, "Inverse"): _like(),
    (DOMAIN, "Pad"): _ranked(),
    (DOMAIN, "Trilu"): _like(),
    (DOMAIN, "ExpandDims"): _longer,
    (DOMAIN, "UnfoldTensor"): _longer,
    (DOMAIN, "Unique"): _unique,
}


def _schema(domain: str, name: str, rule: Rule) -> onnx.defs.OpSchema:
    """A schema that takes any inputs, for inference alone."""
    option = onnx.defs.OpSchema.FormalParameterOption

    def ends(letter: str, count: int) -> list[onnx.defs.OpSchema.FormalParameter]:
        return [
            onnx.defs.OpSchema.FormalParameter(f"{letter}{i}", f"T{letter}{i}", param_option=option.Optional)
            for i in range(count)
        ]

    inputs, outputs = ends("X", MOST_INPUTS), ends("Y", 5)
    constraints = [(p.type_str, TYPES, "") for p in (*inputs, *outputs)]
    schema = onnx.defs.OpSchema(name, domain, 1, inputs=inputs, outputs=outputs, type_constraints=constraints)
    schema.set_type_and_shape_inference_function(lambda context: rule(_Context(context)))
    return schema


@contextlib.contextmanager
def known_to_inference(model: ir.Model) -> Iterator[None]:
    """While open, onnx infers shapes through the operators of `model` that have a rule here and no schema of onnx."""
    used = {(node.domain, node.op_type) for node in walk.nodes(model)}
    with _LOCK:
        added = []
        try:
            for domain, name in sorted(used & RULES.keys()):
                if not onnx.defs.has(name, 1, domain):
                    onnx.defs.register_schema(_schema(domain, name, RULES[domain, name]))
                    added.append((name, domain))
            yield
        finally:
            for name, domain in added:
                onnx.defs.deregister_schema(name, 1, domain)
