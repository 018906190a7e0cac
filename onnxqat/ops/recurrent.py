"""Recurrent layers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("RNN", 7, 22, ("parameter", "weight", "weight", "parameter")),
    OpDef("LSTM", 7, 22, ("parameter", "weight", "weight", "parameter")),
    OpDef("GRU", 7, 22, ("parameter", "weight", "weight", "parameter")),
)
