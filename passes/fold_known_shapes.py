"""Sizes that a tensor states become constants, where exporters ask for them when the model runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, inline_graphs, replace_by_constant

MANY = 64  # axes; no tensor has more, and what picks from a shape gives no more


class FoldKnownShapes(Pass):
    """A Shape, and what a Gather or Slice picks from one, is a constant where those dimensions are known.

    1. ``Shape(x)``, with ``start`` and ``end``, where each of its dimensions is a number.
    2. ``Gather(Shape(x), indices)`` and ``Slice(Shape(x), ...)`` of constant places whose dimensions are numbers,
       whatever the others are: the size of an attention head beside an unknown batch.
    3. Left alone: unknown dimensions, places that are computed, function bodies, which know no shapes, results that
       leave the graph.

    What is computed from them, such as the factor of attention's scores, is a constant to ``lift-constants``. Types and
    shapes have been inferred.

    Tolerance: none. ::

        s = Shape(x)   d = Gather(s, last)   y = Reshape(z, d)
        y = Reshape(z, d) <int64[1] d = {64}>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold; see the class."""
        log = Log()
        for graph in inline_graphs(model):
            for node in list(graph):
                sizes = _sizes(node)
                if sizes is None or node.outputs[0].is_graph_output():
                    continue
                replace_by_constant(node.outputs[0], build.tensor(sizes, name=str(node.outputs[0].name)), graph)
                log.did("sizes that a tensor states became constants", node)
                _remove(graph, node)
        return log.result()


def _sizes(node: ir.Node) -> np.ndarray | None:
    """The constant that `node` gives, None where it is no size or one that is not known."""
    if node.domain or not query.reads(node.outputs[0]):
        return None
    if node.op_type == "Shape":
        found = _dimensions(node)
    elif node.op_type in ("Gather", "Slice"):
        found = _picked(node)
    else:
        return None
    return None if found is None or (found < 0).any() else found


def _dimensions(shape: ir.Node) -> np.ndarray | None:
    """Dimensions that a Shape gives, -1 for each dimension that is not known; None for an unknown rank."""
    source = shape.inputs[0]
    if source is None or source.shape is None:
        return None
    whole = np.array([size if isinstance(size, int) else -1 for size in source.shape], np.int64)
    return whole[int(query.attribute(shape, "start", 0)) : query.attribute(shape, "end", None)]


def _picked(node: ir.Node) -> np.ndarray | None:
    """Dimensions that a Gather or Slice picks from a Shape; None where it reads another tensor, or its places are computed."""
    source = node.inputs[0]
    shape = query.producer(source)
    if shape is None or shape.op_type != "Shape" or shape.domain:
        return None
    whole = _dimensions(shape)
    places = [query.constant_array(v) for v in node.inputs[1:] if v is not None]
    if whole is None or not places or any(p is None or p.size > MANY for p in places):
        return None
    if node.op_type == "Gather":
        indices = places[0]
        inside = indices is not None and bool(((indices >= -len(whole)) & (indices < len(whole))).all())
        return whole[indices] if inside else None
    if None in node.inputs:
        return None
    start, end, *rest = (int(p.item()) for p in places if p is not None)  # of one axis there is one of each
    step = rest[1] if len(rest) > 1 else 1
    return whole[start:end:step] if step > 0 else None


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    """Take `node` out, and the Shape in front of it where nothing else reads that."""
    inputs = list(node.inputs)
    graph.remove(node, safe=True)
    for value in inputs:
        producer = query.producer(value)
        if value is not None and producer is not None and producer.op_type == "Shape" and producer.graph is graph:
            if not query.is_used(value):
                graph.remove(producer, safe=True)
        else:
            drop_unused(value)
