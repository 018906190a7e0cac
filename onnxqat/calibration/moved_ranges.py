"""Ranges of tensors that nobody observed, because they only hold what was moved there from observed ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import onnx_ir as ir

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.graph import moved, query, walk
from onnxqat.types import TensorSpec


def complete(
    observers: Mapping[str, BaseObserver], wanted: Mapping[str, TensorSpec], model: ir.Model
) -> dict[str, BaseObserver]:
    """`observers`, and for each other tensor of `wanted` one that has seen all that is moved into it.

    What the data lead to may give a pair to a tensor that the plan before left bare (:mod:`onnxqat.backends.bare`).

    Args:
        observers: by tensor name.
        wanted: the tensors that need one, with the spec that they are observed for.
        model: the float model that ran.
    """
    result = dict(observers)
    values = {str(v.name): v for scope in walk.scopes(model) for v in walk.values(scope)}
    for name, spec in wanted.items():
        if name not in result and name in values:
            parts = _sources(values[name], result)
            found = _for_spec(parts[0], spec) if parts else None
            for part in parts[1:]:
                assert found is not None
                found.merge(_for_spec(part, found.spec))
            if found is not None:
                result[name] = found
    return result


def _sources(value: ir.Value, observers: Mapping[str, BaseObserver]) -> list[BaseObserver]:
    """The observers of what is moved into `value`; empty where something of it was not observed."""
    if value.name in observers:
        return [observers[str(value.name)]]
    node = value.producer()
    if node is None or node.domain:
        return []
    nearest = node.op_type == "Resize" and query.attribute(node, "mode", "nearest") == "nearest"
    inputs = list(node.inputs) if node.op_type == "Concat" else list(node.inputs[:1])
    if node.op_type != "Concat" and not nearest and node.op_type not in moved.MOVES:
        return []
    parts = [[] if part is None else _sources(part, observers) for part in inputs]
    return [observer for part in parts for observer in part] if all(parts) else []


def _for_spec(observer: BaseObserver, spec: TensorSpec) -> BaseObserver:
    other = copy.deepcopy(observer)
    other.spec = spec
    return other
