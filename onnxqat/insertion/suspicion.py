"""The noise that is expected of each quantizer: at the outputs by gradients, or at its own tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.noise import decibels_of, share_of, squares
from onnxqat.calibration.output_parts import Parts
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds
from onnxqat.errors import ModelError, QatError
from onnxqat.graph import query
from onnxqat.insertion import trial
from onnxqat.insertion.trial import Trial

Array = npt.NDArray[Any]
DIFFERENTIATED = 2
"""Samples whose gradients tell what costs most: the same quantizers cost most on all of them."""

DRAWS = 8
"""Random directions of the outputs whose gradients are taken on each of these samples: enough for those that cost most."""

EXPLAINED = 0.1
"""Share of the noise of the file that gradients have to explain. Where errors are small, the noise that they predict adds
up to about twice that of the file; where errors flip the result of a TopK, to next to nothing."""

NAMED = 3
"""Tensors that are named where an output is noisy."""

BULK = 99.0
"""Percentile of the magnitudes up to which values are also looked at by themselves: against the signal of an outlier, the
noise that its wide range brings to all others looks small."""


def at_outputs(
    quantized: ir.Model,
    original: ir.Model,
    data: Data,
    tried: Trial,
    draws: int = DRAWS,
    *,
    by_parts: bool = False,
) -> dict[str, float]:
    """Noise that each quantizer alone brings to the noisy outputs, as a share of their signal, from gradients.

    Args:
        quantized: the file.
        original: the model that its quantizers were put into, whose weights no data have rounded.
        data: calibration data, of which the gradients of :data:`DIFFERENTIATED` samples are taken.
        tried: what the file gave.
        draws: random directions of the outputs, for each of these samples, whose gradients are taken.
        by_parts: boxes and scores that are joined in one output count apart, each by its own signal.

    Returns:
        The noise by tensor; empty where torch is missing or cannot run the model, and where all of it explains little of
        the noise that the file has, as behind an index that comes out otherwise.
    """
    try:
        from onnxqat.bridge import quantizer_noise
        from onnxqat.bridge.switched_module import SwitchedModule

        constants = {name: query.constant_array(value) for name, value in original.graph.initializers.items()}
        weights = {name: values for name, values in constants.items() if values is not None}
        # One by one: all activations of a batch are in memory at once, with their gradients and errors.
        batches = list(data.few(DIFFERENTIATED, batch_size=1))
        joined = Parts(original) if by_parts else None
        parts = [] if joined is None else [joined.labels(feeds) for feeds in batches]
        module, noisy = SwitchedModule(quantized), tried.noisy
        found = quantizer_noise.of_each(module, batches, outputs=noisy, weights=weights, draws=draws, parts=parts)
    except (ImportError, QatError, RuntimeError, ValueError):
        return {}
    noise = sum(min(share_of(tried.sqnr_db[name]), 1.0) for name in tried.noisy)
    return found if sum(found.values()) > EXPLAINED * noise else {}


def at_tensors(quantized: ir.Model, batches: Sequence[Feeds]) -> dict[str, float]:
    """Noise of each quantizer of the main graph as a share of its tensor, or of the bulk of its values where that is more."""
    return {tensor: _share(x, codes) for tensor, x, codes in trial.rounded(quantized, batches)}


def named(tried: Trial, quantized: ir.Model, original: ir.Model, data: Data) -> Trial:
    """`tried`, with the quantizers that cost its outputs most, if those can be measured; see :func:`at_outputs`."""
    noise = at_outputs(quantized, original, data, tried)
    if noise:
        measured = {tensor: decibels_of(share) for tensor, share in noise.items() if share > 0}
    else:
        try:
            rounded = trial.rounded(quantized, trial.samples(data))
            measured = {tensor: trial.sqnr(codes, x) for tensor, x, codes in rounded}
        except ModelError:
            return tried  # the file runs, and not with all of these tensors as outputs
    costly = tuple(sorted(measured.items(), key=lambda entry: entry[1])[:NAMED])
    return dataclasses.replace(tried, costly=costly, costly_at="outputs" if noise else "tensors")


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
