"""Builtin operators of LiteRT that are written for ONNX nodes: one file a family."""
