"""Text as numbers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (OpDef("TfIdfVectorizer", 9, 9, ("parameter",)),)
