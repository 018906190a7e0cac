"""Unique."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (OpDef("Unique", 11, 28, ("data",), passthrough=True),)
