"""Memory that the tensors of a model take, from the shapes that follow from the file, before anything is computed.

A file of one kilobyte can state a ConstantOfShape of a terabyte, or double a vector forty times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import query, shapes, walk
from onnxqat.isolation import limits


@dataclasses.dataclass(frozen=True)
class TensorSizes:
    """A sum over what a model computes.

    Attributes:
        tensors: bytes of what nodes make and of inputs, as far as it is known.
        known: whether it is known for all of them.
    """

    tensors: int
    known: bool


def tensors_of(model: ir.Model, dimensions: Mapping[str, int] | None = None) -> TensorSizes:
    """The sizes of what `model` computes with the shapes that it states.

    Args:
        model: with shapes where they are known.
        dimensions: sizes of symbolic dimensions by name; others count as unknown. None: each of them is 1.
    """
    unknown = 1 if dimensions is None else None
    found = [_bytes(value, dimensions or {}, unknown) for value in _all_values(model.graph)]
    whole = None not in found and not model.functions
    return TensorSizes(sum(size for size in found if size is not None), whole)


def weights_of(model: ir.Model) -> int:
    """Bytes of initializers and of constants in attributes."""
    return sum(tensor.nbytes for tensor in _constants(model))


def check(model: ir.Model, what: str, *, inferred: bool = False) -> None:
    """Refuse a model whose tensors are larger than :mod:`onnxqat.isolation.limits` says, one sample at a time.

    Args:
        model: it is not changed; shapes that it does not state are inferred.
        what: what messages call it.
        inferred: shapes were inferred already: where there is none, none follows.

    Raises:
        ModelError: ``model-too-large``, naming the tensor.
    """
    if not inferred and any(value.shape is None or value.dtype is None for value in _all_values(model.graph)):
        model = model.clone()  # what is inferred is for this check alone: a stale shape may lie beside
        shapes.infer(model)
    largest = limits.largest_tensor()
    for value in _all_values(model.graph):
        size = _bytes(value, {}, unknown=1)
        if size is not None and size > largest:
            raise _too_large(value, size, what, largest)
    allowed = limits.largest_constant(weights_of(model))
    for value in _constant_results(model):
        size = _bytes(value, {}, unknown=1)
        if size is not None and size > allowed:
            raise _too_large(value, size, what, allowed, " of constants alone")


def _too_large(value: ir.Value, size: int, what: str, limit: int, kind: str = "") -> ModelError:
    node = value.producer()
    maker = "" if node is None else f"tensor {value.name!r}, which {query.label(node)!r} computes{kind},"
    origin = maker or f"input {value.name!r}"
    return ModelError(
        "model-too-large",
        f"{what}: {origin} has shape {_shown(value)} and takes {size / 2**30:.3g} GB; at most {limit / 2**30:.3g} GB are allowed",
        hint=f"correct the sizes that the file states, or raise the limit: {limits.MEMORY}=GB, now "
        f"{limits.largest_tensor() / 2**30:g}",
    )


def _shown(value: ir.Value) -> str:
    return "?" if value.shape is None else str([d if isinstance(d, int) else str(d) for d in value.shape])


def _all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs and results of nodes, in `graph` and its bodies; what functions hold has no shape before they are called."""
    yield from (v for v in graph.inputs if v.const_value is None)
    for node in graph:
        yield from (v for v in node.outputs if v.name)
        for body in walk.subgraphs(node):
            yield from _all_values(body)


def _constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for scope in walk.scopes(model):
        if isinstance(scope, ir.Graph):
            yield from (v.const_value for v in scope.initializers.values() if v.const_value is not None)
        for node in scope:
            # By type: as_tensor() and isinstance with a protocol look at every method of it, for each attribute. And the
            # dict inside, whose own view costs three times as much; every session asks.
            own = (a for a in node.attributes.data.values() if a.type == ir.AttributeType.TENSOR)
            yield from (a.value for a in own if not a.is_ref())


def _constant_results(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the outputs of main-graph nodes that follow from constants and known sizes: runtimes fold them at load."""
    constant = {id(v) for v in model.graph.initializers.values() if not v.is_graph_input()}
    for node in model.graph:
        known = node.op_type in ("Shape", "Size") and query.static_shape(node.inputs[0]) is not None
        bodies = any(True for _ in walk.subgraphs(node))
        if known or (not bodies and all(v is None or id(v) in constant for v in node.inputs)):
            constant.update(id(v) for v in node.outputs)
            yield from (v for v in node.outputs if v.const_value is None)


def _bytes(value: ir.Value, dimensions: Mapping[str, int], unknown: int | None = None) -> int | None:
    """Bytes of `value`; None where its type, its rank or a dimension is not known, for which `unknown` may stand."""
    if value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    elements = 1
    for dimension in value.shape:
        size = dimension if isinstance(dimension, int) else dimensions.get(str(dimension), unknown)
        if size is None:
            return None
        elements *= max(0, size)
    return math.ceil(elements * value.dtype.itemsize)
