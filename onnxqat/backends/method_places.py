"""Names of methods of post-training quantization, each with the option or command that it is found under.

The literature and other tools have one list of them, and options here have several: who asks one for what another has
is told which.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxqat import discover

PLACES = {
    "adaround": "learned: onnxqat reconstruct --recipe adaround",
    "brecq": "learned: onnxqat reconstruct --recipe brecq",
    "qdrop": "learned: onnxqat reconstruct --recipe qdrop",
    "gptq": "--rounding gptq",
    "gptaq": "--rounding gptq",
    "obq": "--rounding gptq",
    "compensated": "--rounding compensated",
    "bias-correction": "--bias-correction",
    "silu-equalization": "--equalize silu-equalization",
    "equalize-silu": "--equalize silu-equalization",
    "cle": "--equalize cross-layer-equalization",
    "high-bias-absorption": "--equalize high-bias-absorption",
    "bias-absorption": "--equalize high-bias-absorption",
    "outlier-channel-splitting": "--equalize outlier-channel-splitting",
    "ocs": "--equalize outlier-channel-splitting",
    "awq": "--equalize awq",
    "smooth-quant": "--equalize smoothquant",
    "smoothquant": "--equalize smoothquant",
    "cross-layer-equalization": "--equalize cross-layer-equalization",
}
"""Name in small letters with ``-`` to where it is."""


def hint(name: str, option: str, known: Sequence[str]) -> str:
    """A hint for a `name` that `option` does not know: where it is found, else the names that the option knows."""
    place = PLACES.get(name.lower().replace("_", "-"))
    if place is not None:
        return place
    return f"{discover.suggestion(name, known).rstrip('?')}; {option} knows {', '.join(known)}"
