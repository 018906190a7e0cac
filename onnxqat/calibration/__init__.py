"""Calibration, the data part of post-training quantization (PTQ): observers find scale and zero point of each tensor.

Beside ranges there are rounding on data (GPTQ, bias correction) and equalization. Training that starts from the result
is quantization-aware training (QAT): :mod:`onnxqat.training`.
"""
