"""ONNX operators in torch; one file per family of ``onnxqat/ops``."""
