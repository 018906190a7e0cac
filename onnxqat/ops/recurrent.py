"""Recurrent layers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("RNN", 7, 22, ("parameter",)),
    OpDef("LSTM", 7, 22, ("parameter",)),
    OpDef("GRU", 7, 22, ("parameter",)),
)
