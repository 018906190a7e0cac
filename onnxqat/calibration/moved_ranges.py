"""Ranges of tensors that nobody observed, because they only hold what was moved there from observed ones."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.graph import moved, walk
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
            for part in parts:
                if name in result:
                    result[name].merge(part.for_spec(spec))
                else:
                    result[name] = part.for_spec(spec, own=True)
    return result


def _sources(value: ir.Value, observers: Mapping[str, BaseObserver]) -> list[BaseObserver]:
    """The observers of what is moved into `value`; empty where something of it was not observed."""
    if value.name in observers:
        return [observers[str(value.name)]]
    node = value.producer()
    parts = [] if node is None else [_sources(part, observers) for part in moved.sources(node)]
    return [observer for part in parts for observer in part] if all(parts) else []
