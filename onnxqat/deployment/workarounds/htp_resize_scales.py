"""Scales of 1 and more around interpolations, below which HTP computes some of them wrongly."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.base_compiler import MOVES
from onnxqat.deployment.node_trace import SUFFIX as TRACED
from onnxqat.graph import build, query, walk
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

INTERPOLATIONS = {"linear", "cubic"}
WEIGHTED = {"Conv", "ConvTranspose", "Gemm"}
SUMS = {"Add", "Sub", "Concat", "Max", "Min"}
SCALED = {
    *MOVES, *SUMS, QUANTIZE, DEQUANTIZE, "Resize", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
    "ReduceMean", "ReduceMax", "ReduceMin", "Relu", "LeakyRelu",
} - {"Pad"}  # fmt: skip
"""Operators whose result is twice as large where what they read is; a Pad's constant is not."""

SHAPES = {"Shape", "Size"}


class HtpResizeScales(Pass):
    """Quantizers around interpolating Resize nodes have scales of 1 and more, with the same codes.

    With scales below 1, HTP's simulator averages with roundings in between in the last rows of the last 32 channels:
    465 of 38,400 codes of a Resize to half the size were an LSB too high, none with scales of 1 and more
    (onnxruntime-qnn 2.7). Codes depend on ratios of scales alone, so that a region of pairs, sums, pools and data
    movement between layers with constant weights may be computed in another unit: scales in it are multiplied by a
    power of two, those of the weights that lead into it too, and those of the weights behind it are divided. Everything
    in front of and behind the region has the numbers that it had.

    1. A DequantizeLinear that makes a traced output keeps its scale: outputs are dequantized on the CPU.
    2. Left alone: a region that reaches anything else, or another scope.

    Tolerance: none; powers of two are exact. ::

        d = DequantizeLinear(q, 1/64)  r = Resize(d)  p = QuantizeLinear(r, 1/64)
        d = DequantizeLinear(q, 1)     r = Resize(d)  p = QuantizeLinear(r, 1)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rescale each region; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            units = _Units(scope, context.names)
            known: set[ir.Value] = set()
            for node in list(scope):
                source = node.inputs[0] if _interpolates(node) else None
                if source is None or source in known:
                    continue
                region = _region(source, node)
                known |= region.tensors
                factor = _missing_factor(region) if region.closed else 1.0
                if factor > 1:
                    units.rescale(region, factor)
                    log.did(f"scales around an interpolation were multiplied by {factor:g}", node)
        return log.result()


def _interpolates(node: ir.Node) -> bool:
    return node.op_type == "Resize" and not node.domain and query.attribute(node, "mode", "") in INTERPOLATIONS


@dataclasses.dataclass
class _Region:
    """Tensors that share a unit, with their quantizers and Resize nodes and the layers that write and read them.

    `closed`: it ends only at layers with constant weights.
    """

    tensors: set[ir.Value] = dataclasses.field(default_factory=set)
    pairs: dict[ir.Node, None] = dataclasses.field(default_factory=dict)
    resizes: dict[ir.Node, None] = dataclasses.field(default_factory=dict)
    writers: dict[ir.Node, None] = dataclasses.field(default_factory=dict)
    readers: dict[ir.Node, None] = dataclasses.field(default_factory=dict)
    closed: bool = True


def _region(tensor: ir.Value, start: ir.Node) -> _Region:
    """Collect the region that shares a unit with `tensor`, in the scope of the node `start`."""
    region, waiting = _Region(), [tensor]
    while waiting:
        value = waiting.pop()
        if value in region.tensors:
            continue
        region.tensors.add(value)
        maker = value.producer()
        uses: list[tuple[ir.Node, int | None]] = [] if maker is None else [(maker, None), *value.uses()]
        reached = [_visit(region, node, index) if node.graph is start.graph else None for node, index in uses]
        leaves = value.is_graph_output() and not _is_traced(value)
        # A tensor that nothing in this scope makes is one of the caller's, or of a scope around it.
        if not reached or None in reached or leaves:
            region.closed = False
            break
        waiting += [other for found in reached for other in found or ()]
    return region


def _visit(region: _Region, node: ir.Node, index: int | None) -> list[ir.Value] | None:
    """Add `node`, at whose input `index` (None: output) the region is; return the tensors to visit, or None.

    None stands for a node that cannot be computed in another unit.
    """
    if index is not None and node.op_type in SHAPES:
        return []
    if node.op_type in WEIGHTED and not node.domain and _has_quantized_parameters(node):
        if index not in (None, 0):
            return None
        (region.writers if index is None else region.readers)[node] = None
        return []
    if node.op_type not in SCALED or node.domain or (index and node.op_type not in SUMS):
        return None
    read = list(node.inputs) if node.op_type in SUMS else list(node.inputs[:1])
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        if _scale(node) is None:
            return None
        region.pairs[node] = None
        read = [value for value in read if query.constant_tensor(value) is None]
    if _interpolates(node):
        region.resizes[node] = None
    return [*(value for value in read if value is not None), *node.outputs]


def _missing_factor(region: _Region) -> float:
    """The power of two that makes the scales in front of and behind the Resize nodes at least 1."""
    around: list[ir.Node | None] = []
    for node in region.resizes:
        source = node.inputs[0]
        around += [query.producer(source), *(user for user, _ in node.outputs[0].uses())]
    scales = [_scale(n) for n in around if n is not None and n.op_type in (QUANTIZE, DEQUANTIZE)]
    smallest = min((float(s.min()) for s in scales if s is not None), default=1.0)
    return float(2.0 ** max(0.0, np.ceil(-np.log2(smallest)))) if smallest > 0 else 1.0


def _has_quantized_parameters(node: ir.Node) -> bool:
    makers = [value.producer() for value in node.inputs[1:] if value is not None]
    return bool(makers) and all(m is not None and m.op_type == DEQUANTIZE and _is_stored(m) for m in makers)


def _is_stored(dequantize: ir.Node) -> bool:
    return query.constant_tensor(dequantize.inputs[0]) is not None and _scale(dequantize) is not None


def _scale(quantizer: ir.Node) -> np.ndarray | None:
    return query.constant_array(quantizer.inputs[1])


def _is_traced(value: ir.Value) -> bool:
    return value.is_graph_output() and str(value.name).endswith(TRACED)


class _Units:
    """The quantizers of one scope, as they get other scales."""

    def __init__(self, scope: walk.Scope, names: build.Names) -> None:
        self.scope, self.names = scope, names
        self._scaled_values: dict[tuple[ir.Value, float], ir.Value] = {}
        self._own: set[ir.Node] = set()

    def rescale(self, region: _Region, factor: float) -> None:
        """Compute `region` in a unit that is `factor` times smaller."""
        for node in region.pairs:
            if not _is_traced(node.outputs[0]):
                self._scale(node, factor)
        for node in region.writers | region.readers:
            weight = (factor if node in region.writers else 1.0) / (factor if node in region.readers else 1.0)
            self._scale_parameter(node, 1, weight)
            if node in region.writers and query.input_at(node, 2) is not None:
                self._scale_parameter(node, 2, factor)

    def _scale_parameter(self, node: ir.Node, index: int, factor: float) -> None:
        """Another scale for input `index`, in a DequantizeLinear of its own: other nodes may read the same one."""
        value = node.inputs[index]
        maker = query.producer(value)
        if factor == 1 or value is None or maker is None:
            return
        if maker not in self._own:  # else another region had to do with the layer
            name = self.names.fresh(f"{node.outputs[0].name}_{index}_unit")
            attributes = {key: held.value for key, held in maker.attributes.items()}
            maker = build.node(
                DEQUANTIZE, maker.inputs, [name], attributes, dtype=value.dtype, shape=value.shape, name=name
            )
            self.scope.insert_before(node, maker)
            self._own.add(maker)
            node.replace_input_with(index, maker.outputs[0])
        self._scale(maker, factor)

    def _scale(self, quantizer: ir.Node, factor: float) -> None:
        held, values = quantizer.inputs[1], _scale(quantizer)
        assert held is not None
        assert values is not None
        key = (held, factor)
        if key not in self._scaled_values:
            name = self.names.fresh(f"{held.name}_times_{factor:g}")
            times = (values * values.dtype.type(factor)).astype(values.dtype)
            self._scaled_values[key] = build.constant(self.scope, name, times)
        quantizer.replace_input_with(1, self._scaled_values[key])
