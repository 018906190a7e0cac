"""Examination of the machine and the environment that onnxqat runs in: ``onnxqat doctor``."""
