"""The largest scale with which a grid still does what a Clip in front of it does.

Runtimes leave such a Clip to the requantization of the layer before it. As soon as the grid reaches beyond the Clip, it
is an operator of its own, and the layer is computed in float. So training stays below that.
"""

from __future__ import annotations

import math

import numpy as np

from onnxqat.graph.quantizer import Quantizer
from onnxqat.placement import fusion_chains
from onnxqat.types import STORAGE


def largest_scale(quantizer: Quantizer) -> float | None:
    """The largest float32 scale with which all values of the grid lie within the Clip that makes the tensor.

    None where there is no Clip with constant ends, where the grid of the file reaches beyond it as it is, and for grids
    per channel. The rule is onnxruntime's: all that QuantizeLinear can represent counts (``clip_quant_fusion``).
    """
    node, qparams = quantizer.input.producer(), quantizer.qparams
    bounds = None if node is None or node.domain or quantizer.stored else fusion_chains.clip_bounds(node)
    if bounds is None or qparams.axis is not None or qparams.qtype.is_float:
        return None
    ends = [code - int(qparams.zero_point) for code in STORAGE[qparams.qtype.storage][:2]]
    found = min(
        (_largest_scale_within(bound, steps) for bound, steps in zip(bounds, ends, strict=True) if steps),
        default=math.inf,
    )
    if not (0 < found < math.inf) or float(qparams.scale) > found:
        return None
    # A restricted scale is rounded up when it is used: the one of the file is known to fit.
    return float(qparams.scale) if qparams.scale_bits is not None else found


def starts_at_zero(quantizer: Quantizer) -> bool:
    """Check whether the grid begins at 0, as the Relu or Clip in front of it does: training must keep it there."""
    node, qparams = quantizer.input.producer(), quantizer.qparams
    bounds = None if node is None or node.domain or quantizer.stored else fusion_chains.clip_bounds(node)
    low = STORAGE[qparams.qtype.storage][0] if not qparams.qtype.is_float else None
    return bounds is not None and bounds[0] == 0 and bool((qparams.zero_point == low).all())


def _largest_scale_within(bound: float, steps: int) -> float:
    """The largest float32 scale with which ``steps * scale`` does not pass `bound`; infinite where none can."""
    if math.isinf(bound):
        return math.inf
    scale = np.float32(bound / steps)
    while abs(np.float32(steps) * scale) > abs(np.float32(bound)):
        scale = np.nextafter(scale, np.float32(0))
    return float(scale) if scale > 0 else 0.0
