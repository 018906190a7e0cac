"""Steps of 1 and more around interpolations, below which HTP computes some of them wrongly."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import numpy_helper

from onnxqat.deployment.base_compiler import MOVES
from onnxqat.deployment.node_trace import SUFFIX as TRACED
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

INTERPOLATIONS = {"linear", "cubic"}
WEIGHTED = {"Conv", "ConvTranspose", "Gemm"}
SUMS = {"Add", "Sub", "Concat", "Max", "Min"}
SCALED = {
    *MOVES, *SUMS, QUANTIZE, DEQUANTIZE, "Resize", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
    "ReduceMean", "ReduceMax", "ReduceMin", "Relu", "LeakyRelu",
} - {"Pad"}  # fmt: skip
"""Operators whose result is twice as large where what they read is; a Pad's constant is not."""

SHAPES = {"Shape", "Size"}


def with_unit_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which quantizers around interpolating Resize nodes have scales of 1 and more, with the same codes.

    With scales below 1, HTP's simulator averages with roundings in between in the last rows of the last 32 channels:
    465 of 38,400 codes of a Resize to half the size were a step too high, none with scales of 1 and more
    (onnxruntime-qnn 2.7). Codes depend on ratios of scales alone, so that a region of pairs, sums, pools and data
    movement between layers with constant weights may be computed in another unit: scales in it are multiplied by a
    power of two, those of the weights that lead into it too, and those of the weights behind it are divided. Everything
    in front of and behind the region has the numbers that it had. Left alone: a region that reaches anything else. ::

        d = DequantizeLinear(q, 1/64)  r = Resize(d)  p = QuantizeLinear(r, 1/64)
        d = DequantizeLinear(q, 1)     r = Resize(d)  p = QuantizeLinear(r, 1)

    Args:
        model: deploy form; it is not changed. A DequantizeLinear that makes a traced output keeps its scale: outputs
            are dequantized on the CPU.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = _Graph(made.graph)
    known: set[str] = set()
    for node in list(made.graph.node):
        if not _interpolates(node) or node.input[0] in known:
            continue
        region = graph.region(node.input[0])
        known |= region.tensors
        factor = graph.missing_factor(region) if region.closed else 1.0
        if factor > 1:
            graph.rescale(region, factor)
    return made


def _interpolates(node: onnx.NodeProto) -> bool:
    modes = [a.s.decode(errors="replace") for a in node.attribute if a.name == "mode"]
    return node.op_type == "Resize" and not INTERPOLATIONS.isdisjoint(modes)


@dataclasses.dataclass
class _Region:
    """Tensors that share a unit, with their quantizers and Resize nodes and the layers that write and read them.

    Nodes are stored by the name of their first output. `closed`: it ends only at layers with constant weights.
    """

    tensors: set[str] = dataclasses.field(default_factory=set)
    pairs: dict[str, onnx.NodeProto] = dataclasses.field(default_factory=dict)
    resizes: dict[str, onnx.NodeProto] = dataclasses.field(default_factory=dict)
    writers: dict[str, onnx.NodeProto] = dataclasses.field(default_factory=dict)
    readers: dict[str, onnx.NodeProto] = dataclasses.field(default_factory=dict)
    closed: bool = True


class _Graph:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.makers = {output: node for node in graph.node for output in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for index, name in enumerate(node.input):
                self.users.setdefault(name, []).append((node, index))

    def missing_factor(self, region: _Region) -> float:
        """The power of two that makes the scales in front of and behind the Resize nodes at least 1."""
        around: list[onnx.NodeProto] = []
        for node in region.resizes.values():
            around += [self.makers[node.input[0]], *(user for user, _ in self.users.get(node.output[0], []))]
        scales = [self._scale(n) for n in around if n.op_type in (QUANTIZE, DEQUANTIZE)]
        smallest = min((float(s.min()) for s in scales if s is not None), default=1.0)
        return float(2.0 ** max(0.0, np.ceil(-np.log2(smallest)))) if smallest > 0 else 1.0

    def region(self, tensor: str) -> _Region:
        """Collect the region that shares a unit with `tensor`; it is not closed where it reaches anything else."""
        region, waiting = _Region(), [tensor]
        while waiting:
            name = waiting.pop()
            if name in region.tensors:
                continue
            region.tensors.add(name)
            maker = self.makers.get(name)
            traced = name.endswith(TRACED)
            uses = [] if maker is None else [(maker, None), *self.users.get(name, [])]
            reached = [self._visit(region, node, index) for node, index in uses]
            if not reached or None in reached or (name in self.outputs and not traced):
                region.closed = False
                break
            waiting += [other for names in reached for other in names or ()]
        return region

    def _visit(self, region: _Region, node: onnx.NodeProto, index: int | None) -> list[str] | None:
        """Add `node`, at whose input `index` (None: output) the region is; return the tensors to visit, or None.

        None stands for a node that cannot be computed in another unit.
        """
        if index is not None and node.op_type in SHAPES:
            return []
        if node.op_type in WEIGHTED and not node.domain and self._has_quantized_parameters(node):
            if index not in (None, 0):
                return None
            (region.writers if index is None else region.readers)[node.output[0]] = node
            return []
        if node.op_type not in SCALED or node.domain or (index and node.op_type not in SUMS):
            return None
        read = list(node.input) if node.op_type in SUMS else list(node.input[:1])
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            if self._scale(node) is None:
                return None
            region.pairs[node.output[0]] = node
            read = [name for name in read if name not in self.constants]
        if _interpolates(node):
            region.resizes[node.output[0]] = node
        return [*read, *node.output]

    def _has_quantized_parameters(self, node: onnx.NodeProto) -> bool:
        makers = [self.makers.get(name) for name in node.input[1:] if name]
        return bool(makers) and all(m is not None and m.op_type == DEQUANTIZE and self._is_stored(m) for m in makers)

    def _is_stored(self, dequantize: onnx.NodeProto) -> bool:
        return dequantize.input[0] in self.constants and self._scale(dequantize) is not None

    def _scale(self, quantizer: onnx.NodeProto) -> np.ndarray | None:
        found = self.constants.get(quantizer.input[1])
        return None if found is None else numpy_helper.to_array(found)

    def rescale(self, region: _Region, factor: float) -> None:
        """Compute `region` in a unit that is `factor` times smaller."""
        for node in region.pairs.values():
            if not (node.output[0] in self.outputs and node.output[0].endswith(TRACED)):
                node.input[1] = self._scaled(node.input[1], factor)
        for name, node in (region.writers | region.readers).items():
            weight = (factor if name in region.writers else 1.0) / (factor if name in region.readers else 1.0)
            self._scale_parameter(node, 1, weight)
            if name in region.writers and len(node.input) > 2 and node.input[2]:
                self._scale_parameter(node, 2, factor)

    def _scale_parameter(self, node: onnx.NodeProto, index: int, factor: float) -> None:
        """Another scale for input `index`, in a DequantizeLinear of its own: other nodes may read the same one."""
        if factor == 1:
            return
        name = f"{node.output[0]}_{index}_unit"
        if node.input[index] != name:  # as it is where another region had to do with the layer
            copy = onnx.NodeProto()
            copy.CopyFrom(self.makers[node.input[index]])
            copy.name = copy.output[0] = node.input[index] = name
            # In front of everything: what it reads is constant.
            self.graph.node.insert(0, copy)
            self.makers[name] = self.graph.node[0]
        made = self.makers[name]
        made.input[1] = self._scaled(made.input[1], factor)

    def _scaled(self, name: str, factor: float) -> str:
        made = f"{name}_times_{factor:g}"
        if made not in self.constants:
            values = numpy_helper.to_array(self.constants[name])
            tensor = numpy_helper.from_array((values * values.dtype.type(factor)).astype(values.dtype), made)
            self.graph.initializer.append(tensor)
            self.constants[made] = self.graph.initializer[-1]
        return made
