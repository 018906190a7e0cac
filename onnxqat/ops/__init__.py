"""Definitions of the ONNX operators that onnxqat knows: one file per operator family, one row per operator."""
