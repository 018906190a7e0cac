"""A part put back into the model that it was cut from."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import onnx_ir as ir

from onnxqat.errors import UsageError
from onnxqat.graph import build, edit, files_read, io, provenance, qdq, shapes, verify, walk
from onnxqat.graph.io import ModelT
from onnxqat.graph.provenance import Provenance
from onnxqat.passes import _base
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.subgraphs.cut import CUT_FROM
from onnxqat.subgraphs.subgraph import Subgraph, discard, reads, region


@overload
def stitch(part: io.ModelSource, model: ModelT, output: str | os.PathLike[str] | None = None) -> ModelT: ...


@overload
def stitch(
    part: io.ModelSource, model: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path: ...


@files_read.guard
def stitch(part: io.ModelSource, model: io.ModelSource, output: str | os.PathLike[str] | None = None) -> Any:
    """Replace what lies between the inputs and outputs of `part` in `model` by `part`.

    1. The part's inputs and outputs are tensors of the whole's main graph, by name, with the same type and sizes that
       agree; a part that :func:`onnxqat.subgraphs.cut.cut` made also says so in its metadata.
    2. What the whole still needs from inside (a tensor that the remainder reads besides the part's outputs) is taken from
       the part where it has a tensor of that name.
    3. Names of the whole stay; a name that the part has given to something new, and the whole to something else, gets a
       number in the part. The lower of the two opsets is raised.
    4. Metadata of the part (backend, versions) goes into the whole, and model-local functions of both stay. The float
       model that is recorded is the whole's.

    Args:
        part: the part, quantized, tuned or as it was cut.
        model: the whole; it is not changed.
        output: file to write; for a path, ``<name>.stitched.onnx`` beside it by default.

    Returns:
        The whole with the part, of the kind that `model` is; for a path, the path of the file written.

    Raises:
        UsageError: ``option-invalid``: part and whole do not match; the message names the tensor.
        ModelError: everything that :func:`onnxqat.graph.io.load` raises.
    """
    inner, whole = io.load(part), io.load(model)
    origin = _provenance_of_whole(inner, model, whole)
    shapes.mend(whole)
    shapes.infer(whole)
    place = _find_subgraph(inner, whole)
    _level_opsets(inner, whole)
    _join_functions(inner, whole)
    _replace(inner, whole, place)
    whole.metadata_props.update({k: v for k, v in inner.metadata_props.items() if k != CUT_FROM})
    provenance.write(whole, origin)
    verify.verify(whole)
    return io.give_back(model, whole, output, ".stitched.onnx")


def _provenance_of_whole(part: ir.Model, source: io.ModelSource, whole: ir.Model) -> Provenance:
    """The whole in float, and the calibration data where they are of its own inputs."""
    if not qdq.is_quantized(part):
        return provenance.of(whole)
    inner, outer = ([str(v.name) for v in m.graph.inputs] for m in (part, whole))
    recorded = provenance.of(part) if inner == outer else Provenance()
    of_whole = provenance.of(whole)
    name, sha256 = provenance.float_model(source, whole)
    if qdq.is_quantized(whole):
        name, sha256 = of_whole.float_model, of_whole.float_sha256
    return dataclasses.replace(recorded, float_model=name, float_sha256=sha256)


def _find_subgraph(part: ir.Model, whole: ir.Model) -> Subgraph:
    starts = [v for v in part.graph.inputs if v.name not in part.graph.initializers]
    inputs, outputs = [str(v.name) for v in starts], [str(v.name) for v in part.graph.outputs]
    noted = part.metadata_props.get(CUT_FROM)
    if noted is not None and _names(noted) != (sorted(inputs), sorted(outputs)):
        raise UsageError(
            "option-invalid",
            "the part has other inputs or outputs than those that it was cut with",
            hint=f"it was cut with {noted[:300]}",
        )
    known = {str(v.name): v for v in walk.values(whole.graph)}
    for value in (*starts, *part.graph.outputs):
        own = known.get(str(value.name))
        if own is None:
            raise _mismatch(f"the whole has no tensor {value.name!r}")
        if None not in (own.dtype, value.dtype) and own.dtype != value.dtype:
            raise _mismatch(f"tensor {value.name!r} is {value.dtype} in the part, {own.dtype} in the whole")
        if not _sizes_agree(value.shape, own.shape):
            raise _mismatch(f"tensor {value.name!r} is {value.shape} in the part, {own.shape} in the whole")
    return region(whole, inputs, outputs)


def _names(text: str) -> tuple[list[str], list[str]] | None:
    try:
        noted = json.loads(text)
        return sorted(noted["inputs"]), sorted(noted["outputs"])
    except (ValueError, KeyError, TypeError):
        return None


def _mismatch(text: str) -> UsageError:
    return UsageError(
        "option-invalid", f"the part does not fit: {text}", hint="stitch it into the model it was cut from"
    )


def _sizes_agree(part: ir.Shape | None, whole: ir.Shape | None) -> bool:
    if part is None or whole is None:
        return True
    both = zip(part, whole, strict=False)
    return len(part) == len(whole) and all(a == b for a, b in both if isinstance(a, int) and isinstance(b, int))


def _level_opsets(part: ir.Model, whole: ir.Model) -> None:
    newest = max(part.opset_imports.get("", 1), whole.opset_imports.get("", 1))
    for model in (part, whole):
        if model.opset_imports.get("", 1) < newest:
            _base.rewrite(model, [RaiseOpset(newest)])
    for domain, version in part.opset_imports.items():
        if whole.opset_imports.setdefault(domain, version) != version:
            raise _mismatch(f"domain {domain!r} has version {version} in the part, another one in the whole")
    whole.ir_version = max(part.ir_version, whole.ir_version)


def _join_functions(part: ir.Model, whole: ir.Model) -> None:
    for key, function in part.functions.items():
        own = whole.functions.get(key)
        if own is None:
            whole.functions[key] = function
        elif ir.to_proto(own).SerializeToString(deterministic=True) != ir.to_proto(function).SerializeToString(
            deterministic=True
        ):
            raise _mismatch(f"function {'::'.join(filter(None, key))} is another one in the whole")


def _replace(part: ir.Model, whole: ir.Model, place: Subgraph) -> None:
    """Put the nodes and constants of `part` in the place of `place`'s; names that collide are renamed in the part."""
    graph = whole.graph
    inside = {id(node) for node in place.nodes}
    ends = {id(v) for v in place.outputs}
    needed = [
        value
        for node in place.nodes
        for value in node.outputs
        if id(value) not in ends and _is_read_outside(value, graph, inside)
    ]
    made = {str(v.name): v for v in walk.outputs(part.graph)}
    missing = [v for v in needed if str(v.name) not in made]
    if missing:
        raise _mismatch(f"the rest of the model reads {missing[0].name!r}, which the part does not have")
    gone = _rename_apart(part, whole, place, inside)
    starts = {str(v.name): v for v in place.inputs}
    for start in [v for v in part.graph.inputs if v.name not in part.graph.initializers]:
        start.replace_all_uses_with(starts[str(start.name)])
    nodes, constants = _take_apart(part.graph)
    for value in (*place.outputs, *needed):
        new = made[str(value.name)]
        new.type, new.shape = value.type or new.type, value.shape if value.shape is not None else new.shape
        value.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.insert_before(place.nodes[0], nodes)
    discard(graph, place.nodes)
    for name in gone:
        graph.initializers.pop(name)
    for constant in constants:
        graph.register_initializer(constant)
    graph.sort()
    edit.remove_unused(whole)


def _take_apart(graph: ir.Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """Nodes and constants of a graph, which holds them no longer."""
    nodes, constants = list(graph), list(graph.initializers.values())
    graph.outputs.clear()
    graph.inputs.clear()
    graph.remove(nodes)
    graph.initializers.clear()
    return nodes, constants


def _is_read_outside(value: ir.Value, graph: ir.Graph, inside: set[int]) -> bool:
    if value.is_graph_output():
        return True
    outside = (node for node in graph if id(node) not in inside)
    return any(v is value for node in outside for v in reads(node, graph))


def _rename_apart(part: ir.Model, whole: ir.Model, place: Subgraph, inside: set[int]) -> list[str]:
    """Number the part's names that the remainder has too; returns the constants that go with the float part."""
    bodies = [body for node in place.nodes for body in walk.subgraphs(node)]
    going = inside | {id(node) for body in bodies for node in body.all_nodes()}
    constants = _constants_of(whole.graph, going)
    taken = _names_that_stay(whole, place, bodies, going, constants)
    linked = {str(v.name) for v in (*place.inputs, *place.outputs)}  # these the two have in common
    fresh = build.Names(whole)
    for scope in walk.scopes(part):
        if isinstance(scope, ir.Function):
            continue
        for value in list(walk.values(scope)):
            if value.name in taken and not (scope is part.graph and value.name in linked):
                _rename(scope, value, fresh.fresh(str(value.name)))
        for node in scope:
            if node.name in taken:
                node.name = fresh.fresh(str(node.name))
    return constants


def _constants_of(graph: ir.Graph, going: set[int]) -> list[str]:
    """Constants of `graph` that only the nodes `going`, by identity, read."""
    found = []
    for name, value in graph.initializers.items():
        users = {id(user) for user, _ in value.uses()}
        if users and users <= going and not value.is_graph_input() and not value.is_graph_output():
            found.append(name)
    return found


def _names_that_stay(
    whole: ir.Model, place: Subgraph, bodies: Sequence[ir.Graph], going: set[int], constants: Sequence[str]
) -> set[str]:
    """Names of the values and nodes that are left of `whole` when the nodes `going` and `constants` are gone."""
    leaving = set(map(id, walk.outputs(place.nodes)))
    leaving |= {id(v) for body in bodies for v in _values_of(body)}
    leaving |= {id(whole.graph.initializers[name]) for name in constants}
    names = {str(v.name) for scope in walk.scopes(whole) for v in walk.values(scope) if id(v) not in leaving}
    return names | {str(n.name) for n in walk.nodes(whole) if n.name and id(n) not in going}


def _rename(scope: walk.Scope, value: ir.Value, name: str) -> None:
    if isinstance(scope, ir.Graph) and value.name in scope.initializers:
        scope.initializers.pop(str(value.name))
        value.name = name
        if value.const_value is not None:
            value.const_value.name = name
        scope.register_initializer(value)
    else:
        value.name = name


def _values_of(body: ir.Graph) -> list[ir.Value]:
    nested = [v for node in body for inner in walk.subgraphs(node) for v in _values_of(inner)]
    return [*walk.values(body), *nested]
