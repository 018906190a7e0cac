"""Parts of an output that a network computes apart and then only joins, such as boxes and scores of a detector.

Errors are told as shares of the signal. In one output with large boxes and small scores that share would be one of the
boxes alone, whatever becomes of the scores; so each part is held against its own signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.inputs import Feeds
from onnxqat.graph import build, data_movement, edit, query, walk
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]

TINY = 1e-30
"""Stands for no signal at all, so that a share is a number."""

ERRORS = 2.0
"""Standard errors of the noise of a few samples that are added to it."""

MOST = 256
"""Tensors of an output, or kinds of them at one Concat, beyond which it counts as a whole: no head has so many, and looking
at each pair of them would take minutes."""

_Kind = tuple[object, frozenset[ir.Value]]
"""Common property of tensors, and the tensors."""


class Parts:
    """Assignment of the values of a model's float outputs to the parts that are joined in them.

    Args:
        model: float model that onnxruntime runs; it is not changed.

    Attributes:
        count: of parts by output; 1 where nothing is joined, or only what is alike: the scales of a detector, whose
            scores are one part and whose boxes are another.
    """

    def __init__(self, model: ir.Model) -> None:
        found = {str(v.name): _kinds(v) for v in model.graph.outputs if query.is_float(v)}
        self.count = {name: len(kinds) for name, kinds in found.items()}
        joined = {name: kinds for name, kinds in found.items() if len(kinds) > 1}
        tensors = list(dict.fromkeys(str(v.name) for kinds in joined.values() for _, values in kinds for v in values))
        self._numbers: dict[str, npt.NDArray[np.int64]] = {}
        for name, kinds in joined.items():
            part_of: dict[str, int] = {}
            for number, (_, values) in enumerate(kinds):
                for tensor in _names(values):
                    part_of.setdefault(tensor, number)
            # The tensors are those of all outputs; one that is in no part of this output gets 0.
            self._numbers[name] = np.asarray([part_of.get(tensor, 0) for tensor in tensors])
        if joined:
            labelled = model.clone()
            _label(labelled, tensors, list(joined))
            what = "the model with the parts of its outputs"
            self._session = Session(labelled, optimize=False, what=what, sized=model)

    def labels(self, feeds: Feeds) -> dict[str, npt.NDArray[np.int64]]:
        """The number of the part that each value belongs to, by output, for outputs of several parts."""
        if not self._numbers:
            return {}
        found = self._session.run(feeds, list(self._numbers))
        return {name: numbers[found[name].astype(np.int64)] for name, numbers in self._numbers.items()}


class Shares:
    """Noise at the outputs of a model as a share of their signal, summed over all parts of all outputs.

    Args:
        model: float model that onnxruntime runs; it is not changed.

    Attributes:
        names: of the outputs that are compared; without any there is no noise to tell.
        count: of their parts; zeros everywhere are that much noise.
    """

    def __init__(self, model: ir.Model) -> None:
        tensors = [v for v in model.graph.outputs if query.is_float(v) and isinstance(v.type, ir.TensorType)]
        self.names = [str(v.name) for v in tensors]
        self._parts = Parts(model)
        self.count = sum(self._parts.count[name] for name in self.names)
        self._wanted: list[dict[str, _Wanted]] = []

    def expect(self, feeds: Feeds, wanted: Mapping[str, Array]) -> None:
        """Take `wanted` for the outputs that the next `feeds` should lead to."""
        labels = self._parts.labels(feeds)
        counts = self._parts.count
        self._wanted.append({name: _Wanted(wanted[name], labels.get(name), counts[name]) for name in self.names})

    def of(self, found: Iterable[Mapping[str, Array]]) -> float:
        """The share that is noise in `found`, outputs for the feeds in turn, or for the first of them.

        Where other values were selected than expected (NonMaxSuppression, Compress), all of them are noise.
        """
        return float(self._of_each(found).sum())

    def at_most(self, found: Iterable[Mapping[str, Array]]) -> float:
        """The share that is noise, :data:`ERRORS` standard errors above that in `found`.

        What cuts values does so in few samples, which have most of its noise. How much the samples differ tells how much
        more of that others may have; with one batch of them nothing does.
        """
        shares = self._of_each(found)
        total = float(shares.sum())
        if shares.size < 2 or not np.isfinite(total):
            return total
        return total + ERRORS * float(np.sqrt(shares.size * shares.var(ddof=1)))

    def _of_each(self, found: Iterable[Mapping[str, Array]]) -> npt.NDArray[np.float64]:
        """Noise in each of `found` as a share of the signal in all of them."""
        noise: list[dict[str, npt.NDArray[np.float64]]] = []
        power = {name: np.zeros(self._parts.count[name]) for name in self.names}
        for values, wanted in zip(found, self._wanted, strict=False):
            noise.append({})
            for name, reference in wanted.items():
                noise[-1][name], signal = reference.compared(values[name])
                power[name] += signal
        shares = (sum((n[name] / np.maximum(power[name], TINY)).sum() for name in self.names) for n in noise)
        return np.fromiter(shares, np.float64, len(noise))


class _Wanted:
    """Values that an output should have, with the part that each belongs to.

    Args:
        values: of any float type and shape.
        numbers: int64 of that shape, of their parts; None: all belong to the first.
        count: of parts.
    """

    def __init__(self, values: Array, numbers: npt.NDArray[np.int64] | None, count: int) -> None:
        self._values, self._numbers, self._count = np.asarray(values, np.float64), numbers, count
        self._finite = int(np.count_nonzero(np.isfinite(self._values)))
        # Kept, as hundreds of candidates are held against the same values.
        self._power = self._sums(np.isfinite(self._values))

    def compared(self, found: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Squared sums, float64 (parts,), of the noise in `found` and of the signal, where both are finite."""
        x = np.asarray(found, np.float64)
        x = x if x.shape == self._values.shape else np.zeros_like(self._values)
        finite = np.isfinite(x)
        if self._finite < self._values.size:  # masks of -inf are in both, and are no noise
            finite &= np.isfinite(self._values)
        whole = np.count_nonzero(finite) == self._finite
        return self._sums(finite, x), self._power if whole else self._sums(finite)

    def _sums(self, chosen: npt.NDArray[np.bool_], less: Array | None = None) -> npt.NDArray[np.float64]:
        """Squares of the `chosen` values, or of what they are beyond `less`, added up by part."""
        values = self._values
        numbers = np.zeros(values.shape, np.int64) if self._numbers is None else self._numbers
        if not chosen.all():
            numbers, values, less = numbers[chosen], values[chosen], None if less is None else less[chosen]
        squares = np.square(values if less is None else values - less)
        return np.asarray(np.bincount(numbers.reshape(-1), squares.reshape(-1), self._count), np.float64)


def _kinds(output: ir.Value) -> tuple[_Kind, ...]:
    """Tensors whose elements `output` consists of, alike ones together."""
    found: dict[ir.Value, tuple[_Kind, ...]] = {}
    for value in _sources_first(output):
        parts = _sources(value)
        found[value] = (
            _merged_kinds([found[part] for part in parts]) if parts else ((_likeness(value), frozenset((value,))),)
        )
    kinds = found[output]
    return _merged_kind(kinds) if sum(len(values) for _, values in kinds) > MOST else kinds


def _merged_kind(kinds: Iterable[_Kind]) -> tuple[_Kind, ...]:
    return ((None, frozenset().union(*(values for _, values in kinds))),)


def _merged_kinds(parts: list[tuple[_Kind, ...]]) -> tuple[_Kind, ...]:
    """Parts that are alike become one, element by element; others stand beside each other, but for common tensors."""
    likeness = [tuple(like for like, _ in kinds) for kinds in parts]
    if len(set(likeness)) == 1:
        return tuple(
            (like, frozenset().union(*(kinds[index][1] for kinds in parts))) for index, like in enumerate(likeness[0])
        )
    if sum(map(len, parts)) > MOST:
        return _merged_kind(kind for kinds in parts for kind in kinds)
    apart: list[_Kind] = []
    for like, values in (kind for kinds in parts for kind in kinds):
        same = [kind for kind in apart if kind[1] & values]
        apart = [kind for kind in apart if kind not in same]
        apart.append((like, values.union(*(others for _, others in same))))
    return tuple(apart)


def _likeness(value: ir.Value) -> object:
    """Key that the same branch of a head has at all scales: operator and number of channels."""
    node, shape = value.producer(), value.shape
    channels = shape[1] if shape is not None and len(shape) > 1 and isinstance(shape[1], int) else None
    return None if node is None else (node.domain, node.op_type), channels


def _sources(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else data_movement.sources(node)


def _sources_first(output: ir.Value) -> Iterator[ir.Value]:
    """`output` and what it is moved from, each value once and behind its sources."""
    waiting, seen = [(output, False)], set[ir.Value]()
    while waiting:
        value, done = waiting.pop()
        if done:
            yield value
        elif value not in seen:
            seen.add(value)
            waiting += [(value, True), *((part, False) for part in _sources(value))]


def _names(values: frozenset[ir.Value]) -> set[str]:
    return {str(v.name) for v in values}


def _label(model: ir.Model, tensors: list[str], joined: list[str]) -> None:
    """Let the outputs `joined` of `model` hold the numbers of the `tensors` that their elements come from."""
    names, graph = build.Names(model), model.graph
    values = {str(v.name): v for v in walk.values(graph)}
    inside = (v for o in graph.outputs if o.name in joined for v in _sources_first(o))
    read = {v.producer(): set(parts) for v in inside if (parts := _sources(v))}
    for number, name in enumerate(tensors):
        value = values[name]
        uses = [(n, i) for n, i in value.uses() if value in read.get(n, ())]
        edit.rewire(uses, _filled(graph, names, value, number))
    graph.sort()


def _filled(graph: ir.Graph, names: build.Names, value: ir.Value, number: int) -> ir.Value:
    """`number` in the shape of `value`."""
    base = f"{value.name}_part"
    shape = build.node(
        "Shape", [value], [names.fresh(f"{base}_shape")], dtype=ir.DataType.INT64, name=names.fresh(base)
    )
    filler = {"value": build.tensor(np.asarray([number]), value.dtype)}
    made = build.node(
        "ConstantOfShape", shape.outputs, [names.fresh(base)], filler, dtype=value.dtype, name=names.fresh(base)
    )
    graph.extend([shape, made])
    return made.outputs[0]
