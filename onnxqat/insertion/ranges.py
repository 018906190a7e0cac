"""Other ranges for a quantizer: what each of a few observers makes of the same data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import runner
from onnxqat.calibration.observers import auto, create
from onnxqat.calibration.observers._base import BaseObserver, NonFiniteError
from onnxqat.calibration.runner import Observed
from onnxqat.calibration.weights import weight_qparams
from onnxqat.data.data import Data
from onnxqat.runtime import vendor_operators
from onnxqat.types import QParams, TensorSpec

CANDIDATES = ("minmax", "percentile", "mse", "entropy")
"""From the widest range to those that clip."""

Observers = dict[str, dict[str, BaseObserver]]


def observe(model: ir.Model, specs: Mapping[str, TensorSpec], data: Data, known: Observed) -> Observers:
    """Each of `CANDIDATES` for each tensor of `specs`.

    Tensors with masks of -inf have none: a histogram does not tell which of their values matter.

    Args:
        model: prepared float model.
        specs: activations, with the spec that they are observed for.
        data: calibration data; one pass over them is made where `known` does not have all.
        known: observers that saw them; those with a histogram are read again.
    """
    found: Observers = {}
    unseen: dict[str, TensorSpec] = {}
    for tensor, spec in specs.items():
        seen = known.get(tensor)
        held = seen.for_spec(spec) if seen is not None and seen.spec.axis == spec.axis else None
        if not isinstance(held, auto.Observer):
            unseen[tensor] = spec
        elif tensor not in known.infinite:
            found[tensor] = {name: held.read_as(name) for name in _names(spec)}
    return found | (_observe(model, unseen, data) if unseen else {})


def _observe(model: ir.Model, specs: Mapping[str, TensorSpec], data: Data) -> Observers:
    found: Observers = {}
    for tensor, spec in specs.items():
        found[tensor] = {name: create(dataclasses.replace(spec, observer=name)) for name in _names(spec)}

    def watcher(tensor: str) -> runner.Watcher:
        def update(value: npt.NDArray[np.float32]) -> None:
            try:
                for observer in found.get(tensor, {}).values():
                    observer.update(value)
            except NonFiniteError:
                found.pop(tensor)

        return update

    plain = {tensor: dataclasses.replace(spec, observer="minmax") for tensor, spec in specs.items()}
    runner.calibrate(
        vendor_operators.runnable_part(model), plain, data, watch={tensor: watcher(tensor) for tensor in specs}
    )
    return found


def of_activations(specs: Mapping[str, TensorSpec], found: Observers) -> Iterator[tuple[str, QParams]]:
    """Observers by name, each with the parameters that it gives the tensors of `specs`, which share one scale."""
    if not specs or not all(found.get(tensor) for tensor in specs):
        return
    spec = next(iter(specs.values()))
    for name in _names(spec):
        if name == spec.observer:
            continue
        wanted = dataclasses.replace(spec, observer=name)
        first, *others = (found[tensor][name] for tensor in specs)
        merged = first.for_spec(wanted, own=True)
        for other in others:
            merged.merge(other.for_spec(wanted))
        yield name, merged.qparams()


def of_weight(spec: TensorSpec, values: npt.NDArray[np.float32]) -> Iterator[tuple[str, QParams]]:
    """Observers by name, each with the parameters that it gives the constant `values`."""
    for name in _names(spec):
        if name != spec.observer:
            yield name, weight_qparams(values, dataclasses.replace(spec, observer=name))


def _names(spec: TensorSpec) -> tuple[str, ...]:
    """Candidates for the type of `spec`: those that clip assume steps of equal size, which float codes do not have."""
    return CANDIDATES[:2] if spec.qtype.is_float else CANDIDATES
