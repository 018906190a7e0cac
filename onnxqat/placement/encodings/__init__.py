"""Quantization encodings of other tools, one file a format."""
