"""A pair between an operator and its activation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import edit, query
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, same_grid
from onnxqat.linting.rule import Found, Rule
from onnxqat.placement.fusion_chains import clip_bounds
from onnxqat.types import STORAGE

PRODUCERS = (*LAYERS, "Add")
LIMITING = ("Relu", "Clip")


def _pairs_around_activations(file: LintContext) -> Iterator[tuple[ir.Node, Quantizer, Quantizer]]:
    """Relu and Clip with a pair in front, behind a layer, and a pair behind."""
    for node in file.layers(*LIMITING):
        inner = file.reading(node, 0)
        outer = file.on(node.outputs[0])
        if inner is None or inner.stored or not outer:
            continue
        maker = inner.input.producer()
        if maker is not None and maker.op_type in PRODUCERS:
            yield node, inner, outer[0]


def repeats(quantizer: Quantizer, bounds: tuple[float, float]) -> bool:
    """Check whether QuantizeLinear saturates inside `bounds`, so that it does the work of the activation."""
    if quantizer.qparams.scale.ndim or quantizer.qparams.qtype.is_float:
        return False
    low, high, _ = STORAGE[quantizer.qparams.qtype.storage]
    codes = np.asarray([low, high], np.int64) - int(quantizer.qparams.zero_point)
    ends = codes.astype(np.float32) * np.float32(quantizer.qparams.scale)
    return bounds[0] <= float(ends[0]) and float(ends[1]) <= bounds[1]


def _find_differing_pairs(file: LintContext) -> Iterator[Found]:
    for node, inner, outer in _pairs_around_activations(file):
        if not same_grid(inner, outer):
            ratio = float(inner.qparams.scale.ravel()[0] / outer.qparams.scale.ravel()[0])
            text = f"a pair with {ratio:.4g} times the scale of the pair behind stands in front of {node.op_type}"
            yield Found(text, node, inner.tensor)


def _superfluous(file: LintContext) -> Iterator[Found]:
    for node, inner, outer in _pairs_around_activations(file):
        bounds = clip_bounds(node)
        if same_grid(inner, outer) and bounds is not None and repeats(outer, bounds):
            yield Found(
                f"the pair in front of {node.op_type} does nothing that the one behind does not", node, inner.tensor
            )


def _remove(file: LintContext, found: Sequence[Found]) -> None:
    """The activation reads the layer itself."""
    nodes = {id(place.node) for place in found}
    for node, inner, _ in list(_pairs_around_activations(file)):
        if id(node) in nodes:
            edit.rewire([(node, 0)], inner.input)
    edit.remove_unused(file.model)


def _tied(file: LintContext) -> Iterator[Found]:
    for node, inner, outer in _pairs_around_activations(file):
        bounds = clip_bounds(node)
        if same_grid(inner, outer) and not (bounds is not None and repeats(outer, bounds)):
            text = f"{query.label(node)} has a pair in front that shares scale and zero point with the one behind"
            yield Found(text, node, inner.tensor)


RULES = (
    Rule(
        code="activation-pair-untied",
        severity="warning",
        defect="a pair stands between a layer and its Relu or Clip, on another grid than the pair behind",
        reason="the tensor is rounded twice; QNN's simulator gives results that are off by 2.75 for such a Clip",
        remedy="remove the inner pair, or let it share scale and zero point with the one behind the activation",
        source="QNN HTP run, depthwise Conv, pair, Clip(0, 6) with different scales: largest difference 2.75, shared 0.03",
        check=_find_differing_pairs,
        table_decides=True,
    ),
    Rule(
        code="activation-pair-superfluous",
        severity="note",
        defect="a pair stands between a layer and an activation that the pair behind repeats",
        reason="every compiler fuses the activation without it; with it, some insert a node",
        remedy="remove the inner pair; not one bit changes",
        source="onnxruntime run: 4 extra Q/DQ nodes; QNN run: 4 extra Relu; NVIDIA/TensorRT#993",
        check=_superfluous,
        fix=_remove,
        table_decides=True,
    ),
    Rule(
        code="activation-pair-tied",
        severity="note",
        defect="a pair stands between a layer and its activation and shares scale and zero point with the one behind",
        reason="onnxruntime and QNN need it where the pair behind does not repeat the activation; others do not",
        remedy="none where the target is one of these",
        source="onnxruntime qdq_util.cc, Relu and Clip are dropped only when Q makes them redundant",
        check=_tied,
        table_decides=True,
    ),
)
