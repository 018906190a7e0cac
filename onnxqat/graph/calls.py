"""Calls of functions: as many values as the function has, and not so many calls of calls that no memory holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import onnx

from onnxqat.errors import ModelError

LARGEST = 100_000  # the nodes of the largest models that are exported
REPEATS = 20  # more nodes than that come of a file that says as much: this many times those that it holds

Key: TypeAlias = "tuple[str, str, str]"


def check(proto: onnx.ModelProto, name: str) -> None:
    """Refuse calls with more values than the function has, and a model that functions make too large.

    Once calls are bodies, it has at most ``LARGEST`` nodes and ``REPEATS`` times what it holds.

    Args:
        proto: the model; functions that call themselves are left to others.
        name: what the file is called in the error.

    Raises:
        ModelError: ``model-invalid``; also where a call has more inputs or outputs than its function.
    """
    if not proto.functions:
        return
    _check_values(proto, name)
    functions: dict[Key, onnx.FunctionProto] = {(f.domain, f.name, f.overload): f for f in proto.functions}
    bodies = {key: list(_keys(function.node)) for key, function in functions.items()}
    sizes: dict[Key, int] = {}
    pending = list(bodies)
    opened: set[Key] = set()
    while pending:
        key = pending[-1]
        missing = [k for k in bodies[key] if k in bodies and k not in sizes and k not in opened]
        if missing and key not in opened:
            opened.add(key)
            pending.extend(missing)
            continue
        pending.pop()
        sizes[key] = sum(sizes.get(k, 1) for k in bodies[key])
    total = sum(sizes.get(key, 1) for key in _keys(proto.graph.node))
    held = sum(map(len, bodies.values())) + sum(1 for _ in _keys(proto.graph.node))
    if total > max(LARGEST, REPEATS * held):
        raise ModelError(
            "model-invalid",
            f"{name}: its functions call each other so often that it has {total:.3g} nodes without them",
            hint="call fewer functions from functions",
        )


def _check_values(proto: onnx.ModelProto, name: str) -> None:
    # Functions of ONNX's own domain are taken for operators, see `overridden`.
    own = [f for f in proto.functions if f.domain]
    known = {(f.domain, f.name, f.overload): (len(f.input), len(f.output)) for f in own}
    for nodes in (proto.graph.node, *(f.node for f in proto.functions)):
        for node in _nodes(nodes):
            most = known.get((node.domain, node.op_type, node.overload))
            if most is not None and (len(node.input) > most[0] or len(node.output) > most[1]):
                raise ModelError(
                    "model-invalid",
                    f"{name}: node {node.name!r} calls function {node.op_type!r} with {len(node.input)} inputs and "
                    f"{len(node.output)} outputs; it has {most[0]} and {most[1]}",
                    hint="export it again; onnxruntime refuses the file too",
                )


def _keys(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    return map(_key, _nodes(nodes))


def _key(node: onnx.NodeProto) -> Key:
    return node.domain, node.op_type, node.overload


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending.extend(graph.node for graph in (*attribute.graphs, attribute.g) if graph.node)
