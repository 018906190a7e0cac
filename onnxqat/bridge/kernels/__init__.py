"""Fake-quantize forward and backward kernels; all give the same bits as ``onnxqat.numerics``."""
