"""Calls of integer functions in a file: made of float operators between pairs, and made to these again.

In a file a call stands between the QuantizeLinear of its input and the DequantizeLinear of its result::

    q = QuantizeLinear(x, s, z)   c = onnxqat.integer.Softmax_uint8_uint8(q, ...)   y = DequantizeLinear(c, t, u)

To those who know pairs only, :func:`expand` shows it as an operator between two pairs, which keeps the call's name::

    d = DequantizeLinear(q, s, z)   f = onnxqat.integer.Softmax_uint8_uint8(d)   c = QuantizeLinear(f, t, u)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import build, qdq, query, read_qparams, walk
from onnxqat.integer_functions import library
from onnxqat.integer_functions.definition import DOMAIN, Call, CodeGrid, IntegerFunction
from onnxqat.types import QParams

FUNCTION = "onnxqat.integer_function"
"""Note on an operator between pairs that stands for a call: the function."""


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A call of an integer function in a graph.

    Attributes:
        node: the call.
        function: what it calls.
        sources: nodes that give the parameters of the codes that are read, one for each operand.
        result: DequantizeLinear behind it.
    """

    node: ir.Node
    function: IntegerFunction
    sources: tuple[ir.Node, ...]
    result: ir.Node

    @property
    def constants(self) -> dict[str, ir.Value]:
        """The inputs behind the codes by their names in the function."""
        values = zip(self.function.bounds(), self.node.inputs[self.function.operands :], strict=True)
        return {name: value for name, value in values if value is not None}

    def call(self, parameters: Mapping[str, npt.NDArray[np.float64]] | None = None) -> Call:
        """Return the demand on the function; without the length of rows, which was checked when the call was made."""
        axes = tuple(query.attribute(self.node, "axes", [-1]))
        attributes = {name: query.attribute(self.node, name, None) for name in self.node.attributes}
        return Call(axes, 1, parameters or {}, attributes)


def is_call(node: ir.Node) -> bool:
    """Check whether `node` calls an integer function."""
    return node.domain == DOMAIN and library.named(node.op_type) is not None


def places(model: ir.Model) -> Iterator[Place]:
    """Yield the calls of `model` that stand between quantizers, in graph order."""
    for node in walk.nodes(model):
        found = place(node) if is_call(node) else None
        if found is not None:
            yield found


def place(node: ir.Node) -> Place | None:
    """Return the call that `node` is; None where it does not stand between quantizers."""
    function = library.named(node.op_type)
    if function is None or len(node.inputs) != function.operands + len(function.bounds()):
        return None
    found = [None if codes is None else quantize_of(codes) for codes in node.inputs[: function.operands]]
    sources = tuple(source for source in found if source is not None)
    behind = through_clip(node.outputs[0])
    result = next((user for user in behind.consumers() if qdq.is_dequantize(user)), None)
    if len(sources) < len(found) or result is None:
        return None
    here = Place(node, function, sources, result)
    return here if _has_sound_constants(here) else None


def _has_sound_constants(here: Place) -> bool:
    """Check whether the constants of a call are whole numbers within their bounds, each shift a single one.

    A call of a stranger's file may have others; it is a function like any other then.
    """
    held = {name: query.constant_array(value) for name, value in here.constants.items()}
    for name, (low, high) in here.function.bounds().items():
        numbers = held.get(name)
        if numbers is None or numbers.dtype.kind not in "iu" or not numbers.size:
            return False
        if numbers.min() < low or numbers.max() > high or (name.endswith("shift") and numbers.ndim):
            return False
    return True


def through_clip(codes: ir.Value) -> ir.Value:
    """Codes behind the Clip of a narrow grid, or `codes`."""
    users = codes.consumers()
    return users[0].outputs[0] if len(users) == 1 and users[0].op_type == "Clip" else codes


def quantize_of(codes: ir.Value) -> ir.Node | None:
    """The QuantizeLinear that makes `codes`, behind a Clip or not."""
    producer = codes.producer()
    if producer is not None and producer.op_type == "Clip":
        producer = query.producer(producer.inputs[0])
    return producer if qdq.is_quantize(producer) else None


def grid_of(qparams: QParams) -> CodeGrid:
    """The grid of a tensor with one scale."""
    return CodeGrid(float(qparams.scale.reshape(())), int(qparams.zero_point.reshape(())), qparams.qtype.storage)


def constants(
    here: Place, x: Sequence[QParams], y: QParams, parameters: Mapping[str, npt.NDArray[np.float64]] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Values of the constants of a call for these grids, by the names of its inputs."""
    found = here.function.constants_of([grid_of(one) for one in x], grid_of(y), here.call(parameters))
    return {str(value.name): found[name] for name, value in here.constants.items()}


def grids(here: Place) -> tuple[tuple[QParams, ...], QParams]:
    """Parameters of operands and result as the file states them."""
    return tuple(read_qparams.read(source, None) for source in here.sources), read_qparams.read(here.result, None)


def operators(model: ir.Model) -> tuple[str, ...]:
    """Return the operators that calls of `model` stand for, or stood for in front of :func:`as_pairs`."""
    noted = (library.named(node.metadata_props.get(FUNCTION, node.op_type)) for node in walk.nodes(model))
    return tuple(sorted({function.operator for function in noted if function is not None}))


def as_pairs(model: ir.Model) -> ir.Model:
    """Return `model`, or a copy with its calls as float operators between pairs where it has any, to read it."""
    if not any(key[0] == DOMAIN for key in model.functions):
        return model
    copy = model.clone()
    expand(copy, as_float=True)
    return copy


def expand(model: ir.Model, *, as_float: bool = False) -> int:
    """Replace calls in `model` by operators between pairs; see the module.

    Args:
        model: changed in place.
        as_float: show the float operators that they stand for, and not nodes that know the function.

    Returns:
        Number of calls that were replaced.
    """
    found = list(places(model))
    standing = {id(here.node) for here in found}
    # A function of which one call stands elsewhere stays: inlining knows its calls by their name alone.
    kept = {node.op_type for node in walk.nodes(model) if is_call(node) and id(node) not in standing}
    found = [here for here in found if here.function.name not in kept]
    for name in {here.function.name for here in found}:
        del model.functions[(DOMAIN, name, "")]
    names = build.Names(model)  # behind the functions: names of their inputs are free in the graph
    for here in found:
        _expand(here, names, as_float=as_float)
    return len(found)


def _expand(here: Place, names: build.Names, *, as_float: bool) -> None:
    """Replace a call by itself between pairs, or by its float operator if `as_float`."""
    node, scope = here.node, walk.scope_of(here.node)
    given = node.outputs[0]
    operands = [_dequantized(here, index, names) for index in range(here.function.operands)]
    # ONNX has no operator for a sum of parts; its weights are factors inside of a kernel, and carry no pair.
    weights: list[ir.Value | None] = []
    if not (as_float and here.function.parts):
        weights += _weights(here, scope, names)
    if as_float and here.function.reduces:
        weights = [_axes_input(here, scope, names)]
    attributes = {name: query.attribute(node, name, None) for name in node.attributes}
    if as_float:
        attributes, further = here.function.float_form(_float_attributes(here))
        weights += [
            None if array is None else build.constant(scope, names.fresh(f"{given.name}_input"), array, before=node)
            for array in further
        ]
    twin = build.node(
        here.function.operator if as_float else node.op_type,
        [*operands, *weights],
        [_float_name(given, names)],
        attributes,
        domain=here.function.domain if as_float else DOMAIN,
        dtype=ir.DataType.FLOAT,
        shape=given.shape,
        name=node.name,
    )
    name, given.name = str(given.name), None
    quantized = build.node(
        qdq.QUANTIZE,
        [twin.outputs[0], *here.result.inputs[1:]],
        [name],
        dtype=given.dtype,
        shape=given.shape,
        name=names.fresh(f"{name}_{qdq.QUANTIZE}"),
    )
    twin.metadata_props[FUNCTION] = here.function.name
    scope.insert_before(node, [twin, quantized])
    given.replace_all_uses_with(quantized.outputs[0])
    scope.remove(node, safe=True)
    for source in dict.fromkeys(here.sources):
        if not query.reads(source.outputs[0]):
            scope.remove(source, safe=True)


def _dequantized(here: Place, index: int, names: build.Names) -> ir.Value:
    """Return a dequantized operand of a call: what was quantized again for it, or a new DequantizeLinear."""
    source = here.sources[index]
    read, before = here.node.inputs[index], source.inputs[0]
    assert read is not None
    assert before is not None
    maker = before.producer()
    if qdq.is_dequantize(maker) and list(maker.inputs[1:]) == list(source.inputs[1:]):
        return before
    made = build.node(
        qdq.DEQUANTIZE,
        [read, *source.inputs[1:]],
        [names.fresh(f"{str(read.name).removesuffix(f'_{qdq.CODES}')}_{qdq.DEQUANTIZED}")],
        dtype=ir.DataType.FLOAT,
        shape=read.shape,
        name=names.fresh(f"{read.name}_{qdq.DEQUANTIZE}"),
    )
    walk.scope_of(here.node).insert_before(here.node, made)
    return made.outputs[0]


def _float_name(codes: ir.Value, names: build.Names) -> str:
    """Name of the float tensor in front of its `codes`: that of the float graph, as far as it is free."""
    base = str(codes.name).removesuffix(f"_{qdq.CODES}")
    name = names.fresh(base)
    return name if name == base else names.fresh(f"{base}_{qdq.UNQUANTIZED}")


def _float_attributes(here: Place) -> dict[str, Any]:
    """Attributes of the float operator that a call stands for."""
    found = {name: query.attribute(here.node, name, None) for name in here.node.attributes}
    axes = found.pop("axes", None)
    return {**({} if axes is None or not here.function.has_axis else {"axis": axes[0]}), **found}


def _axes_input(here: Place, scope: walk.Scope, names: build.Names) -> ir.Value:
    """Axes of a reduction as an input, as opset 18 has them; what only reads a file takes them so in every opset."""
    axes = np.asarray(query.attribute(here.node, "axes", [-1]), np.int64)
    return build.constant(scope, names.fresh(f"{here.node.outputs[0].name}_axes"), axes, before=here.node)


def _weights(here: Place, scope: walk.Scope, names: build.Names) -> list[ir.Value]:
    """Float weights of a call as constants, under the names that they had."""
    if not here.function.weights:
        return []
    values = parameters(here)
    return [
        build.constant(scope, names.fresh(weight_name(here, name)), values[name].astype(np.float32), before=here.node)
        for name in here.function.weights
    ]


def parameters(here: Place) -> dict[str, npt.NDArray[np.float64]]:
    """Return the float weights of a call, as its constants hold them."""
    held = {name: np.asarray(query.constant_array(value), np.int64) for name, value in here.constants.items()}
    x, y = grids(here)
    return here.function.parameters(held, [grid_of(one) for one in x], grid_of(y))


def weight_name(here: Place, name: str) -> str:
    """Name of the float tensor that became the constant `name` of a call."""
    return str(here.constants[name].name).removesuffix(f"_{qdq.STORED_CODES}")
