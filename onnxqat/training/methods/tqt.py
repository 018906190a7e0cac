"""TQT: scales are powers of two, and the threshold is learned.

Jain et al., "Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural
Networks", MLSys 2020: ``scale = 2 ** ceil(log2(threshold)) / levels`` (equation 4), with the gradient of the ceiling
taken as 1 (equation 7), which is the gradient of LSQ on the rounded scale.
"""

from __future__ import annotations

from typing import Any

from onnxqat.training.methods import lsq
from onnxqat.types import QParams


class Method(lsq.Method):
    """A learned scale, rounded up to a power of two in forward. Scales that are none become one at import.

    The paper learns the logarithm of the threshold. Adam's steps here are relative to the scale, which is the same.
    """

    def __init__(self, qparams: QParams, **described: Any) -> None:
        super().__init__(qparams, **described)
        self.scale_bits = 1
