"""The pair inside a SiLU that HTP and RKNN ask for and do not carry out."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

SUFFIX = "_onnxqat_gate"


def with_gate_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which the Sigmoid of each SiLU between Q/DQ has a pair of its own, with steps of 1/256.

    HTP makes one table of ``x * sigmoid(x)``, whatever the pair behind the Sigmoid is, but computes both in float where
    there is none (onnxruntime-qnn 2.7); RKNN makes one exSwish of it (RKNN-Toolkit2 2.5.0). So they compute what
    `model` says. Left alone: a Sigmoid that something else reads too, or whose product is of another tensor or not
    quantized. ::

        g = Sigmoid(x)  y = Mul(x, g)
        g = Sigmoid(x)  q = QuantizeLinear(g, 1 / 256, 0)  d = DequantizeLinear(q, 1 / 256, 0)  y = Mul(x, d)

    Args:
        model: deploy form, opset 13 or later; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    makers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in graph.output}
    nodes: list[onnx.NodeProto] = []
    pairs = 0
    for node in graph.node:
        nodes.append(node)
        gate = node.output[0]
        users = readers.get(gate, [])
        if node.op_type != "Sigmoid" or node.domain or gate in outputs or len(users) != 1:
            continue
        product, source = users[0], makers.get(node.input[0])
        if product.op_type != "Mul" or sorted(product.input) != sorted([gate, node.input[0]]):
            continue
        behind = readers.get(product.output[0], [])
        if source is None or source.op_type != DEQUANTIZE or {n.op_type for n in behind} != {QUANTIZE}:
            continue
        if product.output[0] in outputs:
            continue
        nodes += _pair(gate)
        product.input[list(product.input).index(gate)] = f"{gate}{SUFFIX}"
        pairs += 1
    if pairs:
        graph.initializer.append(helper.make_tensor(f"scale{SUFFIX}", TensorProto.FLOAT, [], [2.0**-8]))
        graph.initializer.append(helper.make_tensor(f"zero_point{SUFFIX}", TensorProto.UINT8, [], [0]))
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _pair(gate: str) -> list[onnx.NodeProto]:
    parameters, codes, result = [f"scale{SUFFIX}", f"zero_point{SUFFIX}"], f"{gate}_codes{SUFFIX}", f"{gate}{SUFFIX}"
    quantize = helper.make_node(QUANTIZE, [gate, *parameters], [codes], codes)
    return [quantize, helper.make_node(DEQUANTIZE, [codes, *parameters], [result], result)]
