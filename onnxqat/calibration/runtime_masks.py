"""Masks that only the data show: an input of 0 and -inf, the lowest float, or -10000 in front of a Softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis import dataflow, masks
from onnxqat.calibration.mixed_range import span
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.errors import DataError
from onnxqat.graph import data_movement, query
from onnxqat.graph.blame import is_broken
from onnxqat.ops import operators as ops
from onnxqat.types import Remark

STEPS = 16.0  # numbers that a sum with a mask leaves fewer are lost, where each step is a factor of e to a Softmax
SUMS = frozenset({"Add", "Sub", "Where"})
RANKED = frozenset({"Softmax", "LogSoftmax"})
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
SCALINGS = frozenset({"Add", "Sub", "Mul", "Div"})  # by constants, as preprocessing in the graph has them


def hides(values: npt.NDArray[Any]) -> bool:
    """Check whether `values` hold -inf and at most one distinct finite number, like a mask that is a model input."""
    finite = values[np.isfinite(values)]
    return bool(finite.size < values.size and not is_broken(values) and (finite == finite[:1]).all())


def read_by_layers(graph: ir.Graph) -> frozenset[str]:
    """Names of the inputs that a layer multiplies, as they are, moved or scaled: those are data, a mask is added."""
    return frozenset(str(v.name) for v in graph.inputs if dataflow.leads_to(v, LAYERS, _keeps_data))


def _keeps_data(node: ir.Node) -> bool:
    scales = node.op_type in SCALINGS and any(query.constant_tensor(v) is not None for v in node.inputs)
    return ops.is_passthrough(node) or (
        not node.domain and (scales or node.op_type in {"Cast", "Pad", "BatchNormalization"})
    )


def check_data(feeds: Mapping[str, npt.NDArray[Any]], names: frozenset[str], batch: str) -> None:
    """Refuse a batch that reaches as far as only masks do in one of the inputs `names`, which are none.

    Args:
        feeds: the batch.
        names: inputs that hold data, see :func:`read_by_layers`.
        batch: what messages call it.

    Raises:
        DataError: ``data-non-finite``: a grid over such values has one code for all others.
    """
    for name in sorted(names & feeds.keys()):
        rows = feeds[name]
        if rows.dtype.kind != "f" or not rows.ndim or not rows.size:
            continue
        reached = np.abs(rows.reshape(len(rows), -1)).max(axis=1)
        far = np.isfinite(reached) & (reached >= masks.BEYOND_DATA)
        if far.any():
            sample = int(np.argmax(far))
            text = f"{batch}: input {name!r} reaches {reached[sample]:.3g} in sample {sample}, beyond what data hold"
            raise DataError("data-non-finite", text, hint="look for a damaged sample, and leave it out or mend it")


def find(
    model: ir.Model, observers: Mapping[str, BaseObserver], infinite: frozenset[str]
) -> tuple[frozenset[str], list[Remark]]:
    """Names of the tensors that are masks, and a remark where there are any.

    Args:
        model: float model.
        observers: of the tensors that were to be quantized.
        infinite: names of those that held -inf.
    """
    found = {name for name, seen in observers.items() if _covers(seen, masks.BEYOND_DATA)} | infinite
    for graph in dataflow.reached_graphs(model.graph):
        for node in graph:
            if node.op_type in RANKED and not node.domain and node.inputs[0] is not None:
                found |= set(_drowning(node.inputs[0], observers))
    if not found:
        return frozenset(), []
    names = tuple(sorted(found))
    text = f"masks stay float, and so does what reads numbers through them: {', '.join(names)}"
    return frozenset(found), [Remark(text, names, "calibrate")]


def _covers(observer: BaseObserver, magnitude: float) -> bool:
    """Check whether the range of `observer` reaches to `magnitude`; its search is left out where no value does."""
    seen = max(np.abs(observer.low).max(initial=0.0), np.abs(observer.high).max(initial=0.0))
    return bool(seen >= magnitude) and span(observer) >= magnitude


def _drowning(ranked: ir.Value, observers: Mapping[str, BaseObserver]) -> Iterator[str]:
    """Tensors in a sum on the way to `ranked` that are so large that another input of that sum has next to no steps."""
    pending, seen = [ranked], set[int]()
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or node.domain or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type in SUMS:
            sources = [v for v in node.inputs[-2:] if v is not None]
            spans = [_span(v, observers) or 0.0 for v in sources]
            if len(spans) == 2 and all(spans):
                index = int(np.argmax(spans))
                step = spans[index] / 2 ** _bits(sources, observers)
                if step > 1.0 and step * STEPS > spans[1 - index]:
                    yield str(sources[index].name)
            pending.extend(sources)
        elif ops.is_passthrough(node):
            pending.extend(data_movement.sources(node))


def _span(value: ir.Value, observers: Mapping[str, BaseObserver]) -> float | None:
    constant = query.constant_array(value)
    if constant is not None:
        return float(np.abs(constant).max(initial=0.0)) if constant.dtype.kind == "f" else None
    return span(observers[str(value.name)]) if value.name in observers else None


def _bits(sources: list[ir.Value], observers: Mapping[str, BaseObserver]) -> int:
    return min((observers[str(v.name)].spec.qtype.bits for v in sources if v.name in observers), default=8)
