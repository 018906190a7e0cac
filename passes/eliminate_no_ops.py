"""Operators that return their input unchanged, taken out."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import data_movement, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, absorb, is_private
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class EliminateNoOps(SelectivePass):
    """Operators that return their input unchanged go: Identity, Cast to the type that the input has, Concat of one input.

    Compilers remove them before they look at pairs, and so the layers, activations and arithmetic on both sides are
    neighbours. Run it in front of every pass and every placement that looks for neighbours: exporters of PaddlePaddle
    write an Identity behind each operator.

    1. Max, Min, Mean and Sum of one input count too, and a Dropout that is told not to train.
    2. An input that nothing else reads takes the name of the output; otherwise it keeps its own.
    3. Left alone: an output of a graph whose input is an output too, is read by other nodes, is an input of the graph, or
       comes from another graph; what reads a constant; a Dropout whose mask is read, or that drops while the file is
       trained; nodes of which `selection` says that they stay in float.

    Tolerance: none. ::

        c = Conv(x, w)   i = Identity(c)   y = Relu(i)
        i = Conv(x, w)   y = Relu(i)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for every table, but where encodings name the tensors of the float file."""
        return None if setting.overrides.encodings else cls(setting)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Take them out; see the class."""
        log = Log()
        found = [node for scope in walk.scopes(model) for node in scope if self._is_unneeded(node)]
        # Outputs of graphs last: their inputs can take their names once no other of these nodes reads them.
        for node in sorted(found, key=lambda node: node.outputs[0].is_graph_output()):
            label = query.label(node)
            if _take_out(node):
                log.did("operators that return their input unchanged were taken out", label)
        return log.result()

    def _is_unneeded(self, node: ir.Node) -> bool:
        if not data_movement.is_removed(node) or self.stays_float(node):
            return False
        # Without a mode, training drops elements (`bridge/lowering/dropout.py`).
        return node.op_type != "Dropout" or query.input_at(node, 2) is not None


def _take_out(node: ir.Node) -> bool:
    """Take `node` out, and return whether it could be."""
    source, output = node.inputs[0], node.outputs[0]
    if source is None or query.constant_tensor(source) is not None:
        return False
    if any(map(query.is_used, node.outputs[1:])):
        return False
    maker = source.producer()
    is_inner = maker is not None and maker.graph is node.graph
    if is_inner and is_private(source):
        absorb(node, source)
        return True
    if output.is_graph_output():
        return False
    output.replace_all_uses_with(source)
    walk.scope_of(node).remove(node, safe=True)
    return True
