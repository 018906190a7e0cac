"""Noise at the outputs on samples that calibration does not see, with an equalization and without."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxqat.calibration import held_samples
from onnxqat.calibration.output_parts import Shares
from onnxqat.data.data import Data
from onnxqat.errors import ModelError
from onnxqat.runtime.session import Session

Quantize = Callable[[ir.Model, Data], ir.Model]
"""Gives a quantized copy of a prepared float model, calibrated on data."""

CALIBRATED = 32
"""Samples that calibrate the copies to compare."""

GAIN = 0.9
"""Share of the noise that may stay for an equalization to be kept, half a decibel less; closer is chance on few samples."""


class HeldOut:
    """Measures prepared float models by what their quantized copies lose on held-out samples.

    Args:
        model: the prepared float model; what is measured computes the same.
        data: calibration data, which can be read more than once.
        quantize: makes the quantized copies.
    """

    def __init__(self, model: ir.Model, data: Data, quantize: Quantize) -> None:
        self._quantize = quantize
        rest, self._held = held_samples.split(data)
        self._calibration = rest.few(CALIBRATED) if self._held else rest
        self._float = model.clone()
        self._shares: Shares | None = None

    @property
    def can_tell(self) -> bool:
        """Check whether there are enough samples."""
        return held_samples.can_tell(self._held)

    def noise(self, model: ir.Model) -> float | None:
        """Squared error at the outputs as a share of their power, summed; None where onnxruntime does not run them."""
        try:
            shares = self._expected()
            quantized = Session(
                self._quantize(model, self._calibration), optimize=True, precise=True, what="the quantized model"
            )
            return shares.of(quantized.run(feeds, shares.names) for feeds in self._held)
        except ModelError:
            return None  # the trial at the end tells why

    def _expected(self) -> Shares:
        if self._shares is None:
            self._shares = Shares(self._float)
            session = Session(self._float, optimize=True, what="the float model")
            for feeds in self._held:
                self._shares.expect(feeds, session.run(feeds, self._shares.names))
        return self._shares
