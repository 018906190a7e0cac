"""Runs of a model from stage to stage, each from tensors of the stages before and not from the inputs of the model.

Rounding layers one behind the other needs the inputs of each layer in turn. Run from the inputs of the model, each would
cost half of a run of the whole on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.inputs import Feeds
from onnxqat.graph import edit, walk
from onnxqat.runtime import vendor_operators
from onnxqat.runtime.session import Session
from onnxqat.subgraphs.subgraph import discard, reads

Array = npt.NDArray[Any]

MEMORY = 2**30
"""Bytes of tensors that are kept for later stages; those beyond it are computed again from the ones in front."""


class StageRuns:
    """Tensors of a model whose weights are settled stage by stage, for all batches of the data.

    Args:
        batches: number of batches.
        optimize: as of :class:`onnxqat.runtime.session.Session`.
        consumes: models are made for one stage and may be taken apart, which spares a copy.
    """

    def __init__(self, batches: int, *, optimize: bool, consumes: bool = False) -> None:
        self._optimize, self._consumes, self._left = optimize, consumes, MEMORY
        self._kept: list[dict[str, Array]] = [{} for _ in range(batches)]
        self._part: _Part | None = None

    def begin(self, model: ir.Model, names: Sequence[str], later: Iterable[str]) -> None:
        """Make ready for the tensors `names`, and forget what neither they nor those of `later` stages need.

        Args:
            model: names of tensors are those of the stages before, and weights in front of kept tensors too.
            names: inputs of the model among them; those that it has not, or that onnxruntime cannot run, are left out.
            later: tensors of all stages that follow.
        """
        kept = self._kept[0] if self._kept else {}
        needed, _ = _reached(model, [*names, *later], kept)
        for tensors in self._kept:
            for name in [name for name in tensors if name not in needed]:
                self._left += tensors.pop(name).nbytes
        part = vendor_operators.runnable_part(model)
        self._part = _Part(part if self._consumes else part.clone(), names, kept, optimize=self._optimize)

    def run(self, index: int, feeds: Feeds) -> dict[str, Array]:
        """The tensors of the stage for the batch of this number; those of all batches that there is room for stay."""
        kept = self._kept[index]
        assert self._part is not None  # after begin
        found = self._part.run({**feeds, **kept})
        for name, value in found.items():
            # The first batch decides for all, so that a stage starts from the same tensors for each.
            fits = name in self._kept[0] if index else value.nbytes * len(self._kept) <= self._left
            if fits and name not in kept and name not in feeds:
                kept[name] = value
                self._left -= value.nbytes
        return found


class _Part:
    """Computation of some tensors of a model from its inputs and from `known` tensors, given by what one batch has of them.

    The model is taken apart for it.
    """

    def __init__(self, part: ir.Model, names: Sequence[str], known: Mapping[str, Array], *, optimize: bool) -> None:
        inputs = {str(v.name) for v in part.graph.inputs}
        values = {str(v.name): v for v in walk.outputs(part.graph)}
        self._given = [name for name in names if name in inputs or (name in known and name in values)]
        self._names = [n for n in dict.fromkeys(names) if n in values and n not in known]
        self._session: Session | None = None
        if self._names:
            starts, nodes = _reached(part, self._names, known)
            part.graph.outputs[:] = [values[name] for name in self._names]
            opened = [_opened(value, known.get(name)) for name, value in starts.items()]
            discard(part.graph, [node for node in part.graph if id(node) not in nodes])
            part.graph.inputs[:] = opened
            edit.remove_unused(part)
            self._session = Session(part, optimize=optimize)

    def run(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """The tensors, from all that is known of a batch."""
        found: dict[str, Array] = {}
        if self._session is not None:
            feeds = {info.name: known[info.name] for info in self._session.inputs}
            found = self._session.run(feeds, self._names)
        return {**{name: known[name] for name in self._given}, **found}


def _reached(model: ir.Model, names: Iterable[str], known: Iterable[str]) -> tuple[dict[str, ir.Value], set[int]]:
    """Find all that the tensors `names` depend on, up to the nearest `known` tensors and inputs of `model`.

    Returns:
        Those tensors and inputs by name, `names` themselves where they are such; ids of the nodes in between.
    """
    known, graph = set(known), model.graph
    values = {str(v.name): v for v in (*graph.inputs, *walk.outputs(graph))}
    pending = [values[name] for name in names if name in values]
    starts: dict[str, ir.Value] = {}
    nodes: set[int] = set()
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        name, producer = str(value.name), value.producer()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if name in known or (value.is_graph_input() and name not in graph.initializers):
            starts[name] = value
        elif producer is not None:
            nodes.add(id(producer))
            pending.extend(reads(producer, graph))
    return starts, nodes


def _opened(value: ir.Value, known: Array | None) -> ir.Value:
    """Make `value` an input of its graph, in the place of what computes it; `known` is what one batch has of it."""
    if known is None:
        return value
    # The file may know no shape, or a stale one.
    start = ir.Value(type=ir.TensorType(ir.DataType.from_numpy(known.dtype)), shape=ir.Shape([None] * known.ndim))
    value.replace_all_uses_with(start, replace_graph_outputs=True)
    start.name, value.name = value.name, f"{value.name}_before"
    return start
