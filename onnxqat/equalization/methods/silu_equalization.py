"""Find channels of very different size in front of a SiLU on calibration data, and equalize them.

It has the purpose of cross-layer equalization (CLE: Nagel et al., "Data-Free Quantization Through Weight Equalization
and Bias Correction", ICCV 2019) and is not it. CLE balances the weight ranges of neighbouring layers across functions
that commute with positive factors (Relu). Here the ranges are those of activations on data, and the function is a SiLU.
As in SmoothQuant (Xiao et al., ICML 2023) the range of an activation's channels moves into the weights behind; unlike
there it moves as a whole, with no exponent to choose.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxqat.backends.schema import Backend
from onnxqat.equalization import method
from onnxqat.equalization.method import Situation
from onnxqat.passes._base import Pass
from onnxqat.passes.equalize_silu import EqualizeSilu, channels


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.equalize_silu.EqualizeSilu` on the main graph.

    It is left out where weights of convolutions have one scale per tensor, whose range the factors could widen. Its
    threshold (:data:`~onnxqat.passes.equalize_silu.SPREAD`) decides by itself: the typical channel would have 5 bits.
    """

    tried = False
    every_sample = True

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Results of convolutions in front of a SiLU; see the base class."""
        if not situation.is_per_channel("Conv"):
            return {}
        graph = situation.model.graph
        left_out = [node for node in graph if situation.chosen.reason(node)]
        return dict.fromkeys(channels(graph, left_out), 1)

    def made(self, situation: Situation) -> Pass | None:
        """The pass with the ranges that the data show; see the base class."""
        table = situation.table
        ranges = situation.ranges.of(self.tensors(situation))
        powers = any(chain.inner == "pair" for chain in table.fused)
        return EqualizeSilu(ranges, behind=_fuses_product(table), powers=powers) if ranges else None


def _fuses_product(table: Backend) -> bool:
    """Check whether the backend fuses a SiLU and a product by constants into the convolution in front."""
    return any("Conv" in c.chain[0] and ("Silu",) in c.chain and ("Scale",) in c.chain for c in table.fused)
