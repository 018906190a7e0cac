"""Weights whose code hops back and forth: the share of them, from looks at the codes every few steps.

Nagel et al., "Overcoming Oscillations in Quantization-Aware Training", ICML 2022, section 2.2, call a change of a code an
oscillation where the change before it went the other way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from onnxqat.training.callbacks.quantized_weights import QuantizedWeight, quantized_weights
from onnxqat.training.distributed.tensors import is_sharded

WATCHED = 1 << 20
"""Weights that are watched at most, evenly spread: their share is known to a thousandth, in 9 MB."""


class TurningCodes:
    """Codes of weights at the last look, and the direction in which each went when it last changed.

    Args:
        weights: none of them sharded.
    """

    def __init__(self, weights: Sequence[QuantizedWeight]) -> None:
        self._weights = list(weights)
        self._stride = max(1, sum(each.weight.numel() for each in self._weights) // WATCHED)
        self._last = [self._codes(each) for each in self._weights]
        self._way = [torch.zeros_like(codes) for codes in self._last]
        self._turned = [torch.zeros_like(codes, dtype=torch.bool) for codes in self._last]

    @staticmethod
    def of(module: nn.Module) -> TurningCodes | None:
        """Watch the weights of `module`; None where there are none, or each process holds parts of them."""
        weights = list(quantized_weights(module))
        if not weights or any(is_sharded(each.weight) for each in weights):
            return None
        return TurningCodes(weights)

    def look(self) -> None:
        """Compare the codes with those of the look before."""
        for k, each in enumerate(self._weights):
            codes = self._codes(each)
            way = torch.sign(codes - self._last[k])
            self._turned[k] |= way * self._way[k] < 0
            self._way[k] = torch.where(way != 0, way, self._way[k])
            self._last[k] = codes

    def share(self) -> float:
        """Return the share of the watched weights that turned back since the last call, 0..1."""
        total = sum(turned.numel() for turned in self._turned)
        found = sum(int(turned.sum()) for turned in self._turned)
        for turned in self._turned:
            turned.zero_()
        return found / total if total else 0.0

    def _codes(self, each: QuantizedWeight) -> Tensor:
        """Return the watched codes, evenly spread over the weight."""
        return each.steps()[0].detach().reshape(-1)[:: self._stride].to(torch.int32)
