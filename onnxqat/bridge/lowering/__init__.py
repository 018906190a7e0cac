"""ONNX operators in torch; one file per operator family, named as in ``onnxqat/ops``."""
