"""Order in which a search for culprits looks at quantizers: by the noise that each adds to its own tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.noise import squares
from onnxqat.data.inputs import Feeds
from onnxqat.insertion import trial
from onnxqat.insertion.culprits import Unit
from onnxqat.insertion.effects import Effects

Array = npt.NDArray[Any]
BULK = 99.0
"""Percentile of the magnitudes up to which values are looked at by themselves: beside an outlier, what its range does to
all others is no noise to speak of."""


def expected(quantized: ir.Model, batches: Sequence[Feeds], effects: Effects) -> dict[Unit, float]:
    """Noise of each quantizer as a share of its tensor, or of the bulk of its values where that is more.

    Those of which nothing is known, in branches of If, are taken for the middle of the others.

    Args:
        quantized: the file.
        batches: samples.
        effects: the quantizers.
    """
    known = {tensor: _share(x, codes) for tensor, x, codes in trial.rounded(quantized, batches)}
    middle = float(np.median(list(known.values()))) if known else 0.0
    return {unit: max(known.get(tensor, middle) for tensor in tensors) for unit, tensors in effects.tensors.items()}


def _share(x: Array, codes: Array) -> float:
    finite = np.isfinite(x)
    x, codes = x[finite].astype(np.float64), codes[finite].astype(np.float64)
    if not x.any():
        return 0.0
    size = np.abs(x)
    bulk = size <= np.percentile(size, BULK)
    return max(_noise(x, codes), _noise(x[bulk], codes[bulk]))


def _noise(x: Array, codes: Array) -> float:
    noise, signal = squares(codes, x)
    return min(noise / signal, 1.0) if signal else 0.0
