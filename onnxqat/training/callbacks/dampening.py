"""Oscillation dampening: weights are pulled to the middle of their code's interval, more and more.

Nagel et al., "Overcoming Oscillations in Quantization-Aware Training", ICML 2022, section 4.1: with the straight-through
gradient a weight near the edge between two codes hops from one to the other, and a few of them spoil the statistics
of low-bit networks with depthwise convolutions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.callbacks.quantized_weights import QuantizedWeight, quantized_weights

PAPER = 0.1
"""The authors' final weight for MobileNetV2 and EfficientNet-Lite at 3 and 4 bits."""


class Dampening(Callback):
    """Adds ``weight(step) * sum((x' - clip(x))**2)`` over all quantized weights to the loss.

    The weight rises from 0 to its final value along a half cosine. Weights that saturate, and scales, get no gradient. Where the
    graph folds a BatchNormalization into a weight, x is the folded weight, and gamma counts as a scale.

    Args:
        weight: final weight of the term, > 0.

    Raises:
        UsageError: ``option-invalid``.
    """

    name = "dampening"
    needs_whole_weights = True

    def __init__(self, weight: float = PAPER) -> None:
        if not 0.0 < weight < math.inf:
            raise UsageError("option-invalid", f"the weight of dampening is {weight}; it must be > 0")
        self.weight = weight
        self._total = 1
        self._weights: list[QuantizedWeight] = []

    def start(self, run: Run) -> None:
        """See the base class."""
        self._total = run.schedule.total_steps
        self._weights = list(quantized_weights(run.module))

    def penalty(self, step: int) -> Tensor | None:
        """See the base class."""
        weight = self.weight * 0.5 * (1.0 - math.cos(math.pi * step / self._total))
        terms = [distance(each) for each in self._weights]
        return weight * torch.stack(terms).sum() if terms else None


def distance(each: QuantizedWeight) -> Tensor:
    """Sum over the weights in the range of their grid of the squared distance to their code's value; a scalar."""
    codes, scale = each.steps()
    difference = each.value() - codes * scale
    inside = difference.detach().abs() <= 0.5 * scale * (1.0 + 1e-5)
    return (difference * inside).square().sum()
