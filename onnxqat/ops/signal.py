"""Signal processing."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("DFT", 17, 20, ("parameter",)),
    OpDef("STFT", 17, 17, ("parameter",)),
    OpDef("BlackmanWindow", 17, 17, ("parameter",)),
    OpDef("HammingWindow", 17, 17, ("parameter",)),
    OpDef("HannWindow", 17, 17, ("parameter",)),
    OpDef("MelWeightMatrix", 17, 17, ("parameter",)),
)
