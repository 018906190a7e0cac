"""Fixed: scales stay as calibrated, the weights learn around them (Jacob et al., CVPR 2018, without moving ranges)."""

from __future__ import annotations

from torch import Tensor

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.positive_scale import positive
from onnxqat.types import QParams


class Method(FakeQuantize):
    """A scale without a gradient; the straight-through gradient of the input is that of the other methods."""

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        self.scale.requires_grad_(False)

    def effective_scale(self) -> Tensor:
        """The scale as it is; its gradient is cut even where a trainer asks for one."""
        return positive(self.scale.detach())
