"""Nodes by the noise that their quantizers bring to the outputs, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxqat.calibration.noise import share_of
from onnxqat.data.data import Data
from onnxqat.errors import QatError
from onnxqat.graph import query
from onnxqat.insertion.suspicion import EXPLAINED
from onnxqat.validation import profile_meters
from onnxqat.validation.profile import profile

if TYPE_CHECKING:
    from onnxqat.graph import io

DIFFERENTIATED = 4
"""Samples whose gradients are taken: what is looked for differs by factors."""

SAMPLES = 16
"""Samples of the analysis that switches quantizers one by one, a run each: on a MobileNetV2 it takes 200 seconds, and gradients
take 10."""


def ranked(original: io.ModelSource, quantized: ir.Model, data: Data) -> list[str]:
    """Names of the nodes that quantizers belong to, those first whose quantizers bring most noise.

    Args:
        original: float model.
        quantized: the same with quantizers.
        data: calibration data.

    Raises:
        QatError: the bridge cannot run the model, and what :func:`onnxqat.profile` raises.
    """
    found = _by_gradients(quantized, data)
    if found:
        return sorted(found, key=lambda name: -found[name])
    report = profile(original, quantized, data, ways=("alone",), limit=SAMPLES)
    return [layer.node for layer in report.layers]


def _by_gradients(quantized: ir.Model, data: Data) -> dict[str, float]:
    """Noise by node; none where gradients explain little of what the file has, as behind an index that comes out otherwise."""
    try:
        from onnxqat.bridge import quantizer_noise
        from onnxqat.bridge.switched_module import SwitchedModule

        switched = SwitchedModule(quantized)
        batches = list(data.few(DIFFERENTIATED, batch_size=1))  # all activations of a batch are in memory at once
        whole = profile_meters.Outputs()
        for feeds in batches:
            whole.add(switched.run(feeds, on=switched.every)[0], switched.run(feeds, on=())[0])
        noise = quantizer_noise.of_each(switched, batches)
    except (ImportError, QatError, RuntimeError, ValueError):
        return {}
    if not sum(noise.values()) > EXPLAINED * min(share_of(whole.worst.sqnr_db), 1.0):
        return {}
    found: dict[str, float] = {}
    for quantizer, _ in switched.found:
        for node in profile_meters.nodes_of(quantizer):
            label = query.label(node)
            found[label] = found.get(label, 0.0) + noise[quantizer_noise.name_of(quantizer)]
    return found
