"""Recurrent operators of com.microsoft."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (OpDef("DynamicQuantizeLSTM", 1, 1, ("parameter",), domain="com.microsoft"),)
