"""Operators between pairs as calls of integer functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import build, qdq, query, read_qparams, walk
from onnxqat.integer_functions import calls, library
from onnxqat.integer_functions.definition import DOMAIN, VERSION, Call, IntegerFunction
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, scope_map
from onnxqat.passes._setting import Setting
from onnxqat.types import QParams

OLDEST = 13
"""First opset in which Softmax is computed along one axis, and ReduceSum has its axes as an input."""
FUNCTIONS_IR = 8
"""First IR version whose models hold functions."""


class IntegerFunctions(Pass):
    """Float operators between quantizers become calls of integer functions (:mod:`onnxqat.integer_functions`).

    1. An operator of those that are chosen, whose input is dequantized and whose only reader quantizes its result, is
       replaced together with that QuantizeLinear: a call reads the codes in front and gives those behind. Its name and
       those of the codes stay. The model gets the function, one for each pair of types, and initializers
       ``<result>_<constant>`` for what depends on the two scales.
    2. The DequantizeLinear in front goes where nothing else reads it.
    3. Left alone, with the reason: one scale for each channel, types without a function, a result that something reads
       in float, rows that are too long or steps that are too small for the function.

    Tolerance: the bound that the function states; codes differ from those of the float operator by it. ::

        d = DequantizeLinear(q, s, z)   f = Softmax(d)   c = QuantizeLinear(f, t, u)   y = DequantizeLinear(c, t, u)
        c = onnxqat.integer.Softmax_uint8_uint8(q, ...)   y = DequantizeLinear(c, t, u)

    Args:
        operators: those that are replaced, as ``Softmax``.
        lut: bits of the number of segments of tables of long codes; None: as the functions have them.
    """

    def __init__(self, operators: Sequence[str] | None = None, lut: int | None = None) -> None:
        self.lut = lut
        self.operators = tuple(library.kinds()) if operators is None else tuple(operators)

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table, or the user, names operators."""
        return cls(setting.table.integer, setting.overrides.lut) if setting.table.integer else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Put calls in; see the class."""
        log, scopes = Log(), scope_map(model)
        kinds = {(kind.domain, kind.operator): kind for kind in library.kinds().values()}
        chosen = [
            (node, kind)
            for node in walk.nodes(model)
            if (kind := kinds.get((node.domain, node.op_type))) and kind.operator in self.operators
        ]
        if not chosen:
            log.left("the model has no operator that is to become an integer function")
        for node, kind in chosen:
            found = _Candidate.of(node, kind, self.lut)
            if isinstance(found, str):
                log.left(f"{kind.operator} stays in float: {found}", node)
                continue
            try:
                self._replace(model, found, scopes[id(node.graph)], context.names)
            except ValueError as reason:
                log.left(f"{kind.operator} stays in float: {reason}", node)
                continue
            log.did(f"{kind.operator} is a call of an integer function", found.label)
        return log.result()

    def _replace(self, model: ir.Model, here: _Candidate, scope: walk.Scope, names: build.Names) -> None:
        function, opset = here.function, query.opset(model)
        constants = function.constants(calls.grid_of(here.x), calls.grid_of(here.y), here.call)
        output = here.quantize.outputs[0]
        dtypes = function.dtypes()
        held = [
            build.constant(
                scope, names.fresh(here.constant_name(name)), value, ir.DataType(dtypes[name]), before=here.node
            )
            for name, value in constants.items()
        ]
        name, output.name = str(output.name), None
        made = build.node(
            function.name,
            [here.codes(names), *held],
            [name],
            here.attributes,
            domain=DOMAIN,
            dtype=output.dtype,
            shape=output.shape,
            name=here.node.name,
            stamp=dict(here.node.metadata_props),
        )
        scope.insert_before(here.quantize, made)
        output.replace_all_uses_with(made.outputs[0])
        here.remove()
        model.opset_imports.setdefault(DOMAIN, VERSION)
        model.ir_version = max(model.ir_version or 0, FUNCTIONS_IR)
        if (DOMAIN, function.name, "") not in model.functions:
            added = ir.serde.deserialize_function(function.to_onnx(opset))
            model.functions[added.identifier()] = added


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    """An operator between quantizers that a function can replace.

    Attributes:
        node: the operator.
        dequantize: node in front of it.
        quantize: node behind it.
        x: parameters of its input.
        y: of its result.
        function: what replaces it.
        call: what is asked of the function.
    """

    node: ir.Node
    dequantize: ir.Node
    quantize: ir.Node
    x: QParams
    y: QParams
    function: IntegerFunction
    call: Call

    @property
    def label(self) -> str:
        """Its name in remarks."""
        return query.label(self.node)

    @classmethod
    def of(cls, node: ir.Node, kind: type[IntegerFunction], lut: int | None) -> _Candidate | str:
        """Return the candidate, or the reason why `node` is none."""
        source, result = node.inputs[0], node.outputs[0]
        dequantize = None if source is None else source.producer()
        if dequantize is None or not qdq.is_dequantize(dequantize):
            return "no pair is in front of it"
        users = result.consumers()
        if result.is_graph_output() or not users or not all(map(qdq.is_quantize, users)):
            return "its result is read in float"
        if len(users) > 1:
            return "its result is quantized in several ways"
        try:
            x, y = read_qparams.read(dequantize, None), read_qparams.read(users[0], None)
        except read_qparams.NotAQuantizerError as reason:
            return str(reason)
        if x.scale.size != 1 or y.scale.size != 1:
            return "a scale belongs to one channel"
        for qparams in (x, y):
            if qparams.qtype.storage not in library.STORAGES:
                return f"there is no function of {qparams.qtype.storage}"
        shape = source.shape if source is not None else None
        rank = None if shape is None else shape.rank()
        attributes = {name: query.attribute(node, name, None) for name in node.attributes}
        axes = kind.axes_of(attributes, rank or 0) if kind.rows else (-1,)
        length = _length(shape, axes) if kind.rows else 1
        weights = _weights(node, kind)
        if weights is None:
            return "its weights are not constant"
        function = library.made(kind, x.qtype.storage, y.qtype.storage, lut)
        return cls(node, dequantize, users[0], x, y, function, Call(axes, length, weights, attributes))

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the call."""
        kept = {name: self.call.attributes[name] for name in self.function.attributes if name in self.call.attributes}
        return {**({"axes": list(self.call.axes)} if self.function.rows else {}), **kept}

    def constant_name(self, name: str) -> str:
        """Name of a constant of the call: that of the weight that it holds, or of the result."""
        if name in self.function.weights:
            index = 1 + self.function.weights.index(name)
            weight = self.node.inputs[index] if index < len(self.node.inputs) else None
            if weight is not None:
                return f"{weight.name}_{qdq.STORED_CODES}"
        return f"{self.quantize.outputs[0].name}_{name}"

    def codes(self, names: build.Names) -> ir.Value:
        """Return the codes of the input; those that no QuantizeLinear makes are quantized again, which changes none."""
        found = self.dequantize.inputs[0]
        assert found is not None
        if calls.quantize_of(found) is not None:
            return found
        again = build.node(
            qdq.QUANTIZE,
            [self.node.inputs[0], *self.dequantize.inputs[1:]],
            [names.fresh(f"{found.name}_{qdq.CODES}")],
            dtype=found.dtype,
            shape=found.shape,
            name=names.fresh(f"{found.name}_{qdq.QUANTIZE}"),
        )
        walk.scope_of(self.node).insert_before(self.node, again)
        return again.outputs[0]

    def remove(self) -> None:
        """Take the operator and its quantizer out, and the node in front where nothing else reads it."""
        scope, source = walk.scope_of(self.node), self.node.inputs[0]
        parameters = [*self.quantize.inputs[1:], *self.node.inputs[1:]]
        scope.remove(self.quantize, safe=True)
        scope.remove(self.node, safe=True)
        if source is not None and not query.reads(source) and not source.is_graph_output():
            scope.remove(self.dequantize, safe=True)
        for value in parameters:
            drop_unused(value)


def _weights(node: ir.Node, kind: type[IntegerFunction]) -> dict[str, npt.NDArray[np.float64]] | None:
    """Return the float weights of an operator by name, without those that it leaves out; None where one is computed."""
    given = dict(zip(kind.weights, node.inputs[1:], strict=False))
    found = {name: query.constant_array(value) for name, value in given.items() if value is not None}
    if any(array is None for array in found.values()):
        return None
    return {name: np.asarray(array, np.float64) for name, array in found.items()}


def _length(shape: ir.Shape | None, axes: Sequence[int]) -> int:
    """Elements of a row; axes of unknown length count as one."""
    if shape is None:
        return 1
    sizes = [shape[axis] for axis in axes]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)
