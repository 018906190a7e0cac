"""New nodes and values: dtype and shape always set, names fresh against every scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk

CREATED_BY = "onnxqat.pass"
RULE = "onnxqat.rule"
LEFT_FLOAT = "onnxqat.float"  # on a node that placement left in float: why


class Names:
    """All names in use in a model; gives out fresh ones.

    A name is taken when any value or node of any scope has it, so that a new name never shadows or is shadowed.

    Attributes:
        given: whether any was given out.
    """

    def __init__(self, model: ir.Model) -> None:
        self.given = False
        self._taken: set[str] = set()
        for scope in walk.scopes(model):
            self._taken.update(v.name for v in walk.values(scope) if v.name)
            self._taken.update(n.name for n in scope if n.name)

    def fresh(self, base: str) -> str:
        """`base` when it is free, otherwise ``base_1``, ``base_2``, ...; the result is taken from now on."""
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        self.given = True
        return name


def tensor(array: np.ndarray, dtype: ir.DataType | None = None, name: str | None = None) -> ir.Tensor[Any]:
    """An in-memory tensor; `dtype` is needed for 2- and 4-bit types, whose `array` is given unpacked."""
    array = np.ascontiguousarray(array) if array.ndim else array
    if dtype is not None and array.dtype != dtype.numpy():
        array = array.astype(dtype.numpy())
    return ir.Tensor(array, dtype=dtype or ir.DataType.from_numpy(array.dtype), name=name)


def constant(
    scope: walk.Scope,
    name: str,
    array: np.ndarray,
    dtype: ir.DataType | None = None,
    *,
    before: ir.Node | None = None,
) -> ir.Value:
    """A constant value called `name`: an initializer in a graph, a Constant node in a function body.

    Args:
        scope: where the constant lives.
        name: a fresh name.
        array: the data.
        dtype: ONNX type when it differs from the array's.
        before: in a function body, the node to put the Constant node in front of.
    """
    data = tensor(array, dtype, name)
    if isinstance(scope, ir.Graph):
        value = ir.Value(name=name, const_value=data, shape=ir.Shape(data.shape), type=ir.TensorType(data.dtype))
        scope.register_initializer(value)
        return value
    made = node("Constant", [], [name], {"value": data}, dtype=data.dtype, shape=ir.Shape(data.shape), name=name)
    if before is None:
        scope.insert_before(scope[0], made) if len(scope) else scope.append(made)
    else:
        scope.insert_before(before, made)
    return made.outputs[0]


def node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    dtype: ir.DataType | None = None,
    shape: ir.Shape | None = None,
    name: str | None = None,
    stamp: Mapping[str, str] | None = None,
) -> ir.Node:
    """A node whose outputs carry `dtype` and a copy of `shape`.

    Args:
        op_type: operator.
        inputs: values, None for an omitted optional input.
        outputs: fresh names of the outputs.
        attributes: python values, converted to ONNX attributes.
        domain: operator domain.
        dtype: element type of every output.
        shape: shape of every output; copied, since two values may not share one object.
        name: node name.
        stamp: metadata, such as the pass and the rule that made the node.
    """
    made = [
        ir.Value(
            name=output,
            type=None if dtype is None else ir.TensorType(dtype),
            shape=None if shape is None else shape.copy(),
        )
        for output in outputs
    ]
    converted = ir.convenience.convert_attributes(dict(attributes or {}))
    return ir.Node(
        domain, op_type, inputs, converted, outputs=made, name=name, metadata_props=dict(stamp) if stamp else None
    )
