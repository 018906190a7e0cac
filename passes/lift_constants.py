"""Constants become initializers, so that every weight is found in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, sizes
from onnxqat.isolation import limits
from onnxqat.ops import operators as operators
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, inline_graphs, replace_by_constant
from onnxqat.passes._evaluate import is_foldable, result_elements, results

MANY_INTEGERS = 4096
MANY_BYTES = 64 * 2**20
SOME_BYTES = 4 * 2**20  # of what layers compute from constants: queries, positions; a mask of long sequences is more
TOO_MANY_BYTES = 2**31


class LiftConstants(Pass):
    """Constant nodes become initializers, and expressions of constants are computed.

    1. A Constant node of the main graph or of a control-flow body becomes an initializer under the tensor's name.
    2. A tensor that is computed from constants alone by the operators of ``_evaluate.FOLDABLE`` (shape
       operators, Cast, Concat, Split, Gather, ConstantOfShape, Expand, Tile, elementary arithmetic) and read by any
       other node becomes an initializer under its name; the nodes that made it go where nothing else reads them. So
       weights behind a Cast, a Transpose or a ConstantOfShape are weights to every later step, the parts of a Split
       are biases, and amounts of a Pad that an exporter spelled out as arithmetic are amounts. Where a weight or bias
       input reads it, those of ``_evaluate.WEIGHTS`` count too, with which weights are normalized, standardized,
       masked, added up, and banks of filters are built.
    3. What any other node reads may also be computed by these and those of ``_evaluate.LAYERS``, up to 4 MB: learned
       queries behind the layers that read nothing else, tables of positions, masks.
    4. Left alone: integer and boolean results of more than 4096 elements; function bodies, which hold constants
       in Constant nodes only; strings and sparse constants; tensors that are graph outputs; results over 64 MB that
       no weight or bias input reads, any over 2 GB, and any over 128 MB and 16 times the weights, in what they are
       computed from too; everything behind Q/DQ, which is never folded.

    Tolerance: none for shape operators, float rounding for arithmetic. ::

        c = Constant <value = float16[8] {...}> ()   w = Cast <to = 1> (c)   y = Mul(x, w)
        y = Mul(x, w) <float[8] w = {...}>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Lift and fold; see the class."""
        log = Log()
        for graph in inline_graphs(model):
            for node in list(graph):
                if node.op_type == "Constant" and node.domain == "":
                    _lift(graph, node, log)
        opset, most = query.opset(model), min(TOO_MANY_BYTES, limits.largest_constant(sizes.weights_of(model)))
        for graph in inline_graphs(model):
            _Folding(graph, opset, log, "weights", most).run()
            _Folding(graph, opset, log, "any", MANY_BYTES).run()
            _Folding(graph, opset, log, "layers", SOME_BYTES).run()
        return log.result()


def _lift(graph: ir.Graph, node: ir.Node, log: Log) -> None:
    output, name = node.outputs[0], query.label(node)
    data = query.constant_tensor(output)
    if data is None:
        log.left("a Constant of strings or a sparse one stays a node", name)
    elif output.is_graph_output():
        log.left("a Constant that is a graph output stays a node", name)
    else:
        replace_by_constant(output, data, graph)
        graph.remove(node, safe=True)
        log.did("Constant nodes became initializers", name)


class _Folding:
    """One graph: which nodes are constant, which of them are needed, and their results.

    No result has more than `most` bytes. For ``weights`` alone more operators count, and for ``layers`` most of all.
    """

    def __init__(
        self, graph: ir.Graph, opset: int, log: Log, what: Literal["weights", "any", "layers"], most: int
    ) -> None:
        self.graph, self.opset, self.log, self.what, self.most = graph, opset, log, what, most
        self.held = 0
        self.results: dict[int, list[np.ndarray]] = {}
        self.constant = self._constant_nodes()

    def _constant_nodes(self) -> dict[int, ir.Node]:
        found: dict[int, ir.Node] = {}
        wide = self.what != "any"
        for node in self.graph:
            if is_foldable(node, weights=wide, layers=self.what == "layers") and all(
                v is None or query.constant_tensor(v) is not None or id(v.producer()) in found for v in node.inputs
            ):
                found[id(node)] = node
        return found

    def run(self) -> None:
        for node in list(self.constant.values()):
            for output in node.outputs:
                readers = [(user, i) for user, i in output.uses() if id(user) not in self.constant]
                if self.what == "weights":
                    readers = [(user, i) for user, i in readers if _is_weight(user, i)]
                if readers and node.graph is self.graph:
                    self._fold(node, output)

    def _fold(self, node: ir.Node, output: ir.Value) -> None:
        name = query.label(node)
        if output.is_graph_output():
            self.log.left("a constant expression that is a graph output stays", name)
            return
        try:
            array = self._compute(node, output)
        except Exception as error:  # whatever numpy says of a node that no runtime would run either
            self.log.left(f"a constant expression cannot be computed: {str(error)[:100]}", name)
            return
        if array is None:
            self.log.left("a constant expression is too large to be stored", name)
            return
        if ir.DataType.from_numpy(array.dtype) not in query.FLOATS and array.size > MANY_INTEGERS:
            return
        replace_by_constant(output, build.tensor(array, name=str(output.name)), self.graph)
        self.log.did("expressions of constants were computed", name)
        self._remove(node)

    def _compute(self, last: ir.Node, output: ir.Value) -> np.ndarray | None:
        for node in _cone(last, self.constant):
            if id(node) in self.results:
                continue
            inputs = [self._array(value) for value in node.inputs]
            first = inputs[0] if inputs and node.op_type not in ("Cast", "ConstantOfShape") else None
            size = (4 if first is None else first.itemsize) * result_elements(node, inputs)
            if size > self.most or self.held + size > TOO_MANY_BYTES:
                return None
            self.results[id(node)] = results(node, inputs, self.opset)
            self.held += _bytes(self.results[id(node)])
        return self.results[id(last)][output.index() or 0]

    def _array(self, value: ir.Value | None) -> np.ndarray | None:
        if value is None:
            return None
        known = self.results.get(id(value.producer())) if value.producer() is not None else None
        return query.constant_array(value) if known is None else known[value.index() or 0]

    def _remove(self, last: ir.Node) -> None:
        for node in reversed(list(_cone(last, self.constant))):
            if node.graph is None or any(map(query.is_used, node.outputs)):
                continue
            inputs = list(node.inputs)
            self.graph.remove(node, safe=True)
            self.held -= _bytes(self.results.pop(id(node), []))
            for value in inputs:
                drop_unused(value)


def _bytes(arrays: list[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)


def _cone(last: ir.Node, constant: dict[int, ir.Node]) -> Iterable[ir.Node]:
    """The constant nodes that `last` depends on, itself included, producers first."""
    done: dict[int, ir.Node] = {}
    pending = [last]
    while pending:
        node = pending[-1]
        sources = [v.producer() for v in node.inputs if v is not None]
        missing = [s for s in sources if s is not None and id(s) in constant and id(s) not in done]
        if missing:
            pending.extend(missing)
            continue
        done[id(pending.pop())] = node
    return list(done.values())


def _is_weight(node: ir.Node, index: int) -> bool:
    row = operators.find(node.domain, node.op_type)
    return row is not None and row.role(index) in ("weight", "bias")
