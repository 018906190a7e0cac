"""Run a float model over data and show the observers what each tensor holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import discover
from onnxqat.calibration import runtime_masks, taken_branches
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import BaseObserver, NonFiniteError
from onnxqat.counts import counted
from onnxqat.data import inputs as model_inputs
from onnxqat.data import non_finite_data
from onnxqat.data.data import DataSource, open_data
from onnxqat.data.inputs import Feeds
from onnxqat.errors import DataError, QatError, UsageError
from onnxqat.graph import blame, io, query
from onnxqat.runtime import branch_tensors, non_finite_origin
from onnxqat.runtime.session import Session
from onnxqat.types import Remark, TensorSpec

Watcher = Callable[[npt.NDArray[Any]], None]
Progress = Callable[[int, "int | None"], None]

FEWEST = 8
"""Samples below which a remark says so: the trial that follows judges on as many, and then on nothing else."""


class Observed(dict[str, BaseObserver]):
    """The observers by tensor name; tensors of one group have the same observer.

    Attributes:
        remarks: tensors that saw no data, and what the data source noticed.
        batches: number of batches that were run.
        samples: number of samples in them.
        infinite: names of masks of -inf, and of what is computed from them; their observers saw the numbers alone.
        conditions: values that the conditions of If held, by name.
    """

    def __init__(
        self,
        observers: Mapping[str, BaseObserver],
        remarks: Sequence[Remark],
        batches: int,
        infinite: frozenset[str] = frozenset(),
        samples: int = 0,
        conditions: Mapping[str, Collection[bool]] | None = None,
    ) -> None:
        super().__init__(observers)
        self.remarks = tuple(remarks)
        self.batches = batches
        self.infinite = infinite
        self.samples = samples
        self.conditions = conditions or {}


def calibrate(
    model: io.ModelSource,
    tensors: Mapping[str, TensorSpec],
    data: DataSource,
    *,
    groups: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    watch: Mapping[str, Watcher] | None = None,
    custom_ops: Sequence[str] = (),
) -> Observed:
    """Observe `tensors` of a float `model` while it runs over `data` in onnxruntime, on the CPU.

    Each batch is let go before the next is read: memory does not grow with their number. Batches may differ in
    shape; an empty tensor changes nothing.

    Args:
        model: path or model; it is not changed.
        tensors: what to observe, and how: inputs, outputs, and results of nodes of the main graph and of branches of
            If in it; a branch that no batch takes leaves its tensors unseen.
        data: :class:`Data`, or anything that :func:`onnxqat.data.data.open_data` opens.
        groups: tensor to the root of its group; a group has one observer, made for the root's spec.
        progress: called with the number of batches done and their total, None where that is not known.
        watch: called with each value of a tensor, one of those observed.
        custom_ops: shared libraries with custom operators, for onnxruntime to load.

    Returns:
        An observer for each name in `tensors` and `groups`. One that saw no data has the range zero, and a remark.

    Raises:
        UsageError: ``name-unknown`` (a tensor or an observer); ``option-invalid`` (a spec that does not fit).
        ModelError: ``model-not-runnable``, with onnxruntime's reason; and what :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-non-finite``, naming tensor and batch; and what the data source raises.
    """
    graph_model = io.load(model)
    observers = _observers(tensors, groups or {})
    _check_tensors(graph_model, observers)
    inputs = model_inputs.of_graph(graph_model.graph)
    source = open_data(data, inputs)
    fed = {info.name for info in inputs}
    fetched = [name for name in observers if name not in fed]
    conditions = taken_branches.Conditions(graph_model, fed)
    asked = [*fetched, *conditions.fetched] if observers else []
    done = samples = 0
    session = None
    if asked or graph_model.graph.outputs:  # without fetching anything it still tells whether the model runs
        session = Session(graph_model, optimize=True, tensors=asked, custom_ops=custom_ops)
    infinite: set[str] = set()
    numbers = runtime_masks.read_by_layers(graph_model.graph)
    for feeds in source:
        infinite.update(name for name, value in feeds.items() if value.dtype.kind == "f" and runtime_masks.hides(value))
        batch = f"batch {done} of {source.name}"
        runtime_masks.check_data(feeds, numbers, batch)
        results = session.run_list(feeds, asked, f" on {batch}") if session and asked else []
        if observers:
            conditions.take(feeds, results)
        try:
            _observe(results, feeds, fetched, observers, watch or {}, infinite)
        except _RefusedError as refused:
            raise _error(refused, feeds, batch, infinite, graph_model, custom_ops) from None
        done += 1
        samples += model_inputs.samples_of(feeds)
        if progress is not None:
            progress(done, source.batches)
    unseen = [name for name, observer in observers.items() if not observer.count]
    remarks = [
        Remark(f"tensor {name!r} never held a value: its range is zero", (name,), "calibrate") for name in unseen
    ]
    if observers and len(inputs) == 1 and samples < FEWEST:  # with several inputs, samples may lie along another axis
        text = f"ranges are those of {counted(samples, 'sample')}: others go beyond them; give some hundred"
        remarks.append(Remark(text, source="calibrate", concern="result"))
    hidden = frozenset(infinite & observers.keys())
    return Observed(observers, [*source.remarks, *remarks], done, hidden, samples, conditions.held)


class Watching(Protocol):
    """Watcher that sees the same values as the observers."""

    def update(self, values: npt.NDArray[Any], /) -> None:
        """Take in the values of one batch."""


def watchers(*watched: Mapping[str, Watching]) -> dict[str, Watcher]:
    """Combine watchers of tensors by name into the `watch` argument of :func:`calibrate`."""

    def all_of(found: Sequence[Watching]) -> Watcher:
        def update(values: npt.NDArray[Any]) -> None:
            for each in found:
                each.update(values)

        return update

    names = dict.fromkeys(name for each in watched for name in each)
    return {name: all_of([each[name] for each in watched if name in each]) for name in names}


def _observers(tensors: Mapping[str, TensorSpec], groups: Mapping[str, str]) -> dict[str, BaseObserver]:
    """One observer per group, in the order of the names."""
    made: dict[str, BaseObserver] = {}
    observers = {}
    names = [*tensors, *(name for name in groups if name not in tensors)]
    for name in names:
        root = _root(name, groups)
        if root not in made:
            member = root if root in tensors else next((n for n in tensors if _root(n, groups) == root), None)
            if member is None:
                raise UsageError("option-invalid", f"no tensor of the group of {root!r} has a spec")
            made[root] = create(tensors[member])
        observers[name] = made[root]
    return observers


def _root(name: str, groups: Mapping[str, str]) -> str:
    seen = {name}
    while groups.get(name, name) not in seen:
        name = groups[name]
        seen.add(name)
    if groups.get(name, name) != name:
        raise UsageError("option-invalid", f"the group of tensor {name!r} has no root: its links form a circle")
    return name


def _check_tensors(model: ir.Model, names: Mapping[str, BaseObserver]) -> None:
    values = branch_tensors.observable(model)
    floating = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, None}
    for name in names:
        if name not in values:
            raise discover.unknown("tensor that can be observed", name, sorted(values))
        if values[name].dtype not in floating:
            raise UsageError("option-invalid", f"tensor {name!r} is {values[name].dtype}: it has no range to observe")


class _RefusedError(Exception):
    """A tensor that an observer does not take."""

    def __init__(self, name: str, value: npt.NDArray[Any], reason: ValueError) -> None:
        super().__init__(name)
        self.name, self.value, self.reason = name, value, reason


def _observe(
    results: list[npt.NDArray[Any]],
    feeds: Feeds,
    fetched: Sequence[str],
    observers: Mapping[str, BaseObserver],
    watch: Mapping[str, Watcher],
    infinite: set[str],
) -> None:
    """Show the observers the inputs in `feeds` and the `fetched` in `results`, which is left empty."""
    for name in [n for n in feeds if n in observers]:
        _update(observers[name], name, feeds[name], infinite)
        if name in watch:
            watch[name](feeds[name])
    # Popping lets each tensor go as soon as it has been seen.
    for name in reversed(fetched):
        value = results.pop()
        _update(observers[name], name, value, infinite)
        if name in watch:
            watch[name](value)


def _update(observer: BaseObserver, name: str, value: npt.NDArray[Any], infinite: set[str]) -> None:
    """Update `observer` with `value`; of a mask of -inf, and of tensors computed from one, with the finite values."""
    try:
        observer.update(value)
    except NonFiniteError as error:
        if not infinite or observer.spec.axis is not None or blame.is_broken(value):
            raise _RefusedError(name, value, error) from None
        infinite.add(name)
        observer.update(value[np.isfinite(value)])
    except ValueError as error:
        raise _RefusedError(name, value, error) from None


def _error(
    refused: _RefusedError,
    feeds: Feeds,
    batch: str,
    infinite: set[str],
    model: ir.Model,
    custom_ops: Sequence[str],
) -> QatError:
    """Return the error for a tensor that cannot be observed, which names the first cause of it that there is."""
    if not isinstance(refused.reason, NonFiniteError):
        return UsageError("option-invalid", f"tensor {refused.name!r} cannot be observed: {refused.reason}")
    found = non_finite_data.error(feeds, batch, but=infinite)
    if found is not None:
        return found
    constant = next((v for v in model.graph.initializers.values() if _is_broken(v)), None)
    if constant is not None:
        return DataError(
            "data-non-finite",
            f"{batch}: tensor {refused.name!r} has NaN or infinity, and so has constant {constant.name!r} of the model",
            hint="the float model is broken there: export it again from weights that are finite",
        )
    first = non_finite_origin.find_origin(model, feeds, custom_ops=custom_ops)
    source = f", which comes from tensor {first!r}" if first not in (None, refused.name) else ", from finite inputs"
    return DataError(
        "data-non-finite",
        f"{batch}: tensor {refused.name!r} has NaN or infinity{non_finite_data.in_sample(refused.value)}{source}",
        hint="the float model overflows there: leave the tensor in float, or check the preprocessing",
    )


def _is_broken(value: ir.Value) -> bool:
    constant = query.constant_array(value)
    return constant is not None and blame.is_broken(constant)
