"""Operators between quantizers that an integer function can replace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import build, qdq, query, read_qparams, walk
from onnxqat.integer_functions import calls, library
from onnxqat.integer_functions.definition import Call, IntegerFunction
from onnxqat.passes import _masked_softmaxes, _resized_images, _weighted_sums
from onnxqat.passes._edits import drop_unused
from onnxqat.passes._paired_constants import numbers
from onnxqat.types import QParams


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Operators between quantizers, and the function that can replace them.

    Attributes:
        node: the operator; of several, the last.
        operands: dequantized tensors that it reads.
        quantize: node behind it.
        x: parameters of its operands.
        y: of its result.
        function: what replaces it.
        call: what is asked of the function.
        named: constants of the file by the names of the function's weights.
        inner: what goes with `node`, from the last to the first.
    """

    node: ir.Node
    operands: tuple[ir.Value, ...]
    quantize: ir.Node
    x: tuple[QParams, ...]
    y: QParams
    function: IntegerFunction
    call: Call
    named: Mapping[str, ir.Value]
    inner: tuple[ir.Node, ...] = ()

    @property
    def label(self) -> str:
        """Its name in remarks."""
        return query.label(self.node)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the call."""
        kept = {name: self.call.attributes[name] for name in self.function.attributes if name in self.call.attributes}
        return {**({"axes": list(self.call.axes)} if self.function.rows else {}), **kept}

    def constant_name(self, name: str) -> str:
        """Name of a constant of the call: that of the weight that it holds, or of the result."""
        weight, plain = self.named.get(name), f"{self.quantize.outputs[0].name}_{name}"
        if name not in self.function.weights:
            return plain
        # A float weight has the name in front of the suffix, which has to be free: the file states none, or another reads it.
        if weight is not None and query.reads(weight) > 1:
            weight = None
        return f"{plain if weight is None else weight.name}_{qdq.STORED_CODES}"

    def codes(self, names: build.Names) -> list[ir.Value]:
        """Return the codes of the operands; those that no QuantizeLinear makes are quantized again, which changes none."""
        made = {value: self._codes_of(value, names) for value in dict.fromkeys(self.operands)}
        return [made[value] for value in self.operands]

    def _codes_of(self, operand: ir.Value, names: build.Names) -> ir.Value:
        dequantize = operand.producer()
        assert dequantize is not None
        found = dequantize.inputs[0]
        assert found is not None
        if calls.quantize_of(found) is not None:
            return found
        again = build.node(
            qdq.QUANTIZE,
            [operand, *dequantize.inputs[1:]],
            [names.fresh(f"{found.name}_{qdq.CODES}")],
            dtype=found.dtype,
            shape=found.shape,
            name=names.fresh(f"{found.name}_{qdq.QUANTIZE}"),
        )
        walk.scope_of(self.node).insert_before(self.node, again)
        return again.outputs[0]

    def remove(self) -> None:
        """Take the operators and their quantizers out, and nodes in front where nothing else reads them."""
        scope = walk.scope_of(self.node)
        relu = () if self.quantize.inputs[0] is self.node.outputs[0] else (self.quantize.predecessors()[0],)
        gone = [self.quantize, *relu, self.node, *self.inner]
        read = [value for node in gone for value in node.inputs if value is not None]
        for node in gone:
            scope.remove(node, safe=True)
        for value in read:
            _drop(value)


def _drop(value: ir.Value) -> None:
    """Remove what makes `value`, a constant with or without a pair or a DequantizeLinear, where nothing reads it."""
    producer = value.producer()
    if not qdq.is_qdq(producer):
        drop_unused(value)
        return
    if query.is_used(value) or producer.graph is None:
        return
    inputs = [v for v in producer.inputs if v is not None]
    if qdq.is_quantize(producer) and query.constant_array(inputs[0]) is None:
        return  # of an activation
    walk.scope_of(producer).remove(producer, safe=True)
    for read in inputs:
        _drop(read)


def found_at(node: ir.Node, kind: type[IntegerFunction], lut: int | None) -> Candidate | str:
    """Return the candidate that `node` is for functions of `kind`, or the reason why it is none.

    Args:
        node: an operator of the name of `kind`, or the last of its parts.
        kind: of functions.
        lut: bits of the number of segments of tables; None: as the functions have them.
    """
    quantize = _quantize_behind(node)
    if isinstance(quantize, str) and kind.parts:
        quantize = _behind_relu(node)
    if isinstance(quantize, str):
        return quantize
    group = _weighted_sums.ending_in(node) if kind.parts else None
    if isinstance(group, str):
        return group
    values: Sequence[ir.Value | None] = group.operands if group else _operands(node, kind)
    operands = tuple(v for v in values if v is not None and _dequantize(v) is not None)
    if len(operands) < len(values):
        return "no pair is in front of it"
    grids = _grids(operands, quantize)
    if isinstance(grids, str):
        return grids
    x, y = grids
    if group is not None:
        return _of_sum(node, group, quantize, x, y, kind)
    types = x[0].qtype.storage, y.qtype.storage
    function = library.variadic(kind, *types, len(x)) if kind.is_variadic else library.made(kind, *types, lut)
    return _of_operator(node, operands, quantize, x, y, function)


def masked_at(node: ir.Node, kind: type[IntegerFunction], masks: _masked_softmaxes.Masks) -> Candidate | str | None:
    """Return the candidate that a Softmax behind a mask is, or the reason why it is none; None without a mask.

    Args:
        node: a Softmax.
        kind: of functions.
        masks: pairs of masks of the model, to which one that is missing is added.
    """
    found = _masked_softmaxes.scores_of(node)
    if found is None:
        return None
    quantize = _quantize_behind(node)
    if isinstance(quantize, str):
        return quantize
    grids = _grids((found[1],), quantize)
    if isinstance(grids, str):
        return grids
    x, y = grids
    operands = masks.operands(node, x[0].qtype.storage)
    maker = None if operands is None else operands[2].producer()
    if operands is None or maker is None:
        return _masked_softmaxes.LEFT
    added, scores, kept = operands
    both = (*x, read_qparams.read(maker, None))
    function = library.made(kind, x[0].qtype.storage, y.qtype.storage)
    made = _of_operator(node, (scores, kept), quantize, both, y, function)
    return made if isinstance(made, str) else dataclasses.replace(made, inner=(added,))


def limited_at(node: ir.Node, kind: type[IntegerFunction]) -> Candidate | str | None:
    """Return the candidate that a Max or Min with constants is, or the reason why it is none; None without a constant.

    Args:
        node: a Max or Min.
        kind: of functions.
    """
    constants = {value: array for value in node.inputs if value is not None and (array := numbers(value)) is not None}
    if not constants:
        return None
    operands = tuple(value for value in node.inputs if value is not None and value not in constants)
    if not operands:
        return "all that it reads is constant"
    quantize = _quantize_behind(node)
    if isinstance(quantize, str):
        return quantize
    if any(_dequantize(operand) is None for operand in operands):
        return "no pair is in front of it"
    grids = _grids(operands, quantize)
    if isinstance(grids, str):
        return grids
    x, y = grids
    function = library.variadic(kind, x[0].qtype.storage, y.qtype.storage, len(operands))
    (weight,) = function.weights
    limit = (np.maximum if node.op_type == "Max" else np.minimum).reduce(np.broadcast_arrays(*constants.values()))
    named = {weight: next(iter(constants))} if len(constants) == 1 else {}
    return Candidate(node, operands, quantize, x, y, function, Call(parameters={weight: limit}), named)


def _operands(node: ir.Node, kind: type[IntegerFunction]) -> Sequence[ir.Value | None]:
    return node.inputs if kind.is_variadic else node.inputs[: kind.operands]


def _of_operator(
    node: ir.Node,
    operands: tuple[ir.Value, ...],
    quantize: ir.Node,
    x: tuple[QParams, ...],
    y: QParams,
    function: IntegerFunction,
) -> Candidate | str:
    """The candidate of a single operator."""
    shape = operands[0].shape
    attributes = {name: query.attribute(node, name, None) for name in node.attributes}
    if function.reduces:
        reduced = _reduced(node, attributes)
        if isinstance(reduced, str):
            return reduced
        attributes |= reduced
    if node.op_type == "Resize" and not node.domain:
        resized = _resized_images.attributes_of(node)
        if isinstance(resized, str):
            return resized
        attributes = resized
    axes = function.axes_of(attributes, None if shape is None else shape.rank()) if function.rows else (-1,)
    if not axes:
        return "the rank of its operand is unknown" if shape is None else "it has no axis"
    length = _length(shape, axes) if function.rows else 1
    groups, channels = attributes.get("num_groups"), None if shape is None or shape.rank() < 2 else shape[1]
    length *= channels // groups if groups and isinstance(channels, int) else 1
    behind = node.inputs[function.operands :]
    named = {name: v for name, v in zip(function.weights, behind, strict=False) if v is not None}
    weights: dict[str, npt.NDArray[np.float64]] = {}
    for name, value in named.items():
        array = query.constant_array(value)
        if array is None:
            return "its weights are not constant"
        weights[name] = np.asarray(array, np.float64)
    return Candidate(node, operands, quantize, x, y, function, Call(axes, length, weights, attributes), named)


def _reduced(node: ir.Node, attributes: dict[str, Any]) -> dict[str, Any] | str:
    """Attributes of a reduction with its axes, which are an input from opset 13 or 18 on, or a reason against a call."""
    given = query.input_at(node, 1)
    axes = attributes.get("axes")
    if given is not None:
        array = query.constant_array(given)
        if array is None:
            return "its axes are not constant"
        axes = [int(axis) for axis in array.reshape(-1)]
    if not axes and attributes.get("noop_with_empty_axes"):
        return "it reduces nothing"
    return {
        "keepdims": int(attributes.get("keepdims") is None or attributes["keepdims"] == 1),
        "axes": list(axes or ()),
    }


def _of_sum(
    node: ir.Node,
    group: _weighted_sums.WeightedSum,
    quantize: ir.Node,
    x: tuple[QParams, ...],
    y: QParams,
    kind: type[IntegerFunction],
) -> Candidate:
    """The candidate of a weighted sum."""
    function = library.variadic(kind, x[0].qtype.storage, y.qtype.storage, len(x))
    weights = dict(zip(function.weights, (*group.weights, group.bias), strict=True))
    values = zip(function.weights, (*group.named, group.bias_named), strict=True)
    named = {name: value for name, value in values if value is not None}
    call = Call(parameters=weights)
    return Candidate(node, tuple(group.operands), quantize, x, y, function, call, named, tuple(group.nodes[1:]))


def _quantize_behind(node: ir.Node) -> ir.Node | str:
    """Return the QuantizeLinear that alone reads the result of `node`, or the reason why there is none."""
    result = node.outputs[0]
    users = result.consumers()
    if result.is_graph_output() or not users or not all(map(qdq.is_quantize, users)):
        return "its result is read in float"
    return users[0] if len(users) == 1 else "its result is quantized in several ways"


def _behind_relu(node: ir.Node) -> ir.Node | str:
    """Return the QuantizeLinear behind a Relu behind `node`, where its smallest code is that of zero."""
    users = node.outputs[0].consumers()
    relu = users[0] if len(users) == 1 and users[0].op_type == "Relu" and not users[0].domain else None
    if relu is None or node.outputs[0].is_graph_output():
        return "its result is read in float"
    quantize = _quantize_behind(relu)
    if isinstance(quantize, str):
        return quantize
    try:
        y = read_qparams.read(quantize, None)
    except read_qparams.NotAQuantizerError as error:
        return str(error)
    return (
        quantize if np.all(y.zero_point == y.qtype.quant_min) else "a Relu behind it does what its quantizer does not"
    )


def _dequantize(value: ir.Value) -> ir.Node | None:
    producer = value.producer()
    return producer if qdq.is_dequantize(producer) else None


def _grids(operands: Sequence[ir.Value], quantize: ir.Node) -> tuple[tuple[QParams, ...], QParams] | str:
    """Return the parameters of dequantized operands and of the result, or the reason why there is no function of them."""
    try:
        x = tuple(read_qparams.read(made, None) for value in operands if (made := value.producer()) is not None)
        y = read_qparams.read(quantize, None)
    except read_qparams.NotAQuantizerError as error:
        return str(error)
    return _unfit(x, y) or (x, y)


def _unfit(x: Sequence[QParams], y: QParams) -> str:
    """Return the reason why there is no function of these grids, or nothing."""
    if any(qparams.scale.size != 1 for qparams in (*x, y)):
        return "a scale belongs to one channel"
    for qparams in (*x, y):
        if qparams.qtype.storage not in library.STORAGES:
            return f"there is no function of {qparams.qtype.storage}"
    return "" if len({qparams.qtype.storage for qparams in x}) == 1 else "its operands have different types"


def _length(shape: ir.Shape | None, axes: Sequence[int]) -> int:
    """Elements of a row; axes of unknown length count as one."""
    if shape is None:
        return 1
    sizes = [shape[axis] for axis in axes]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)
