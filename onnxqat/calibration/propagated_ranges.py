"""Ranges of tensors that were not observed: stated by their operator, or those of observed tensors moved there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.calibration.observers import create, joined
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.graph import data_movement, walk
from onnxqat.ops import operators as ops
from onnxqat.types import TensorSpec


def complete(
    observers: Mapping[str, BaseObserver], wanted: Mapping[str, TensorSpec], model: ir.Model
) -> dict[str, BaseObserver]:
    """`observers`, and one for each other tensor of `wanted`, with the range that its operator states or that moves into it.

    Decisions that depend on the data change the plan after calibration: a tensor that had no pair of its own
    (:mod:`onnxqat.placement.redundant_pairs`) may get one, and one with prescribed parameters may lose them.

    Args:
        observers: by tensor name.
        wanted: the tensors that need one, with the spec that they are observed for.
        model: the float model that ran.
    """
    result = dict(observers)
    values = {str(v.name): v for scope in walk.scopes(model) for v in walk.values(scope)}
    for name, spec in wanted.items():
        if name not in result and name in values:
            parts = _sources(values[name], result, spec)
            if parts:
                result[name] = joined(parts[0].for_spec(spec), parts[1:]).for_spec(spec, own=True)
    return result


def _sources(value: ir.Value, observers: Mapping[str, BaseObserver], spec: TensorSpec) -> list[BaseObserver]:
    """Observers of the tensors whose data is moved into `value`; empty if the range of one is unknown."""
    if value.name in observers:
        return [observers[str(value.name)]]
    node = value.producer()
    if node is None:
        return []
    row = ops.of(node)
    if row is not None and row.output_range is not None:
        bounded = create(dataclasses.replace(spec, observer="minmax"))
        bounded.update(np.asarray(row.output_range, np.float32))
        return [bounded]
    parts = [_sources(part, observers, spec) for part in data_movement.sources(node)]
    return [observer for part in parts for observer in part] if all(parts) else []
