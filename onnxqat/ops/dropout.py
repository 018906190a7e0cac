"""Dropout."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (OpDef("Dropout", 1, 22, ("data", "parameter", "parameter"), passthrough=True),)
