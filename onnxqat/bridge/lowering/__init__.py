"""ONNX operators in torch; one file an operator family, named as in ``onnxqat/ops``."""
