"""Resize nodes with a pair of their own, since RKNN-Toolkit2 fails where another node reads the same one."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import helper

from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE


def with_own_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which a Resize reads a second pair of the same parameters, where other nodes read its input too.

    Codes that are quantized again are the same codes. Without it the toolkit (seen with 2.5.0) is ended by SIGSEGV or
    SIGILL on pyramids whose maps go up and down again (three maps, four Resize and four Add are enough, whichever
    operand of the Add it is), and where an Add alone has a pair of its own, a Conv beside a Resize gives other codes:
    15 % of NanoDet's largest map. ::

        d = DequantizeLinear(q, s, z)   r = Resize(d)   y = Add(a, d)
        d = DequantizeLinear(q, s, z)   e = DequantizeLinear(QuantizeLinear(d, s, z), s, z)   r = Resize(e)
        y = Add(a, d)

    Args:
        model: deploy form; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    makers = {output: node for node in made.graph.node for output in node.output}
    readers = Counter(name for node in made.graph.node for name in node.input)
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        maker = makers.get(node.input[0]) if node.op_type == "Resize" else None
        if maker is not None and maker.op_type == DEQUANTIZE and readers[node.input[0]] > 1:
            pair = _pair(maker, f"{node.name or node.output[0]}_own")
            node.input[0] = pair[1].output[0]
            nodes += pair
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _pair(maker: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    """Q and DQ behind `maker`, with its parameters."""
    codes, parameters = f"{name}_quantized", list(maker.input[1:])
    made = [
        helper.make_node(QUANTIZE, [maker.output[0], *parameters], [codes], name=f"{name}_Q"),
        helper.make_node(DEQUANTIZE, [codes, *parameters], [f"{name}_dequantized"], name=f"{name}_DQ"),
    ]
    for node in made:
        node.attribute.extend(maker.attribute)
    return made
