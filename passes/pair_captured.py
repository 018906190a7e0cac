"""Tensors on a grid that bodies of If, Loop and Scan read behind data movement get a pair of their own."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, data_movement, edit, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

# What onnxruntime moves pairs over: CanNodePropagate in qdq_transformer/qdq_propagation.cc of 1.32.
_CROSSED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


class PairCaptured(Pass):
    """``pair -> Transpose -> [body]`` becomes ``pair -> Transpose -> pair -> [body]``, on the same scale and zero point.

    onnxruntime (1.32) moves the first pair over such an operator, to every reader of its result. A body that captures it
    is a reader without an input for it, and the default session ends the process (SIGABRT in
    QDQPropagationTransformer). With a pair in front of the body there is nothing to move.

    1. A result of MaxPool, Reshape, Slice, Squeeze, Transpose or Unsqueeze, also behind what compilers remove, such as
       Identity, that lies on the grid of one pair per tensor and that a body reads from outside gets a pair with that
       one's constants. The body's nodes read the new pair; readers of the tensor's own scope stay.
    2. Left alone: what a body reads right behind a pair, and moved there by other operators.

    Tolerance: none, since every value lies on the grid already. ::

        d = DequantizeLinear(q, s, z)   t = Transpose(d)   y = If (c) <then_branch = { u = Pow(t, e) } ...>
        d = DequantizeLinear(q, s, z)   t = Transpose(d)   t_QuantizeLinear_Output = QuantizeLinear(t, s, z)
        t_DequantizeLinear_Output = DequantizeLinear(t_QuantizeLinear_Output, s, z)   y = If (c) <then_branch = { u = Pow(t_DequantizeLinear_Output, e) } ...>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Insert the pairs; see the class."""
        log = Log()
        scopes = list(walk.scopes(model))
        if len(scopes) == 1 + len(model.functions):  # no bodies, which alone capture
            return Rewrite(False)
        found = qdq.quantizers(model)
        grids, dequantized = data_movement.carried(found), qdq.by_output(found)
        for scope in scopes:
            for node in list(scope):
                for value in node.outputs:
                    quantizer = grids.get(id(value))
                    if quantizer is None or id(value) in dequantized or not _is_crossed(node):
                        continue
                    uses = [(user, index) for user, index in value.uses() if user.graph is not node.graph]
                    if uses:
                        _insert(scope, node, value, quantizer, uses, context.names)
                        log.did("pairs in front of bodies that capture what was moved", str(value.name))
        return log.result()


def _is_crossed(node: ir.Node) -> bool:
    """Check whether onnxruntime moves pairs over `node`, or the node in front of removable ones such as Identity."""
    made: ir.Node | None = node
    while made is not None and data_movement.is_removed(made):
        source = made.inputs[0]
        made = query.producer(source)
    return made is not None and made.op_type in _CROSSED and not made.domain


def _insert(
    scope: walk.Scope,
    node: ir.Node,
    value: ir.Value,
    quantizer: Quantizer,
    uses: list[tuple[ir.Node, int]],
    names: build.Names,
) -> None:
    zero_points = quantizer.zero_points
    if zero_points:
        parameters = qdq.Parameters(quantizer.scales[0], zero_points[0])
    else:
        parameters = qdq.make_parameters(scope, names, str(value.name), quantizer.qparams)
    stamp = {build.CREATED_BY: PairCaptured.name}
    output = qdq.insert_pair(value, parameters, quantizer.qparams, names, stamp, scope=scope, after=node)
    edit.rewire(uses, output)
