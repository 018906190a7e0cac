"""A part of a model as a model of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import onnx_ir as ir

from onnxqat.errors import ModelError, UsageError
from onnxqat.graph import build, edit, files_read, io, shapes, walk
from onnxqat.graph.io import ModelT
from onnxqat.subgraphs import boundary
from onnxqat.subgraphs.subgraph import Subgraph, discard, region

CUT_FROM = "onnxqat.cut"
"""Key of a part's metadata: the tensors of the whole that it starts and ends with."""


@overload
def cut(
    model: ModelT,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    auto: bool = False,
) -> ModelT: ...


@overload
def cut(
    model: str | os.PathLike[str],
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    auto: bool = False,
) -> Path: ...


@files_read.guard
def cut(
    model: io.ModelSource,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    auto: bool = False,
) -> Any:
    """Cut out what computes the tensors `outputs` from the tensors `inputs`.

    The part keeps the names of nodes, tensors and weights, symbolic sizes, types, metadata, model-local functions and
    bodies of control flow. What leads to `inputs` and what follows `outputs` is left out;
    :func:`onnxqat.subgraphs.stitch.stitch` puts the part, quantized and tuned or not, back in its place.

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        inputs: tensors of the main graph that the part starts with; the graph's inputs by default.
        outputs: tensors of the main graph that it ends with; the graph's outputs by default.
        output: file to write; for a path, ``<name>.part.onnx`` beside it by default.
        auto: find the ends that are not given: behind the decoding of the input and in front of post-processing
            (:mod:`onnxqat.subgraphs.boundary`).

    Returns:
        The part, of the kind that was given; for a path, the path of the file written.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid``: the tensors enclose no part, or `auto` finds nothing to cut.
        ModelError: everything that :func:`onnxqat.graph.io.load` raises; ``model-invalid``: the type of a tensor to cut
            at is unknown.
    """
    if not auto and inputs is None and outputs is None:
        raise UsageError(
            "option-invalid", "there is nothing to cut", hint="name inputs or outputs, or let it find them"
        )
    part = io.load(model)
    shapes.mend(part)
    shapes.infer(part)
    if auto:
        found = boundary.find(part)
        inputs, outputs = inputs or found.inputs, outputs or found.outputs
    extract(part, inputs or _own_inputs(part, outputs or ()), outputs or [str(v.name) for v in part.graph.outputs])
    return io.give_back(model, part, output, ".part.onnx")


def _own_inputs(model: ir.Model, outputs: Sequence[str]) -> list[str]:
    """The graph's inputs that the outputs need."""
    graph = model.graph
    named = [str(v.name) for v in graph.inputs if v.name not in graph.initializers]
    needed = set(boundary.ancestors(model, outputs))
    return [name for name in named if name in needed]


def extract(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Reduce `model` itself to the part between the tensors; errors as of :func:`cut`."""
    found = region(model, inputs, outputs)
    for value in (*found.inputs, *found.outputs):
        if value.type is None:
            raise ModelError("model-invalid", f"the type of tensor {value.name!r} is unknown, so it cannot end a part")
    model.metadata_props[CUT_FROM] = json.dumps({"inputs": list(inputs), "outputs": list(outputs)})
    _open(model, found)
    kept = {id(node) for node in found.nodes}
    graph = model.graph
    graph.outputs[:] = list(found.outputs)
    discard(graph, [node for node in graph if id(node) not in kept])
    edit.remove_unused(model)
    _drop_unused_functions(model)


def _open(model: ir.Model, found: Subgraph) -> None:
    """The tensors that the part starts with become its inputs; optional inputs that it reads stay behind them."""
    graph, names = model.graph, build.Names(model)
    made = []
    for value in found.inputs:
        if value.is_graph_input():
            made.append(value)
            continue
        start = ir.Value(type=value.type, shape=value.shape, doc_string=value.doc_string)
        start.metadata_props.update(value.metadata_props)
        value.replace_all_uses_with(start, replace_graph_outputs=True)
        name, value.name = value.name, names.fresh(f"{value.name}_before")
        start.name = name
        made.append(start)
    kept = {id(node) for node in found.nodes}
    optional = [v for v in graph.inputs if v.name in graph.initializers and any(_within(n, kept) for n, _ in v.uses())]
    graph.inputs[:] = [*made, *(v for v in optional if not any(v is m for m in made))]


def _within(node: ir.Node, kept: set[int]) -> bool:
    outer: ir.Node | None = node
    while outer is not None:
        if id(outer) in kept:
            return True
        outer = walk.holder(outer.graph if isinstance(outer.graph, ir.Graph) else None)
    return False


def _drop_unused_functions(model: ir.Model) -> None:
    used: set[ir.OperatorIdentifier] = set()
    pending = [node.op_identifier() for node in model.graph.all_nodes()]
    while pending:
        key = pending.pop()
        if key in model.functions and key not in used:
            used.add(key)
            pending.extend(node.op_identifier() for node in model.functions[key].all_nodes())
    for key in [key for key in model.functions if key not in used]:
        del model.functions[key]
