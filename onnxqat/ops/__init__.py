"""Definitions of the ONNX operators that onnxqat knows: one file per domain, one row per operator."""
