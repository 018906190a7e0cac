"""Check whether a backend's weight scales can absorb the per-channel factor of a BatchNormalization."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.graph import query
from onnxqat.placement import tensor_specs

ROUNDED = "its backend's weight scales are powers of two"
SHARED = "its backend has no weight scale for each output channel"
EXACT = "exact sums need short scales, which products with its factors are not"
OF_SCALES = frozenset({ROUNDED, SHARED, EXACT})
"""Reasons that a folded weight does not have: where it is one of these, the graph can compute that in training."""


def refusal(backend: Backend, layer: ir.Node) -> str | None:
    """Reason to fold the BatchNormalization behind `layer` before anything is quantized; None to keep it.

    Scales of few significant bits are no reason: they serve exact sums, which the normalization ends anyway.
    """
    row = backend.ops.get(layer.op_type)
    slot = row.input_slot(1) if row is not None else None
    weight = layer.inputs[1]
    if slot is None or slot.use is None or weight is None or not backend.types[slot.use].observed:
        return f"{backend.backend} does not quantize the weight of {layer.op_type}"
    kind = backend.types[slot.use]
    if kind.scale_width() == 1:
        return ROUNDED
    granularity = slot.granularity or kind.granularity
    axis = tensor_specs.channel_axis(layer, slot, weight)
    fits = axis is not None and axis == tensor_specs.output_axis(layer) % (query.rank(weight) or 1)
    return None if granularity == "channel" and fits else SHARED
