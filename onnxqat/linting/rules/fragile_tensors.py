"""Tensors that 8 bits do not suit: masks, shapes, normalizations, probabilities that leave the model, rankings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import dataflow, masks, normalizations
from onnxqat.graph import query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions import calls
from onnxqat.linting.context import LintContext, is_integer
from onnxqat.linting.rule import Found, Rule
from onnxqat.ops import operators as ops

NORMALIZATIONS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "LpNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
)
RANKINGS = ("NonMaxSuppression", "TopK")


def _span(quantizer: Quantizer) -> float:
    grid = quantizer.qparams.qtype
    return float(quantizer.qparams.scale.max()) * (grid.quant_max - grid.quant_min)


def _masks(file: LintContext) -> Iterator[Found]:
    found = masks.Masks()
    for quantizer in file.quantizers:
        if not is_integer(quantizer) or quantizer.qparams.qtype.bits > 16:
            continue
        array = None if quantizer.stored else query.constant_array(quantizer.input)
        if array is not None and masks.is_mask(array):
            largest = float(np.abs(array).max(initial=0.0))
            what = f"values of up to {largest:.3g}" if np.isfinite(array).all() else "infinite values"
            yield Found(f"the constant holds {what}", quantizer.nodes[0], quantizer.tensor)
        elif array is None and not quantizer.stored and found.carries(quantizer.input):
            yield Found(
                f"the sum of numbers and a mask, its range is {_span(quantizer):.3g}",
                quantizer.nodes[0],
                quantizer.tensor,
            )
        elif _span(quantizer) >= masks.BEYOND_DATA:
            yield Found(f"its range is {_span(quantizer):.3g}", quantizer.nodes[0], quantizer.tensor)


def _parameters(file: LintContext) -> Iterator[Found]:
    ends = {id(node) for node in file.ends}
    for node in file.nodes:
        row = ops.of(node)
        if row is None or node.op_type in dataflow.PARAMETERS_ARE_DATA or id(node) in ends:
            continue
        if row.role(0) == "parameter":  # such as Shape and comparisons, which read data all the same
            continue
        for index in range(len(node.inputs)):
            quantizer = file.reading(node, index)
            if quantizer is not None and row.role(index) == "parameter" and not _is_wanted(file, node, index):
                yield Found(
                    f"input {index} of {node.op_type} is a parameter and comes out of a pair", node, quantizer.tensor
                )


def _is_wanted(file: LintContext, node: ir.Node, index: int) -> bool:
    """Check whether the table has a pair on input `index` of `node`, such as on gamma of a normalization for HTP."""
    row = file.table.ops.get(node.op_type) if file.table is not None and not node.domain else None
    slot = None if row is None else row.input_slot(index)
    return slot is not None and slot.use is not None


def _indices(file: LintContext) -> Iterator[Found]:
    if file.plain is None:
        return
    data = dataflow.data_nodes(file.plain.model.graph)
    reached = {id(n) for graph in dataflow.reached_graphs(file.plain.model.graph) for n in graph}
    for quantizer in file.quantizers:
        users = [file.plain.node(n) for n in quantizer.readers]
        known = [n for n in users if n is not None and id(n) in reached]
        leaves = any(v.is_graph_output() for v in quantizer.outputs)
        if quantizer.role != "activation" or not known or len(known) != len(users) or leaves:
            continue
        if not any(n in data for n in known):
            text = f"only {query.label(known[0])} ({known[0].op_type}) and what makes shapes or indices of it read it"
            yield Found(text, quantizer.nodes[0], quantizer.tensor)


def _interior(file: LintContext) -> Iterator[Found]:
    if file.plain is None:
        return
    # Preparing may have written operators out: their parts are no nodes of the file, and no quantizer lies between them.
    originals = (file.plain.originals.get(str(n.name)) for n in normalizations.parts(file.plain.model.graph))
    inside = {id(node) for node in originals if node is not None}
    for quantizer in file.quantizers:
        maker = None if quantizer.stored else quantizer.input.producer()
        users = quantizer.readers
        if maker is not None and id(maker) in inside and users and all(id(n) in inside for n in users):
            text = f"the result of {query.label(maker)} ({maker.op_type}) is quantized inside a normalization"
            yield Found(text, quantizer.nodes[0], quantizer.tensor)


def _normalized(file: LintContext) -> Iterator[Found]:
    for node in file.nodes:
        if calls.FUNCTION in node.metadata_props:
            continue
        quantizer = file.reading(node, 0) if node.op_type in NORMALIZATIONS and node.inputs else None
        if quantizer is not None and quantizer.qparams.qtype.bits <= 8:
            yield Found(f"{node.op_type} reads {quantizer.qparams.qtype.bits}-bit codes", node, quantizer.tensor)


def _probabilities(file: LintContext) -> Iterator[Found]:
    if file.table is not None and file.table.io.probabilities == "quantize":
        return
    for node in file.nodes:
        row = ops.of(node)
        if row is None or row.output_range != (0.0, 1.0):
            continue
        for quantizer in (q for v in node.outputs for q in file.on(v)):
            if quantizer.qparams.qtype.bits <= 8 and any(map(dataflow.leads_to_output, quantizer.outputs)):
                text = f"the result of {node.op_type} leaves the graph in {quantizer.qparams.qtype.bits}-bit steps"
                yield Found(text, node, quantizer.tensor)


def _bounded(file: LintContext) -> Iterator[Found]:
    for node in file.nodes:
        row = ops.of(node)
        if row is None or row.output_range is None:
            continue
        low, high = row.output_range
        for quantizer in (q for v in node.outputs for q in file.on(v) if is_integer(q)):
            if _span(quantizer) > 2.01 * (high - low):
                text = f"{node.op_type} gives {low:g}..{high:g}, the grid spans {_span(quantizer):.4g}"
                yield Found(text, node, quantizer.tensor)


def _softmax(file: LintContext) -> Iterator[Found]:
    for node in file.layers("Softmax", "LogSoftmax"):
        quantizer = file.reading(node, 0)
        if quantizer is not None and quantizer.qparams.qtype.bits < 8:
            yield Found(f"{node.op_type} reads {quantizer.qparams.qtype.bits}-bit codes", node, quantizer.tensor)


def _ranked(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*RANKINGS):
        for index in range(min(len(node.inputs), 2 if node.op_type == "NonMaxSuppression" else 1)):
            quantizer = file.reading(node, index)
            if quantizer is not None and quantizer.qparams.qtype.bits <= 8:
                yield Found(f"{node.op_type} ranks {quantizer.qparams.qtype.bits}-bit codes", node, quantizer.tensor)
                break


RULES = (
    Rule(
        code="mask-quantized",
        severity="error",
        defect="a mask is quantized, or a sum with one",
        reason="-inf or the lowest float makes the scale huge or infinite: all other values become 0",
        remedy="leave the mask and the Add behind it in float",
        source="backend tables: constants of 1e9 and more are masks; Attention masks of exported transformers",
        check=_masks,
    ),
    Rule(
        code="parameter-quantized",
        severity="warning",
        defect="a bound, shape, size or other parameter of an operator comes out of a pair",
        reason="a rounded bound or size is another bound or size; compilers want constants there",
        remedy="let the operator read the float tensor",
        source="ONNX operator schemas, roles of inputs; microsoft/onnxruntime#5586",
        check=_parameters,
    ),
    Rule(
        code="index-quantized",
        severity="warning",
        defect="a tensor that only becomes shapes or indices is quantized",
        reason="indices are off by the rounding error",
        remedy="leave shape and index arithmetic in float",
        source="microsoft/onnxruntime#5534",
        check=_indices,
    ),
    Rule(
        code="normalization-interior",
        severity="warning",
        defect="a normalization that is written out has a pair inside",
        reason="variances of rows differ by orders of magnitude: one scale destroys the small ones, and they are divided by",
        remedy="leave all nodes from the mean to the division in float",
        source="microsoft/onnxruntime#16219",
        check=_interior,
    ),
    Rule(
        code="normalization-quantized",
        severity="note",
        defect="a normalization reads 8-bit codes",
        reason="onnxruntime, OpenVINO and most devices compute it in float: the pair costs accuracy and gains nothing",
        remedy="leave its input in float unless the tensor is on a grid for another consumer",
        source="LayerNormalization and InstanceNormalization run: float in onnxruntime, OpenVINO, QNN; microsoft/onnxruntime#16219",
        check=_normalized,
    ),
    Rule(
        code="probability-quantized",
        severity="warning",
        defect="probabilities leave the model on an 8-bit grid",
        reason="scores below 1/512 become 0, and ranks of close scores are lost",
        remedy="leave the last Sigmoid or Softmax and what follows in float",
        source="meituan/YOLOv6#969: scores exactly 0; planner rule for fixed outputs",
        check=_probabilities,
    ),
    Rule(
        code="range-beyond-bounds",
        severity="note",
        defect="a grid spans more than twice what its operator can give",
        reason="a bit or more is wasted",
        remedy="use the operator's own range: Softmax and Sigmoid 0..1, Tanh -1..1",
        source="TensorFlow quantization_spec: Softmax 1/256, Tanh 1/128",
        check=_bounded,
    ),
    Rule(
        code="softmax-input-narrow",
        severity="warning",
        defect="Softmax reads fewer than 8 bits",
        reason="it is exponential in its input: a step of 1 is a factor of 2.7",
        remedy="at least 8 bits in front of a Softmax",
        source="arithmetic of the exponential",
        check=_softmax,
    ),
    Rule(
        code="ranking-quantized",
        severity="note",
        defect="TopK or NonMaxSuppression ranks 8-bit codes",
        reason="close scores and boxes tie: others are kept than in float",
        remedy="leave the tail of a detector in float",
        source="ultralytics/ultralytics#14711; backend tables, float tails",
        check=_ranked,
    ),
)
