"""Measurements of a model report on data: values at each quantizer, and noise against the float model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data import inputs as model_inputs
from onnxqat.data.data import Data
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, constant_values
from onnxqat.metrics._closeness import Difference
from onnxqat.report.model_report.meters import ValuesMeter
from onnxqat.runtime.session import Session, main_values
from onnxqat.validation import parity

Array = npt.NDArray[Any]

HELD_BYTES = 2**28
"""Memory that the tensors of one run may fill, copies not counted."""
RUNS, WARM_UP = 10, 2


class Watched:
    """One quantized model with a meter for each quantizer; weights are taken in at once.

    Args:
        file: the model.
        more: other tensors to fetch at each run.
    """

    def __init__(self, file: LintContext, more: Iterable[str] = ()) -> None:
        self.meters = [ValuesMeter(q.qparams, is_weight=q.role == "weight") for q in file.quantizers]
        made = main_values(file.model.graph)
        inputs = {str(v.name) for v in file.model.graph.inputs}
        self._active: list[tuple[str, ValuesMeter]] = []
        for quantizer, meter in zip(file.quantizers, self.meters, strict=True):
            constant = _constant(quantizer)
            if constant is not None:
                meter.update(constant)
            elif not quantizer.stored and quantizer.tensor in made | dict.fromkeys(inputs):
                self._active.append((quantizer.tensor, meter))
        names = dict.fromkeys([name for name, _ in self._active if name not in inputs] + [n for n in more if n in made])
        self.names = list(names)
        self._model = file.model
        self.session: Session | None = None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run `feeds`, update the meters, and return what was fetched with the feeds."""
        found = self.fetch(feeds)
        for name, meter in self._active:
            if name in found:
                meter.update(found[name])
        return found

    def fetch(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run `feeds` with optimizations off, and return what was fetched with the feeds."""
        if self.session is None:
            self.session = Session(self._model, optimize=False, tensors=self.names, what="the quantized model")
        wanted = list(dict.fromkeys([*self.names, *self.session.output_names]))
        return dict(feeds) | self.session.run(feeds, wanted)


def _constant(quantizer: Quantizer) -> Array | None:
    """Return the float values of a weight or bias; None for activations, and for grids that numpy cannot spread."""
    found = constant_values(quantizer)
    if found is None and not quantizer.stored:
        tensor = quantizer.input.const_value
        found = None if tensor is None else np.asarray(tensor.numpy(), np.float32)
    return found


class NoiseMeter:
    """Signal to noise of each tensor that the float model has under the same name.

    Args:
        original: the float model.
        names: tensors of the quantized model.
    """

    def __init__(self, original: ir.Model, names: Sequence[str]) -> None:
        made = main_values(original.graph)
        self.outputs = [str(v.name) for v in original.graph.outputs]
        self._names = list(dict.fromkeys([*(n for n in names if n in made), *self.outputs]))
        self._session = Session(original, optimize=True, tensors=self._names, what="the float model")
        self._found: dict[str, Difference] = {}

    def update(self, feeds: Mapping[str, Array], quantized: Mapping[str, Array]) -> None:
        """Compare one batch."""
        for name, value in self._session.run(feeds, self._names).items():
            other = quantized.get(name)
            if other is not None and other.shape == value.shape and value.dtype.kind == "f":
                self._found.setdefault(name, Difference()).update(other, value)

    def result(self) -> dict[str, float]:
        """Return the ratios in decibels by tensor."""
        return {name: each.sqnr_db for name, each in self._found.items() if each.elements}

    def output_db(self) -> float | None:
        """Return the ratio of the worst output; None where none was compared."""
        found = [self._found[name].sqnr_db for name in self.outputs if name in self._found]
        return min(found, default=None)


def run_over(
    data: Data,
    watched: Sequence[Watched],
    noise: Sequence[tuple[Watched, NoiseMeter]],
    progress: Callable[[int, int | None], None] | None = None,
) -> int:
    """Run all of `watched` over `data`, comparing those in `noise`; return the number of samples."""
    samples = 0
    size: int | None = None
    dynamic = model_inputs.static_batch(data.inputs) is None
    for done, feeds in enumerate(data, start=1):
        count = len(next(iter(feeds.values()))) if all(a.ndim for a in feeds.values()) else 1
        splits = dynamic and count > 1 and all(a.ndim and a.shape[0] == count for a in feeds.values())
        if splits and size is None:
            one = {name: array[:1] for name, array in feeds.items()}
            held = max(sum(a.nbytes for a in each.fetch(one).values()) for each in watched) if watched else 1
            size = max(1, HELD_BYTES // max(held, 1))
        for piece in parity.pieces(feeds, size if splits else None):
            found = {id(each): each.run(piece) for each in watched}
            for each, meter in noise:
                meter.update(piece, found[id(each)])
        samples += count
        if progress is not None:
            progress(done, data.batches)
    return samples


def milliseconds(model: ir.Model, feeds: Mapping[str, Array]) -> float:
    """Return the median time of :data:`RUNS` runs of one batch in onnxruntime's default session, in one thread."""
    session = Session(model, optimize=True, threads=1)
    times = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        session.run(feeds)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[WARM_UP:])
