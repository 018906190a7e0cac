"""Why a node does not run on integers, as far as the file itself tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import onnx

from onnxqat.deployment.base_compiler import MOVES, BaseCompiler, NodeResult
from onnxqat.deployment.graph_nodes import inner_graphs
from onnxqat.graph.build import LEFT_FLOAT
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

ACTIVATIONS = frozenset(
    ["Relu", "Clip", "LeakyRelu", "PRelu", "HardSwish", "Sigmoid", "HardSigmoid", "Tanh", "Elu", "Gelu"]
)


def explained(nodes: Iterable[NodeResult], model: onnx.ModelProto, compiler: BaseCompiler) -> tuple[NodeResult, ...]:
    """`nodes` with a reason for each that is float or rejected.

    Args:
        nodes: what the compiler does.
        model: the deploy form; external data need not be loaded.
        compiler: who compiled it.
    """
    graphs = [main := _Graph(model.graph, ())]
    graphs += [_Graph(body, main.constants) for _, body in inner_graphs(model.graph)]
    homes = {name: graph for graph in reversed(graphs) for name in graph.named}
    return tuple(
        dataclasses.replace(n, why=_float_reason(n, homes.get(n.name, main), compiler))
        if n.kind in ("float", "rejected")
        else n
        for n in nodes
    )


class _Graph:
    def __init__(self, graph: onnx.GraphProto, outer: Iterable[str]) -> None:
        self.constants = {*outer, *(t.name for t in graph.initializer)}
        self.outputs = {v.name for v in graph.output}
        self.makers = {o: n for n in graph.node for o in n.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.named = {o: n for n in graph.node for o in n.output} | {n.name: n for n in graph.node if n.name}

        for node in graph.node:
            if all(name in self.constants for name in node.input if name):
                self.constants.update(node.output)

    def constant(self, name: str) -> bool:
        """Check whether `name` is an initializer, or computed from initializers and Constant nodes alone."""
        return name in self.constants


def _float_reason(result: NodeResult, graph: _Graph, compiler: BaseCompiler) -> str:
    node = graph.named.get(result.name)
    kernels = compiler.integer_kernels.split()
    if node is None:
        return result.why or f"{compiler.name} runs it as {result.detail}"
    placed = next((p.value for p in node.metadata_props if p.key == LEFT_FLOAT), "")
    if placed:
        return f"placement left it in float: {placed}"
    if kernels and node.op_type not in kernels:
        told = f": {result.why}" if result.why else ""
        return f"{compiler.name} has no integer kernel for {node.op_type}{told}"
    gaps = [*_bare_inputs(node, graph), *_bare_outputs(node, graph)]
    if gaps:
        return "; ".join(gaps)
    return result.why or f"{compiler.name} chose {result.detail} although it lies between Q/DQ"


def _bare_inputs(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    """Inputs of data that no DequantizeLinear makes; of moving operators the first alone, and no biases."""
    wanted = node.input[:2] if len(node.input) == 3 else node.input  # the third is a bias
    if node.op_type in MOVES:
        wanted = node.input[:1]
    for name in wanted:
        maker = graph.makers.get(name)
        if name and (maker is None or maker.op_type != DEQUANTIZE):
            kind = "float constant" if graph.constant(name) else "input"
            yield f"its {kind} {name!r} carries no Q/DQ"


def _bare_outputs(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    for output in node.output:
        if not output:
            continue
        if output in graph.outputs:
            yield f"its output {output!r} leaves the graph without Q/DQ"
            continue
        for reader in graph.readers.get(output, []):
            if reader.op_type == QUANTIZE:
                continue
            if reader.op_type in ACTIVATIONS:
                yield f"the {reader.op_type} {reader.name or reader.output[0]!r} stands between it and Q"
            else:
                yield f"its output {output!r} is read by {reader.op_type} without Q/DQ"
            break
