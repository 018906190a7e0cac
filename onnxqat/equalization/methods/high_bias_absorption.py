"""Absorption of high biases, by the lowest value of each channel on calibration data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from onnxqat.equalization import method
from onnxqat.equalization.method import Situation
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes import high_bias_absorption
from onnxqat.passes._base import Pass
from onnxqat.types import FloatArray

MARGIN = 0.1
"""Share of a channel's range by which what is absorbed stays below the lowest value seen: other data go lower."""


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.high_bias_absorption.HighBiasAbsorption` on the main graph.

    Never by itself: values below what was absorbed come out otherwise than in float, and data show only what they hold.
    Without data nothing is left of it here, where BatchNormalization is folded; the pass alone works in front of that.
    """

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Tensors between linked layers; see the base class."""
        return {link.name: link.read_axis for link in _links(situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass for all channels that stay above 0; see the base class."""
        links = {link.name: link for link in _links(situation)}
        amounts = dict[str, FloatArray]()
        for name, (low, high) in situation.ranges.of(links).items():
            least = np.maximum(low - MARGIN * (high - low), 0).reshape(links[name].channels, -1).min(axis=1)
            amounts |= {name: least} if least.any() else {}
        return high_bias_absorption.HighBiasAbsorption(amounts) if amounts else None


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph whose tensor is quantized, and whose ends the user did not take out."""
    return filter(situation.quantizes, high_bias_absorption.links(situation.model.graph))
