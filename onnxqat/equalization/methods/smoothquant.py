"""SmoothQuant where a few channels of what products read are much larger than the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxqat.equalization import method
from onnxqat.equalization.channel_ranges import spread
from onnxqat.equalization.method import Situation
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes import smoothquant
from onnxqat.passes._base import Pass
from onnxqat.passes.equalize_silu import SPREAD


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.smoothquant.SmoothQuant` on the main graph, with its exponent as the value.

    By itself only on tensors whose largest channel is :data:`~onnxqat.passes.equalize_silu.SPREAD` times the geometric
    mean: the typical channel has lost 3 bits there, and weights have room for them.
    """

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Inputs of products; see the base class."""
        return {link.name: -1 for link in _links(situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass for all tensors whose channels differ widely; see the base class."""
        found = situation.ranges.largest(self.tensors(situation))
        ranges = {name: sizes for name, sizes in found.items() if situation.asked or spread(sizes) >= SPREAD}
        alpha = 0.5 if situation.value is None else situation.value
        return smoothquant.SmoothQuant(ranges, alpha=alpha) if ranges else None


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph whose tensor is quantized, and whose ends the user did not take out."""
    return filter(situation.quantizes, smoothquant.links(situation.model.graph))
