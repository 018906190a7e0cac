"""How many nodes a model has once its functions are inlined: a few calls of calls make more than any memory holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import onnx

from onnxqat.errors import ModelError

LARGEST = 100_000  # the nodes of the largest models that are exported
REPEATS = 20  # more nodes than that come of a file that says as much: this many times those that it holds

Key: TypeAlias = "tuple[str, str, str]"


def check(proto: onnx.ModelProto, name: str) -> None:
    """Refuse a model of more than ``LARGEST`` nodes, and ``REPEATS`` times what it holds, once calls are bodies.

    Args:
        proto: the model; functions that call themselves are left to others.
        name: what the file is called in the error.

    Raises:
        ModelError: ``model-invalid``.
    """
    if not proto.functions:
        return
    bodies = {(f.domain, f.name, f.overload): list(_keys(f.node)) for f in proto.functions}
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


def _keys(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node.domain, node.op_type, node.overload
            for attribute in node.attribute:
                pending.extend(graph.node for graph in (*attribute.graphs, attribute.g) if graph.node)
