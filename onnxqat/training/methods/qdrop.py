"""QDrop: in training, every element of an activation stays float with probability one half.

Wei et al., "QDrop: Randomly Dropping Quantization for Extremely Low-bit Post-Training Quantization", ICLR 2022,
section 3.3. Made for tuning on a few hundred samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxqat.training.methods import lsq

PROBABILITY = 0.5


class Method(lsq.Method):
    """LSQ; activations drop their quantization at random in train mode and never in eval mode."""

    def quantize(self, x: Tensor) -> Tensor:
        """See the base class; draws from torch's generator of the device of `x`."""
        result = super().quantize(x)
        if not self.training or self.role != "activation":
            return result
        return mixed(x, result, PROBABILITY)


def mixed(first: Tensor, second: Tensor, probability: float) -> Tensor:
    """Each element that of `first` with `probability`, else that of `second`; both finite, and of one shape.

    Products with 0 and 1 are exact and, on a CPU, take a third of the time of a choice and its gradient.
    """
    chosen = torch.empty_like(first).bernoulli_(probability)
    return first * chosen + second * (1.0 - chosen)
