"""LSQ: the scale is learned with the task loss.

Esser et al., "Learned Step Size Quantization", ICLR 2020. The gradient of the scale is multiplied by
``1 / sqrt(N * Qp)`` (section 2.2), which brings the ratio of update to value to the size that it has for weights.
"""

from __future__ import annotations

from torch import Tensor

from onnxqat import numerics
from onnxqat.bridge.fake_quantize import FakeQuantize


class Method(FakeQuantize):
    """A learned scale; initial values come from calibration (the scale in the file).

    * ``N``, weights: the elements that share a scale: all of them, those of one channel, or a block.
    * ``N``, activations: the features of one sample (the paper's N_F) that share a scale; axis 0 is the batch. So
      the learning rate need not change with the batch size.
    * ``Qp``: the codes above zero: of the whole grid for an asymmetric quantizer, of its upper half for a symmetric one.
    """

    def gradient_scale(self, x: Tensor) -> float:
        """``1 / sqrt(N * Qp)``."""
        per_sample = self.role == "activation" and x.ndim > 1
        features = self.block_size or 1
        for d in range(x.ndim if self.block_size is None else 0):
            if (self.axis is None or d != self.axis % x.ndim) and not (per_sample and d == 0):
                features *= x.shape[d]
        zero = numerics.zero_point_of(self.qtype) if self.symmetric else self.quant_min
        scale: float = (max(features, 1) * (self.quant_max - zero)) ** -0.5
        return scale
