"""Models in float16, bfloat16 or double are computed in float32, the one type that quantizers and tables know."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.errors import UnsupportedError
from onnxqat.graph import build, edit, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred
from onnxqat.passes._integer_arithmetic import integer_arithmetic
from onnxqat.passes._io_casts import made_by_cast, read_through_cast
from onnxqat.passes._setting import Setting
from onnxqat.passes.restore_io_types import check_castable

OTHERS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type")
"""Attributes that hold an element type, in ONNX's domain and onnxruntime's."""

_DOMAINS = ("", "ai.onnx", "com.microsoft")


class ConvertToFloat32(Pass):
    """Tensors of float16, bfloat16 and double become float32; inputs and outputs of the model keep their types.

    1. Constants, types of values, and attributes that hold either (``to``, ``dtype``, ``value``, ...) become float32,
       in bodies of control flow and functions too. Scales of quantizers are among them; codes and grids stay. External
       data are converted as they are read.
    2. A Cast goes where it changes nothing any more. A Cast to and from integers stays.
    3. With `keep_io_types`, an input of another type is read through a Cast (``<input>_float32``), and an output is
       made by one, from ``<output>_float32``. A Cast that the file has there already does.
    4. Left alone, but for the bodies of functions: sizes and masks that are computed in float16 or double from integers
       and constants alone and come back to integers, and positions in double that come back to float32 through a Cast
       (:mod:`onnxqat.passes._integer_arithmetic`): their rounding may decide about a shape. A model in float32 is left
       as it is.
    5. Refused with ``operator-unsupported``: BitCast of these types, since the bits are others; sequences of them as
       inputs and outputs that should keep their types; a function that gets an element type as an attribute.

    Results of float16 and bfloat16 are no longer rounded to 11 and 8 bits after each node, and no longer overflow: what
    was infinite at 65504 is the number that it should have been. Infinities that the file states stay, and its lowest
    number, as masks use it, is large enough in float32. Constants of float16 and bfloat16 keep their values. Those of
    double are rounded to 24 bits; one that float32 cannot hold becomes its largest number, or its smallest normal one,
    never an infinity or zero.

    Tolerance: the rounding of the type that went: 2^-11 of a tensor's range and node for float16, 2^-8 for bfloat16,
    2^-24 for double. ::

        (float16[N,3] x) => (float16[N,2] y) <float16[3,2] w> { y = MatMul(x, w) }
        (float16[N,3] x) => (float16[N,2] y) <float[3,2] w> {
            x_float32 = Cast <to = 1> (x)   y_float32 = MatMul(x_float32, w)   y = Cast <to = 10> (y_float32) }

    Args:
        keep_io_types: whether inputs and outputs of the model keep their types, behind a Cast.
    """

    def __init__(self, *, keep_io_types: bool = True) -> None:
        self.keep_io_types = keep_io_types

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Convert inputs and outputs too: restore-io-types gives them back their types."""
        return cls(keep_io_types=False)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Convert; see the class."""
        if not other_floats(model):
            return Rewrite(False)
        return _Conversion(model, context.names, {build.CREATED_BY: self.name}).run(keep_io_types=self.keep_io_types)


_STATE_TYPES = frozenset(
    {ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.TYPE_PROTO, ir.AttributeType.INT}
)


def other_floats(model: ir.Model) -> frozenset[ir.DataType]:
    """Return those of float16, bfloat16 and double that a model states: in inputs, outputs, constants, attributes."""
    found = set[ir.DataType]()
    for scope in walk.scopes(model):
        found.update(kind for value in walk.values(scope) if (kind := _element(value.type)) is not None)
        for node in scope:
            for attribute in node.attributes.data.values():  # the dict inside: every session asks for all of them
                if attribute.type in _STATE_TYPES:
                    found.update(_kinds(node, attribute))
    return OTHERS & found


def _element(kind: ir.TypeProtocol | None) -> ir.DataType | None:
    """The element type of a tensor, or of those in a sequence or an optional value."""
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return None if kind is None else kind.dtype


def _converted(kind: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_converted(kind.elem_type), denotation=kind.denotation)
    return type(kind)(ir.DataType.FLOAT, denotation=kind.denotation)  # type: ignore[call-arg]


def _kinds(node: ir.Node, attribute: ir.Attr) -> Iterator[ir.DataType]:
    """The element types that an attribute states."""
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        yield attribute.as_tensor().dtype
    elif attribute.type == ir.AttributeType.TENSORS:
        yield from (tensor.dtype for tensor in attribute.as_tensors())
    elif attribute.type == ir.AttributeType.TYPE_PROTO:
        kind = _element(attribute.value.type)
        yield from () if kind is None else (kind,)
    elif attribute.type == ir.AttributeType.INT and _holds_type(node, attribute.name):
        yield from (kind for kind in OTHERS if kind == attribute.value)


def _holds_type(node: ir.Node, name: str) -> bool:
    return node.domain in _DOMAINS and name in TYPE_ATTRIBUTES


class _Conversion:
    """One model on its way."""

    def __init__(self, model: ir.Model, names: build.Names, stamp: dict[str, str]) -> None:
        self.model, self.graph, self.names, self.stamp = model, model.graph, names, stamp
        self.log = Log()
        inferred = Inferred(model)
        self.before = {id(v): _type_before(v, inferred) for s in walk.scopes(model) for v in walk.values(s)}
        self.stays = integer_arithmetic(model, OTHERS - {ir.DataType.BFLOAT16}, self._kind)
        self.border = set[int]()  # nodes that make an output in the type that it keeps
        self.kinds = set[ir.DataType]()
        self.clipped: list[str] = []

    def run(self, *, keep_io_types: bool) -> Rewrite:
        """Convert in place."""
        for node in walk.nodes(self.model):
            self._check(node)
        stayed = [node for node in walk.nodes(self.model) if id(node) in self.stays]
        ports = self._keep_ports() if keep_io_types else []
        for scope in list(walk.scopes(self.model)):
            self._convert_scope(scope, {id(v) for v in ports})
        for scope in list(walk.scopes(self.model)):
            for node in list(scope):
                if self._is_free(node) and self._changes_nothing(node):
                    self._drop(node)
        if self.kinds:
            text = f"computed in float32 instead of {' and '.join(sorted(k.name.lower() for k in self.kinds))}"
            names = [str(v.name) for v in ports]
            self.log.did(f"{text}; inputs and outputs keep their types behind a Cast" if names else text, *names)
            if stayed:
                self.log.left("sizes and positions that are computed from integers keep their type", *stayed)
            if self.clipped:
                self.log.left(
                    "a constant that float32 cannot hold became the nearest number that it can", *self.clipped
                )
        return self.log.result()

    def _kind(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type that a value of the file had."""
        return None if value is None else self.before.get(id(value))

    def _is_free(self, node: ir.Node) -> bool:
        return id(node) not in self.stays and id(node) not in self.border

    def _check(self, node: ir.Node) -> None:
        """Refuse operators without a meaning in float32."""
        if node.op_type == "BitCast" and node.domain == "" and id(node) not in self.stays:
            kinds = (self._kind(node.inputs[0]), ir.DataType(int(query.attribute(node, "to", 1))))
            if OTHERS & set(kinds):
                raise self._refuse(node, "the bits of a float32 number are others", "take the BitCast out")
        for attribute in node.attributes.values():
            if attribute.is_ref() and _holds_type(node, attribute.name):
                raise self._refuse(
                    node,
                    f"its element type is the attribute {attribute.ref_attr_name!r} of the function",
                    "inline the function: onnx.inliner.inline_local_functions",
                )

    def _refuse(self, node: ir.Node, reason: str, hint: str) -> UnsupportedError:
        text = f"node {query.label(node)!r} ({node.op_type}) cannot be converted to float32: {reason}"
        return UnsupportedError("operator-unsupported", text, hint=hint)

    def _keep_ports(self) -> list[ir.Value]:
        """Put a Cast beside each input and output of another type; these values."""
        ports = [v for v in dict.fromkeys([*self.graph.inputs, *self.graph.outputs]) if self._kind(v) in OTHERS]
        for value in ports:
            check_castable(value, OTHERS)
        inputs = [v for v in ports if v.is_graph_input()]
        outputs = [v for v in ports if not v.is_graph_input()]
        for value in reversed(inputs):
            readers = [(node, index) for node, index in value.uses() if index or not _is_cast(node)]
            if readers:
                made = read_through_cast(self.graph, value, readers, self.names, self.stamp)
                self.before[id(made)] = ir.DataType.FLOAT
                self.kinds.add(_known(value))
        return [*inputs, *map(self._made_by_cast, outputs)]

    def _made_by_cast(self, value: ir.Value) -> ir.Value:
        """The output of the Cast beside the output `value`, which may be one of the file."""
        maker, kind = value.producer(), self._kind(value)
        assert kind is not None
        if maker is None or maker.op_type != "Cast" or maker.domain or query.reads(value):
            maker = made_by_cast(self.graph, value, kind, self.names, self.stamp)
            self.kinds.add(kind)
            self.before[id(maker.outputs[0])] = kind
        self.border.add(id(maker))
        return maker.outputs[0]

    def _convert_scope(self, scope: walk.Scope, ports: set[int]) -> None:
        for value in list(walk.values(scope)):
            maker = value.producer()
            if id(value) in ports or not (maker is None or self._is_free(maker)):
                continue
            if maker is not None and maker.op_type == "Constant" and not maker.domain:
                self._convert_constant_node(maker)
            elif value.const_value is not None and value.const_value.dtype in OTHERS and value.is_initializer():
                self._convert_initializer(value)
            elif value.type is not None and _element(value.type) in OTHERS:
                self._convert_type(value)
        for node in list(scope):
            if self._is_free(node) and not (node.op_type == "Constant" and not node.domain):
                self._convert_attributes(node)

    def _convert_type(self, value: ir.Value) -> None:
        self.kinds.add(_known(value))
        assert value.type is not None
        value.type = _converted(value.type)

    def _split(self, value: ir.Value) -> list[tuple[ir.Node, int]] | None:
        """Uses of a constant by nodes that are converted; None if all uses are, or if there is none."""
        others = [(node, index) for node, index in value.uses() if id(node) not in self.stays]
        return None if len(others) == query.reads(value) else others

    def _convert_initializer(self, value: ir.Value) -> None:
        readers, held = self._split(value), value.const_value
        if held is None or readers == []:
            return
        self.kinds.add(held.dtype)
        if readers is None:
            value.const_value = self._tensor(held, str(value.name))
            value.type = ir.TensorType(ir.DataType.FLOAT)
            return
        name, graph = self.names.fresh(f"{value.name}_float32"), value.graph
        made = ir.Value(name=name, const_value=self._tensor(held, name), shape=ir.Shape(held.shape.numpy()))
        made.type = ir.TensorType(ir.DataType.FLOAT)
        assert graph is not None
        graph.register_initializer(made)
        edit.rewire(readers, made)

    def _convert_constant_node(self, node: ir.Node) -> None:
        output, attribute = node.outputs[0], node.attributes.get("value")
        if attribute is None or attribute.is_ref() or attribute.as_tensor().dtype not in OTHERS:
            return
        readers, held = self._split(output), attribute.as_tensor()
        if readers == []:
            return
        self.kinds.add(held.dtype)
        if readers is None:
            node.attributes["value"] = ir.AttrTensor("value", self._tensor(held, held.name))
            if output.type is not None:
                output.type = ir.TensorType(ir.DataType.FLOAT)
            return
        name = self.names.fresh(f"{output.name}_float32")
        shape = ir.Shape(held.shape.numpy())
        value = {"value": self._tensor(held, name)}
        made = build.node("Constant", [], [name], value, dtype=ir.DataType.FLOAT, shape=shape, stamp=self.stamp)
        walk.scope_of(node).insert_after(node, made)
        edit.rewire(readers, made.outputs[0])

    def _convert_attributes(self, node: ir.Node) -> None:
        for name, attribute in list(node.attributes.items()):
            kinds = OTHERS & set(_kinds(node, attribute))
            if not kinds:
                continue
            self.kinds |= kinds
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, self._tensor(attribute.as_tensor(), query.label(node)))
            elif attribute.type == ir.AttributeType.TENSORS:
                held = [self._tensor(tensor, query.label(node)) for tensor in attribute.as_tensors()]
                node.attributes[name] = ir.AttrTensors(name, held)
            elif attribute.type == ir.AttributeType.TYPE_PROTO:
                stated = attribute.value
                node.attributes[name] = ir.AttrTypeProto(name, ir.TypeAndShape(_converted(stated.type), stated.shape))
            else:
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))

    def _tensor(self, held: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
        """`held` in float32; what lies in an external file stays there until it is read."""
        if isinstance(held, ir.ExternalTensor):
            shape = ir.Shape(held.shape.numpy())
            return ir.LazyTensor(lambda: build.tensor(_float32(held.numpy())[0]), ir.DataType.FLOAT, shape, name=name)
        found, clipped = _float32(held.numpy())
        if clipped:
            self.clipped.append(str(name))
        return build.tensor(found, name=name)

    def _now(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type that a value has after the conversion."""
        if value is None or value.dtype is not None:
            return None if value is None else value.dtype
        kind = self.before.get(id(value))
        return ir.DataType.FLOAT if kind in OTHERS else kind

    def _changes_nothing(self, node: ir.Node) -> bool:
        """Check whether `node` is a Cast from or to a converted type that is float32 to float32 now."""
        if not _is_cast(node) or not OTHERS & {self._kind(node.inputs[0]), self._kind(node.outputs[0])}:
            return False
        target = self._now(node.inputs[1]) if node.op_type == "CastLike" else int(query.attribute(node, "to", 0))
        return self._now(node.inputs[0]) == target == ir.DataType.FLOAT

    def _drop(self, node: ir.Node) -> None:
        source = node.inputs[0]
        assert source is not None
        edit.bypass(node, source)


def _type_before(value: ir.Value, inferred: Inferred) -> ir.DataType | None:
    kind = _element(value.type)
    stated = None if (maker := value.producer()) is None or maker.op_type != "Cast" else maker.attributes.get("to")
    if kind is None and stated is not None and not stated.is_ref():
        return ir.DataType(stated.as_int())  # a function's body states no types
    return inferred.dtype(value) if kind is None else kind


def _known(value: ir.Value) -> ir.DataType:
    kind = _element(value.type)
    assert kind is not None
    return kind


def _is_cast(node: ir.Node) -> bool:
    return node.op_type in ("Cast", "CastLike") and node.domain == ""


def _float32(array: np.ndarray) -> tuple[np.ndarray, bool]:
    """Convert `array` to float32, return whether values were clipped: finite ones stay finite, and non-zero ones so."""
    with np.errstate(over="ignore", under="ignore"):
        found = array.astype(np.float32)
    if array.dtype != np.float64:
        return found, False
    limits = np.finfo(np.float32)
    large, small = np.isinf(found) & np.isfinite(array), (found == 0) & (array != 0)
    found = np.where(large, np.copysign(limits.max, array), found)
    found = np.where(small, np.copysign(limits.smallest_normal, array), found)
    return found.astype(np.float32, copy=False), bool((large | small).any())


def convert(model: ir.Model, *, keep_io_types: bool = True) -> ir.Model:
    """Return a copy of `model` in float32, or `model` itself if it is already; errors as of the pass."""
    if not other_floats(model):
        return model
    copy: ir.Model = ConvertToFloat32(keep_io_types=keep_io_types).run(model).model
    return copy
