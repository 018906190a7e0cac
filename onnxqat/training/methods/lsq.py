"""LSQ: the scale is learned with the task loss.

Esser et al., "Learned Step Size Quantization", ICLR 2020. This is what :class:`FakeQuantize` does by itself, so that a
module of :func:`onnxqat.to_torch` trains by it in any loop; see :meth:`FakeQuantize.gradient_scale`.
"""

from __future__ import annotations

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize


class Method(FakeQuantize):
    """A learned scale; initial values come from calibration (the scale in the file)."""
