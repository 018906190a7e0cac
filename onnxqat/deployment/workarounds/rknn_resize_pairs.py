"""Resize nodes with a pair of their own, since RKNN-Toolkit2 fails where another node reads the same one."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.deployment.workarounds import pair
from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log


class RknnResizePairs(Pass):
    """A Resize reads a second pair of the same parameters, where other nodes read its input too.

    Codes that are quantized again are the same codes. Without it the toolkit (seen with 2.5.0) is ended by SIGSEGV or
    SIGILL on pyramids whose maps go up and down again (three maps, four Resize and four Add are enough, whichever
    operand of the Add it is), and where an Add alone has a pair of its own, a Conv beside a Resize gives other codes:
    15 % of NanoDet's largest map.

    Left alone: a Resize that alone reads its input, and one whose input is not dequantized.

    Tolerance: none. ::

        d = DequantizeLinear(q, s, z)   r = Resize(d)   y = Add(a, d)
        d = DequantizeLinear(q, s, z)   e = DequantizeLinear(QuantizeLinear(d, s, z), s, z)   r = Resize(e)
        y = Add(a, d)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Insert the pairs; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type != "Resize" or node.domain:
                continue
            source, maker = node.inputs[0], pair.dequantize_of(node.inputs[0])
            if source is None or maker is None or query.reads(source) < 2:
                continue
            name = f"{node.name or node.outputs[0].name}_own"
            node.replace_input_with(0, pair.insert(scope, node, source, maker, context.names, name))
            log.did("a Resize got a pair of its own", node)
        return log.result()
